//! Faults of the filter itself: configurations in quick succession, and virtual machines that die.

use std::time::{Duration, Instant};

use anyhow::Result;
use quotagate_support::envoy::Form;
use quotagate_support::http::{Client, Request};
use rand::RngExt;

use crate::document::QUOTA;
use crate::fault::{Bounds, Breaks, Fault, Run, Scene};
use crate::rig::{Proxies, Setup};

/// Between two configurations.
const PACE: Duration = Duration::from_secs(1);
/// A quota below [`QUOTA`], in force every other second.
const LESS: u64 = 6;
/// The pause between two panics: Envoy restarts a virtual machine at most once a second.
const CALM: Duration = Duration::from_millis(500);

/// A listener that is replaced drains: each of its connections ends once.
const DRAINED: Breaks = Breaks { statuses: &[], one_in: 6 };
/// Envoy ends the requests that wait in a machine that dies: with 503, or by closing the connection
/// if the answer has begun.
const DIED: Breaks = Breaks { statuses: &[503], one_in: 10 };

/// The faults of this module.
pub const ALL: &[Fault] = &[
    Fault {
        name: "configurations_pushed",
        injected: "file-based LDS brings a new configuration every second, its quota 6, 10, 6, ...",
        bounds: Bounds { breaks: Some(DRAINED), ..Bounds::STRICT },
        only: None,
        run: Run::Under(Setup { envoys: Proxies::Watching, ..Setup::PLAIN }, configurations_pushed),
    },
    Fault {
        name: "machines_died",
        injected: "requests that make the filter panic, each killing the VM of a worker (a build for tests)",
        bounds: Bounds { breaks: Some(DIED), reloads: true, ..Bounds::STRICT },
        only: Some(Form::Wasm),
        run: Run::Under(Setup { envoys: Proxies::Panicking, ..Setup::PLAIN }, machines_died),
    },
];

fn configurations_pushed(scene: &mut Scene<'_>) -> Result<()> {
    let until = Instant::now() + scene.plan.during;
    for quota in [LESS, QUOTA].into_iter().cycle() {
        scene.rig.publish(scene.chance.random(), quota)?;
        scene.load.go_on(PACE);
        if quota == QUOTA && Instant::now() >= until {
            break;
        }
    }
    Ok(())
}

fn machines_died(scene: &mut Scene<'_>) -> Result<()> {
    let until = Instant::now() + scene.plan.during;
    let ports = scene.rig.ports();
    while Instant::now() < until {
        let victim = scene.chance.random_range(0..ports.len());
        if let Some(&port) = ports.get(victim) {
            // Its answer is Envoy's own: 503, or a connection that ends.
            let _ = Client::connect(port)?
                .send(&Request::get("/open").header("x-quotagate-panic", "1"));
        }
        scene.load.go_on(CALM);
    }
    Ok(())
}
