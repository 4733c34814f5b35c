//! Stores that hang, die, or lose Redis.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use quotagate_support::wait;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::checks::Checks;

use crate::istio::exact::{SENT, counted, exact};
use crate::istio::mesh::{Mesh, PUSH, Verdict, Verdicts, by};

/// How long a proxy may call a store that does not answer: two checks that come every second and
/// wait 250 ms, and as much again for a machine that is busy.
const LEFT_OUT: Duration = Duration::from_secs(5);
/// How long a fault lasts.
const FAULT: Duration = Duration::from_secs(10);
/// The cluster that istiod makes for the stores.
pub const CLUSTER: &str = "outbound|9180||quotagate-store.quotagate.svc.cluster.local";

/// Runs the checks.
pub fn check(mesh: &mut Mesh, checks: &mut Checks) {
    checks.check("istio.timeout", "250 ms are enough for mutual TLS: exact under load", || {
        let mut seen = Vec::new();
        for number in 0..4 {
            seen.push(exact(&mesh.burst(&by(&format!("timeout-{number}"))?, SENT)?)?);
        }
        Ok(seen.join(", "))
    });
    checks.check("istio.frozen", "a store that hangs is left out within 5 s", || {
        let seen = fault(mesh, |mesh| mesh.first()?.signal_store(Signal::STOP));
        mesh.first()?.signal_store(Signal::CONT)?;
        healthy_again(mesh)?;
        seen
    });
    checks.check("istio.cut", "a store whose node is cut off is left out within 5 s", || {
        let seen = fault(mesh, |mesh| mesh.first()?.network.cut());
        mesh.first()?.network.mend()?;
        healthy_again(mesh)?;
        seen
    });
    checks.check(
        "istio.dead",
        "a store that dies behind its sidecar is left out within 5 s",
        || {
            let seen = fault(mesh, |mesh| mesh.first()?.signal_store(Signal::KILL));
            let Mesh { stores, plane, .. } = mesh;
            stores.first_mut().context("no store")?.restart_store(plane)?;
            healthy_again(mesh)?;
            seen
        },
    );
    checks.check(
        "istio.redis",
        "without Redis all requests pass; afterwards quotas are exact",
        || {
            mesh.plane.network.hub.within(|| mesh.redis.stop())?;
            wait::until_true("failed checks", PUSH, || Ok(health(mesh)? == [false, false]))?;
            let down = mesh.burst(&by("redis")?, SENT)?;
            mesh.plane.network.hub.within(|| mesh.redis.restart())?;
            healthy_again(mesh)?;
            counted(mesh)?;
            let back = exact(&mesh.burst(&by("redis")?, SENT)?)?;
            ensure!(down == Verdicts::from([(Verdict::Uncounted, SENT)]), "{down:?}");
            Ok(format!("{SENT} of {SENT} pass while it is away, then {back}"))
        },
    );
}

/// The stores, as the gateway sees them.
fn hosts(mesh: &Mesh) -> Result<Vec<Value>> {
    let clusters: Value = serde_json::from_str(&mesh.gateway.admin("/clusters?format=json")?)?;
    let mut clusters = clusters["cluster_statuses"].as_array().into_iter().flatten();
    let cluster = clusters.find(|cluster| cluster["name"] == CLUSTER);
    let hosts = cluster.context("no cluster of the store")?["host_statuses"].as_array();
    Ok(hosts.cloned().unwrap_or_default())
}

/// Which stores the gateway's checks find healthy.
fn health(mesh: &Mesh) -> Result<Vec<bool>> {
    let healthy = |host: &Value| {
        let status = &host["health_status"];
        status["failed_active_health_check"] != true
            && status["failed_outlier_check"] != true
            && status["eds_health_status"] == "HEALTHY"
    };
    Ok(hosts(mesh)?.iter().map(healthy).collect())
}

fn healthy_again(mesh: &Mesh) -> Result<()> {
    wait::until_true("healthy stores", PUSH, || Ok(health(mesh)? == [true, true]))
}

/// Does something to a store under load. Fails if it is not left out in time, or is called after
/// that.
fn fault(mesh: &Mesh, fault: impl FnOnce(&Mesh) -> Result<()>) -> Result<String> {
    const CLIENTS: usize = 4;
    let (stop, answers) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let client = |number: usize| -> Result<()> {
        let mut client = mesh.connect()?;
        let mut subject = 0;
        while !stop.load(Relaxed) {
            // Each subject has a quota of its own, and few requests.
            subject += 1;
            let request = by(&format!("fault-{number}-{}", subject / 50))?;
            let answer = client.send(&request)?;
            ensure!(matches!(answer.status, 200 | 429), "{answer:?}");
            let counted = answer.header("x-ratelimit-limit").is_some();
            answers.lock().map_err(|_| anyhow!("poisoned"))?.push(counted);
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    };
    let left_out = thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        let left_out = called(mesh).and_then(|()| {
            let begin = Instant::now();
            fault(mesh)?;
            wait::until_true("a store that is left out", LEFT_OUT, || {
                Ok(health(mesh)?.contains(&false))
            })?;
            let after = begin.elapsed();
            thread::sleep(LEFT_OUT.saturating_sub(begin.elapsed()));
            let before = calls(mesh)?;
            thread::sleep(FAULT.saturating_sub(begin.elapsed()));
            Ok((after, calls(mesh)? - before))
        });
        stop.store(true, Relaxed);
        for client in clients {
            client.join().map_err(|_| anyhow!("a client has panicked"))??;
        }
        left_out
    })?;
    let answers = answers.into_inner().map_err(|_| anyhow!("poisoned"))?;
    let uncounted = answers.iter().filter(|counted| !**counted).count();
    let (after, late) = left_out;
    let seen = format!(
        "left out after {:.1} s, {uncounted} of {} uncounted, {late} calls after 5 s",
        after.as_secs_f64(),
        answers.len()
    );
    ensure!(late == 0, "{seen}");
    Ok(seen)
}

/// Waits until the gateway calls the store that faults happen to.
fn called(mesh: &Mesh) -> Result<()> {
    healthy_again(mesh)?;
    let before = calls(mesh)?;
    wait::until_true("calls to the store", PUSH, || {
        Ok(calls(mesh)? > before && health(mesh)? == [true, true])
    })
}

/// How many calls the gateway has sent to the store that faults happen to.
fn calls(mesh: &Mesh) -> Result<u64> {
    let address = json!(mesh.first()?.network.address);
    let hosts = hosts(mesh)?;
    let of = |host: &&Value| host["address"]["socket_address"]["address"] == address;
    let host = hosts.iter().find(of).context("the gateway does not know the store")?;
    let mut counters = host["stats"].as_array().into_iter().flatten();
    let calls = counters.find(|counter| counter["name"] == "rq_total");
    let calls = calls.and_then(|counter| counter["value"].as_str()).unwrap_or("0");
    Ok(calls.parse()?)
}
