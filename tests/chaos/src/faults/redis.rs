//! One Redis that dies, hangs, or loses what it holds.

use std::time::Duration;

use anyhow::Result;

use crate::fault::{Bounds, Fault, Run, Scene};
use crate::load::Traffic;
use crate::rig::Setup;

/// How long Redis is away: as long as in the comparison with others.
const AWAY: Duration = Duration::from_secs(3);

/// 30 requests a second, as in the comparison with others.
const THIRTY: Setup = Setup { traffic: Traffic { rate: 30, ..Setup::PLAIN.traffic }, ..Setup::PLAIN };

/// The faults of this module.
pub const ALL: &[Fault] = &[
    Fault {
        name: "redis_killed",
        injected: "Redis gets SIGKILL under 30 requests/s, and is back, empty, after 3 s",
        bounds: Bounds { quotas: 2, forgets: Some("counters are gone with Redis"), ..Bounds::STRICT },
        run: Run::Under(THIRTY, killed),
    },
    Fault {
        name: "redis_frozen",
        injected: "Redis gets SIGSTOP under 30 requests/s, and SIGCONT after 3 s",
        bounds: Bounds::STRICT,
        run: Run::Under(THIRTY, frozen),
    },
];

fn killed(scene: &mut Scene<'_>) -> Result<()> {
    scene.rig.redis()?.kill()?;
    scene.load.go_on(AWAY);
    scene.rig.redis()?.restart()
}

fn frozen(scene: &mut Scene<'_>) -> Result<()> {
    scene.rig.redis()?.freeze()?;
    scene.load.go_on(AWAY);
    scene.rig.redis()?.thaw()
}
