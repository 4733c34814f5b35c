//! A primary of a Redis Cluster is gone and no replica takes over, while nine of ten requests are
//! for its slots. The requests for the slots of the others must not notice.

use std::time::Duration;

use anyhow::{Result, ensure};
use quotagate_support::cluster::SlotMove;

use crate::document::Kind;
use crate::fault::{Bounds, Fault, Run, Scene};
use crate::load::Traffic;
use crate::rig::{Keeper, Setup};

/// The primary that is lost. The partitions of nine of [`USERS`] are in its slots.
const PRIMARY: usize = 0;
/// The users send requests in turn. The slot of open-0 belongs to another primary.
const USERS: &[&str] = &["1", "5", "9", "13", "0", "17", "22", "26", "31", "35"];
const HEALTHY: &[&str] = &["open-0"];
/// In a shorter fault, the time until the store gives up the node would be more than a tenth of it.
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
        only: None,
        run: Run::Under(SKEWED, killed),
    },
    Fault {
        name: "skewed_primary_frozen",
        injected: "a primary that 90 % of the requests are for gets SIGSTOP, no replica takes over, then SIGCONT",
        bounds: Bounds { spares: Some(HEALTHY), ..Bounds::STRICT },
        only: None,
        run: Run::Under(SKEWED, frozen),
    },
];

/// Nine of ten users must be counted on the lost primary, or the fault shows nothing.
fn check_skew(scene: &mut Scene<'_>) -> Result<()> {
    let cluster = scene.rig.cluster()?;
    for user in USERS {
        let from = SlotMove::of(cluster, &format!("header.x-user=open-{user}"))?.from();
        let is_healthy = HEALTHY.contains(&format!("open-{user}").as_str());
        ensure!((from == PRIMARY) != is_healthy, "open-{user} is counted on primary {from}");
    }
    Ok(())
}

fn killed(scene: &mut Scene<'_>) -> Result<()> {
    check_skew(scene)?;
    scene.rig.cluster()?.kill_node(PRIMARY)?;
    scene.load.go_on(scene.plan.during.max(SHORTEST));
    let cluster = scene.rig.cluster()?;
    cluster.restart_node(PRIMARY)?;
    cluster.wait_until_healthy()
}

fn frozen(scene: &mut Scene<'_>) -> Result<()> {
    check_skew(scene)?;
    scene.rig.cluster()?.freeze_node(PRIMARY)?;
    scene.load.go_on(scene.plan.during.max(SHORTEST));
    let cluster = scene.rig.cluster()?;
    cluster.thaw_node(PRIMARY)?;
    cluster.wait_until_healthy()
}
