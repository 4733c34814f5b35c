//! Changes under load lose no request, and neither does the end of Envoy Gateway.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use quotagate_support::http::{Client, Request};
use serde_json::{Value, json};

use crate::checks::Checks;

use super::gateways::{Gateways, PORTS, get};

const ROUTE: &str = "changing";
const HOST: &str = "changing.example";
/// How many clients send while something changes.
const CLIENTS: usize = 4;
/// How long Envoy Gateway is away.
const AWAY: Duration = Duration::from_secs(3);

/// Runs the checks.
pub fn check(gateways: &Gateways, checks: &mut Checks) {
    let document = |quota: u32| -> Result<()> {
        let document: Value = gateways.document(ROUTE, quota, &json!({"client_ip": {}}));
        gateways.plane.put(&gateways.routed(ROUTE, &document))?;
        gateways.until_limit(HOST, quota)
    };
    checks.check("eg.changes", "changes of the document under load lose no request", || {
        document(500_000)?;
        let load = under_load(&get(HOST), || {
            [1_000_000, 2_000_000, 3_000_000, 4_000_000].into_iter().try_for_each(&document)
        })?;
        Ok(format!("4 documents: {load}"))
    });
    checks.check(
        "eg.control_plane",
        "a killed Envoy Gateway loses no request, and comes back",
        || {
            let load = under_load(&get(HOST), || {
                gateways.plane.kill()?;
                thread::sleep(AWAY);
                gateways.plane.restart()?;
                document(5_000_000)
            })?;
            Ok(format!("killed, away for 3 s, then a new document: {load}"))
        },
    );
}

/// Sends a request again and again while `change` runs. Says how many were answered, and fails if
/// one was not. Clients obey `connection: close`.
pub fn under_load(request: &Request, change: impl FnOnce() -> Result<()>) -> Result<String> {
    let (stop, sent, closed) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let client = || -> Result<()> {
        let mut client = Client::connect(PORTS[0])?;
        while !stop.load(Relaxed) {
            let answer = client.send(request)?;
            ensure!(matches!(answer.status, 200 | 429), "{answer:?}");
            sent.fetch_add(1, Relaxed);
            if answer.header("connection") == Some("close") {
                closed.fetch_add(1, Relaxed);
                client = Client::connect(PORTS[0])?;
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let changed = change();
        stop.store(true, Relaxed);
        for client in clients {
            client.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        changed
    })?;
    let (sent, closed) = (sent.into_inner(), closed.into_inner());
    Ok(format!("0 of {sent} requests lost, {closed} connections closed"))
}
