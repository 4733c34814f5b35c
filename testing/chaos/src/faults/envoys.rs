//! Envoys that end and come back.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quotagate_support::envoy::Envoy;
use rand::RngExt;

use crate::fault::{Bounds, Breaks, Fault, Run, Scene};
use crate::rig::{Rig, Setup};

/// Clients of the Envoy that ends lose their connections: half of all, while it is away. For them
/// it has healed once it has started.
const LOST: Bounds = Bounds { breaks: Some(Breaks { statuses: &[], one_in: 3 }), ..Bounds::STRICT };

/// The faults of this module.
pub const ALL: &[Fault] = &[
    Fault {
        name: "envoy_restarted",
        injected: "one of two Envoys gets SIGTERM, and is started again",
        bounds: LOST,
        only: None,
        run: Run::Under(Setup::PLAIN, restarted),
    },
    Fault {
        name: "envoy_killed",
        injected: "one of two Envoys gets SIGKILL, and is started again",
        bounds: LOST,
        only: None,
        run: Run::Under(Setup::PLAIN, killed),
    },
];

fn restarted(scene: &mut Scene<'_>) -> Result<()> {
    let victim = scene.chance.random_range(0..scene.rig.envoys.len());
    let since = Instant::now();
    envoy(scene.rig, victim)?.stop()?;
    come_back(scene, victim, since)
}

fn killed(scene: &mut Scene<'_>) -> Result<()> {
    let victim = scene.chance.random_range(0..scene.rig.envoys.len());
    let since = Instant::now();
    envoy(scene.rig, victim)?.kill()?;
    come_back(scene, victim, since)
}

/// Starts the Envoy again that has been away since then.
fn come_back(scene: &mut Scene<'_>, victim: usize, since: Instant) -> Result<()> {
    scene.load.go_on(Duration::from_millis(500));
    let options = scene.rig.envoy_options.get(victim).context("no such Envoy")?;
    let started = Envoy::start(options)?;
    *envoy(scene.rig, victim)? = started;
    scene.over();
    // The load goes on for as long again, so that the share of lost requests does not depend on how
    // long the machine takes to start an Envoy.
    scene.load.go_on(since.elapsed());
    Ok(())
}

fn envoy(rig: &mut Rig, i: usize) -> Result<&mut Envoy> {
    rig.envoys.get_mut(i).context("no such Envoy")
}
