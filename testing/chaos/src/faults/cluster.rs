//! A Redis Cluster whose primaries die or hang, and whose slots move.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quotagate_support::cluster::SlotMove;
use rand::RngExt;

use crate::fault::{Bounds, Fault, Run, Scene};
use crate::primaries::{self, PRIMARIES};
use crate::rig::{Keeper, Setup};

const CLUSTER: Setup = Setup { keeper: Keeper::Cluster, ..Setup::PLAIN };
/// Load between two steps of a move.
const STEP: Duration = Duration::from_millis(100);

/// The faults of this module.
pub const ALL: &[Fault] = &[
    Fault {
        name: "primary_killed",
        injected: "a primary of the cluster gets SIGKILL, its replica takes over, the old one comes back as a replica",
        bounds: Bounds {
            quotas: 2,
            forgets: Some("a replica may lack the primary's last writes"),
            ..Bounds::STRICT
        },
        only: None,
        run: Run::Under(CLUSTER, primary_killed),
    },
    Fault {
        name: "primary_frozen",
        injected: "a primary gets SIGSTOP until its replica has taken over, then SIGCONT",
        bounds: Bounds {
            quotas: 2,
            forgets: Some("what the old primary had not passed on is lost"),
            ..Bounds::STRICT
        },
        only: None,
        run: Run::Under(CLUSTER, primary_frozen),
    },
    Fault {
        name: "slots_moved",
        injected: "slots of counters in use move to another primary and back, key by key (ASK, MOVED)",
        bounds: Bounds::STRICT,
        only: None,
        run: Run::Under(CLUSTER, slots_moved),
    },
];

fn primary_killed(scene: &mut Scene<'_>) -> Result<()> {
    let (primary, replica) = pair(scene)?;
    let since = Instant::now();
    scene.rig.cluster()?.kill_node(primary)?;
    taken_over(scene, replica, since)?;
    scene.over();
    scene.load.go_on(scene.plan.during);
    let cluster = scene.rig.cluster()?;
    cluster.restart_node(primary)?;
    cluster.wait_until_healthy()
}

fn primary_frozen(scene: &mut Scene<'_>) -> Result<()> {
    let (primary, replica) = pair(scene)?;
    let since = Instant::now();
    scene.rig.cluster()?.freeze_node(primary)?;
    taken_over(scene, replica, since)?;
    scene.rig.cluster()?.thaw_node(primary)?;
    scene.over();
    scene.load.go_on(scene.plan.during);
    scene.rig.cluster()?.wait_until_healthy()
}

/// Draws a primary; it and its replica.
fn pair(scene: &mut Scene<'_>) -> Result<(usize, usize)> {
    let drawn = scene.chance.random_range(0..PRIMARIES);
    primaries::pair(scene.rig.cluster()?, drawn)
}

fn taken_over(scene: &mut Scene<'_>, replica: usize, since: Instant) -> Result<()> {
    primaries::taken_over(scene.rig.cluster()?, replica)?;
    scene.notes.push(format!("taken over after {:.1} s", since.elapsed().as_secs_f64()));
    Ok(())
}

fn slots_moved(scene: &mut Scene<'_>) -> Result<()> {
    let until = Instant::now() + scene.plan.during;
    let load = scene.load;
    let mut moves = 0;
    loop {
        for user in ["open-0", "spend-0", "open-1", "spend-1"] {
            let cluster = scene.rig.cluster()?;
            let there = SlotMove::of(cluster, &format!("header.x-user={user}"))?;
            stepwise(&there, load)?;
            stepwise(&there.back(), load)?;
            moves += 2;
        }
        if Instant::now() >= until {
            scene.notes.push(format!("{moves} moves of slots"));
            return Ok(());
        }
    }
}

fn stepwise(slot: &SlotMove<'_>, load: &crate::load::Load) -> Result<()> {
    slot.begin().context("begin")?;
    load.go_on(STEP);
    for key in slot.left()? {
        slot.key(&key)?;
        load.go_on(STEP);
    }
    slot.end().context("end")?;
    load.go_on(STEP);
    Ok(())
}
