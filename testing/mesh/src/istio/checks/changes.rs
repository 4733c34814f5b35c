//! Changes under load lose no request.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};

use crate::checks::Checks;

use crate::istio::checks::identities::deny;
use crate::istio::mesh::{Mesh, by, get};

/// How many clients send while something changes.
const CLIENTS: usize = 4;
/// How often document and policies change.
const ROUNDS: usize = 5;
/// What each of them waits between requests, so that the control plane gets its share.
const PAUSE: Duration = Duration::from_millis(3);

/// Runs the checks.
pub fn check(mesh: &Mesh, checks: &mut Checks) {
    checks.check("istio.push", "changes of document and policies lose no request", || {
        let under = under_load(mesh, || {
            for round in 0..ROUNDS {
                for quota in 1_000..1_004 {
                    mesh.document(quota + round)?;
                }
                mesh.plane.api.apply(&deny("/push"))?;
                mesh.until("the policy", &get("/push"), |answer| answer.status == 403)?;
                mesh.plane.api.delete(&deny("/push"))?;
            }
            mesh.restore()
        });
        Ok(format!("{} documents, {} pushes of a policy: {}", 4 * ROUNDS, 2 * ROUNDS, under?))
    });
    checks.check("istio.restart", "a killed istiod loses no request, and comes back", || {
        let under = under_load(mesh, || {
            mesh.plane.kill_istiod();
            thread::sleep(Duration::from_secs(3));
            mesh.plane.start_istiod(&[])?;
            mesh.document(500)?;
            mesh.restore()
        });
        Ok(format!("killed, away for 3 s, then a new document: {}", under?))
    });
}

/// Sends requests while `change` runs. Says how many were answered, and fails if one was not.
pub fn under_load(mesh: &Mesh, change: impl FnOnce() -> Result<()>) -> Result<String> {
    let (stop, sent, lost) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let client = |number: usize| -> Result<()> {
        let request = by(&format!("load-{number}"))?;
        let mut client = mesh.connect()?;
        while !stop.load(Relaxed) {
            thread::sleep(PAUSE);
            sent.fetch_add(1, Relaxed);
            match client.send(&request) {
                Ok(answer) if matches!(answer.status, 200 | 429) => {
                    // As Envoy says when a changed listener takes the place of an old one.
                    if answer.header("connection") == Some("close") {
                        client = mesh.connect()?;
                    }
                }
                _ => {
                    lost.fetch_add(1, Relaxed);
                    client = mesh.connect()?;
                }
            }
        }
        Ok(())
    };
    let changed = thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        let changed = change();
        stop.store(true, Relaxed);
        for client in clients {
            client.join().map_err(|_| anyhow!("a client has panicked"))??;
        }
        changed
    });
    changed?;
    let (sent, lost) = (sent.into_inner(), lost.into_inner());
    ensure!(lost == 0, "{lost} of {sent} requests lost");
    Ok(format!("0 of {sent} requests lost"))
}
