//! A primary of a Redis Cluster is gone and no replica takes over, while nine of ten requests are for its slots.
//! The requests for the slots of the others must not notice.

use std::time::Duration;

use anyhow::Result;

use crate::document::Kind;
use crate::fault::{Bounds, Fault, Run, Scene};
use crate::load::Traffic;
use crate::rig::{Keeper, Setup};

/// The primary that is gone: the partitions of nine of [`USERS`] are in its slots.
const PRIMARY: usize = 0;
/// In turn. The slots of open-0 belong to another primary.
const USERS: &[&str] = &["1", "5", "9", "13", "0", "17", "22", "26", "31", "35"];
const HEALTHY: &[&str] = &["open-0"];
/// A fault that is shorter would be over before its beginning is a tenth of it.
const SHORTEST: Duration = Duration::from_secs(5);

const SKEWED: Setup = Setup {
    keeper: Keeper::Uncovered,
    traffic: Traffic { rate: 200, connections: 24, kinds: &[Kind::Open], users: USERS },
    ..Setup::PLAIN
};

/// The faults of this module.
pub const ALL: &[Fault] = &[
    Fault {
        name: "skewed_primary_killed",
        injected: "a primary that 90 % of the requests are for gets SIGKILL, no replica takes over, and it is back, empty",
        bounds: Bounds {
            forgets: Some("counters are gone with the primary"),
            spares: Some(HEALTHY),
            ..Bounds::STRICT
        },
        run: Run::Under(SKEWED, killed),
    },
    Fault {
        name: "skewed_primary_frozen",
        injected: "a primary that 90 % of the requests are for gets SIGSTOP, no replica takes over, then SIGCONT",
        bounds: Bounds { spares: Some(HEALTHY), ..Bounds::STRICT },
        run: Run::Under(SKEWED, frozen),
    },
];

fn killed(scene: &mut Scene<'_>) -> Result<()> {
    scene.rig.cluster()?.kill_node(PRIMARY)?;
    scene.load.go_on(scene.plan.during.max(SHORTEST));
    let cluster = scene.rig.cluster()?;
    cluster.restart_node(PRIMARY)?;
    cluster.wait_until_healthy()
}

fn frozen(scene: &mut Scene<'_>) -> Result<()> {
    scene.rig.cluster()?.freeze_node(PRIMARY)?;
    scene.load.go_on(scene.plan.during.max(SHORTEST));
    let cluster = scene.rig.cluster()?;
    cluster.thaw_node(PRIMARY)?;
    cluster.wait_until_healthy()
}
