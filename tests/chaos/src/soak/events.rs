//! What happens during a soak, in turn: stores and Envoys are restarted as in a rolling update, a primary dies.

use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use quotagate_support::envoy::Envoy;
use quotagate_support::store::StoreProcess;
use quotagate_support::wait;

use super::curves::{Process, Sampler};
use crate::rig::{Backend, Rig};

/// From the end of one to the begin of the next.
const PAUSE: Duration = Duration::from_secs(12);
/// Load before the end, so that the last windows are undisturbed.
const LAST: Duration = Duration::from_secs(15);
/// How long a replica may take to be elected.
const ELECTED: Duration = Duration::from_secs(30);
/// Primaries, and as many replicas.
const PRIMARIES: usize = 3;

/// Something that happened.
#[derive(Debug, Clone)]
pub struct Event {
    /// What.
    pub what: &'static str,
    /// Whether Redis may have lost writes by it.
    pub loses: bool,
    /// From the begin of the soak to its begin and end.
    pub span: (Duration, Duration),
    /// The same in seconds since 1970.
    pub epoch: (u64, u64),
}

/// The spans in which a quota may be passed: from the fault until what it lost is of no window any more.
#[must_use]
pub fn excused(events: &[Event]) -> Vec<(u64, u64)> {
    events.iter().filter(|event| event.loses).map(|event| (event.epoch.0, event.epoch.1 + 1)).collect()
}

/// The processes now, by the parts that they play.
#[must_use]
pub fn processes(rig: &Rig) -> Vec<Process> {
    let named = |what: &'static str, pids: Vec<u32>| {
        (1..).zip(pids).map(move |(number, pid): (u32, u32)| (format!("{what} {number}"), pid))
    };
    let nodes = if let Backend::Cluster(cluster) = &rig.backend { cluster.pids() } else { Vec::new() };
    let envoys = rig.envoys.iter().map(Envoy::pid).collect();
    let stores = rig.stores.iter().map(StoreProcess::pid).collect();
    named("Envoy", envoys).chain(named("store", stores)).chain(named("Redis", nodes)).collect()
}

/// Lets one after the other happen until the time is over.
///
/// # Errors
/// When a part does not come up again.
pub fn play(rig: &mut Rig, sampler: &Sampler, begun: Instant, length: Duration) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    for turn in 0.. {
        sleep(PAUSE.min(length.saturating_sub(begun.elapsed())));
        if begun.elapsed() + LAST + PAUSE >= length {
            break;
        }
        let (from, epoch) = (begun.elapsed(), now()?);
        let (what, loses) = match turn % 6 {
            0 | 3 => (restart_store(rig, turn / 3 % 2)?, false),
            1 | 4 => (restart_envoy(rig, turn / 3 % 2)?, false),
            2 => (fail_over(rig, sampler, turn / 6 % PRIMARIES)?, true),
            _ => continue,
        };
        sampler.set(processes(rig));
        events.push(Event { what, loses, span: (from, begun.elapsed()), epoch: (epoch, now()?) });
        eprintln!("    {:>4} s: {what}", from.as_secs());
    }
    sleep(length.saturating_sub(begun.elapsed()));
    Ok(events)
}

fn restart_store(rig: &mut Rig, i: usize) -> Result<&'static str> {
    rig.store(i)?.stop()?;
    rig.restart_store(i)?;
    Ok("a store was restarted")
}

fn restart_envoy(rig: &mut Rig, i: usize) -> Result<&'static str> {
    rig.envoys.get_mut(i).context("no such Envoy")?.stop()?;
    let started = Envoy::start(rig.envoy_options.get(i).context("no such Envoy")?)?;
    *rig.envoys.get_mut(i).context("no such Envoy")? = started;
    Ok("an Envoy was restarted")
}

/// Whoever leads these slots dies; it comes back as a replica.
fn fail_over(rig: &mut Rig, sampler: &Sampler, slots: usize) -> Result<&'static str> {
    let cluster = rig.cluster()?;
    let leads = |cluster: &quotagate_support::cluster::Cluster, node: usize| -> Result<bool> {
        Ok(cluster.cli(node, &["INFO", "replication"])?.lines().contains("role:master"))
    };
    let (primary, replica) =
        if leads(cluster, slots)? { (slots, slots + PRIMARIES) } else { (slots + PRIMARIES, slots) };
    cluster.kill_node(primary)?;
    wait::until_true("a replica to take over", ELECTED, || {
        let sound = cluster.cli(replica, &["CLUSTER", "INFO"])?.lines().contains("cluster_state:ok");
        Ok(sound && leads(cluster, replica)?)
    })?;
    cluster.restart_node(primary)?;
    cluster.wait_until_healthy()?;
    sampler.set(processes(rig));
    Ok("a primary of the cluster died, and its replica took over")
}

fn now() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())
}
