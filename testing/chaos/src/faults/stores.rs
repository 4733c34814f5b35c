//! Stores that die, and stores that hang.

use anyhow::Result;

use crate::document::Kind;
use crate::fault::{Bounds, Fault, Run, Scene};
use crate::load::Traffic;
use crate::rig::Setup;

/// Requests that may fail on a dead store before Envoy avoids it.
const FEW: usize = 60;

/// One store, which native modules call, too.
const CALLED: Setup = Setup { through_stores: true, ..Setup::PLAIN };

/// The faults of this module.
pub const ALL: &[Fault] = &[
    Fault {
        name: "store_killed",
        injected: "the only store gets SIGKILL, and is started again",
        bounds: Bounds::STRICT,
        only: None,
        run: Run::Under(CALLED, killed),
    },
    Fault {
        name: "one_of_two_stores_killed",
        injected: "one of two stores gets SIGKILL, and is started again (`envoy/quota_store_several.yaml`)",
        bounds: Bounds { fails: Some(FEW), ..Bounds::STRICT },
        only: None,
        run: Run::Under(Setup { stores: 2, ..CALLED }, killed),
    },
    Fault {
        name: "store_killed_under_allow",
        injected: "the only store gets SIGKILL, with `on_failure: allow`",
        bounds: Bounds::STRICT,
        only: None,
        run: Run::Under(
            Setup { traffic: Traffic { kinds: &[Kind::Loose], ..CALLED.traffic }, ..CALLED },
            killed,
        ),
    },
    Fault {
        name: "store_frozen",
        injected: "the only store gets SIGSTOP, and SIGCONT later",
        bounds: Bounds::STRICT,
        only: None,
        run: Run::Under(CALLED, frozen),
    },
];

fn killed(scene: &mut Scene<'_>) -> Result<()> {
    scene.rig.store(0)?.kill()?;
    scene.load.go_on(scene.plan.during);
    scene.rig.restart_store(0)
}

fn frozen(scene: &mut Scene<'_>) -> Result<()> {
    scene.rig.store(0)?.freeze()?;
    scene.load.go_on(scene.plan.during);
    scene.rig.store(0)?.thaw()
}
