//! Jumps of Redis' clock, which decides the current window.

use anyhow::{Context, Result};

use crate::document::WINDOW_S;
use crate::fault::{Bounds, Fault, Run, Scene};
use crate::rig::{Keeper, Setup};

/// The jump: many windows, and longer than any counter lives.
const FAR_S: i64 = 100 * WINDOW_S as i64;

/// The faults of this module.
pub const ALL: &[Fault] = &[Fault {
    name: "clock_jumped",
    injected: "the clock of Redis jumps 400 s ahead, 400 s back behind the true time, and to the true time",
    bounds: Bounds {
        quotas: 4,
        forgets: Some(
            "each jump begins another window, with a quota of its own, and a leap ahead ends the lives of counters",
        ),
        ..Bounds::STRICT
    },
    only: None,
    run: Run::Under(Setup { keeper: Keeper::Clocked, ..Setup::PLAIN }, jumped),
}];

fn jumped(scene: &mut Scene<'_>) -> Result<()> {
    for ahead in [FAR_S, -FAR_S, 0] {
        scene.rig.clock.as_ref().context("no clock that can jump")?.set(ahead)?;
        scene.load.go_on(scene.plan.during / 3);
    }
    Ok(())
}
