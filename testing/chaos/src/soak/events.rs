//! The events of a soak, in turn: stores and Envoys restart as in a rolling update, and a primary
//! dies.

use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use quotagate_support::envoy::Envoy;
use quotagate_support::store::StoreProcess;

use super::curves::{Process, Sampler};
use crate::fault::RELOADS;
use crate::primaries::{self, PRIMARIES};
use crate::rig::{self, Backend, Rig};

/// The pause between two events.
const PAUSE: Duration = Duration::from_secs(12);
/// Load after the last event, so that the last windows are undisturbed.
const LAST: Duration = Duration::from_secs(15);

/// Something that happened.
#[derive(Debug, Clone)]
pub struct Event {
    /// What.
    pub what: &'static str,
    /// Whether the event may make Redis lose writes.
    pub loses: bool,
    /// Its start and end, since the start of the soak.
    pub span: (Duration, Duration),
    /// The same in seconds since 1970.
    pub epoch: (u64, u64),
}

/// The times in which a window may exceed its quota: from the fault until every window that it may
/// have affected has ended.
#[must_use]
pub fn excused(events: &[Event]) -> Vec<(u64, u64)> {
    events
        .iter()
        .filter(|event| event.loses)
        .map(|event| (event.epoch.0, event.epoch.1 + 1))
        .collect()
}

/// The processes now, by their roles.
#[must_use]
pub fn processes(rig: &Rig) -> Vec<Process> {
    let named = |what: &'static str, pids: Vec<u32>| {
        (1..).zip(pids).map(move |(number, pid): (u32, u32)| (format!("{what} {number}"), pid))
    };
    let nodes =
        if let Backend::Cluster(cluster) = &rig.backend { cluster.pids() } else { Vec::new() };
    let envoys = rig.envoys.iter().map(Envoy::pid).collect();
    let stores = rig.stores.iter().map(StoreProcess::pid).collect();
    named("Envoy", envoys).chain(named("store", stores)).chain(named("Redis", nodes)).collect()
}

/// Runs the events in turn until time is over. Returns them, and how often Envoy restarted virtual
/// machines of the filter meanwhile.
///
/// # Errors
/// When a part does not come up again.
pub fn play(
    rig: &mut Rig,
    sampler: &Sampler,
    begun: Instant,
    length: Duration,
) -> Result<(Vec<Event>, u64)> {
    let (mut events, mut reloads) = (Vec::new(), 0);
    for turn in 0.. {
        sleep(PAUSE.min(length.saturating_sub(begun.elapsed())));
        if begun.elapsed() + LAST + PAUSE >= length {
            break;
        }
        let (from, epoch) = (begun.elapsed(), now()?);
        let (what, loses) = match turn % 6 {
            0 | 3 => (restart_store(rig, turn / 3 % 2)?, false),
            1 | 4 => (restart_envoy(rig, turn / 3 % 2, &mut reloads)?, false),
            2 => (fail_over(rig, sampler, turn / 6 % PRIMARIES)?, true),
            _ => continue,
        };
        sampler.set(processes(rig));
        events.push(Event { what, loses, span: (from, begun.elapsed()), epoch: (epoch, now()?) });
        eprintln!("    {:>4} s: {what}", from.as_secs());
    }
    sleep(length.saturating_sub(begun.elapsed()));
    Ok((events, reloads + rig.stat(RELOADS)?))
}

fn restart_store(rig: &mut Rig, i: usize) -> Result<&'static str> {
    rig.store(i)?.stop()?;
    rig.restart_store(i)?;
    Ok("a store was restarted")
}

/// The statistics end with the process, so they are added up before.
fn restart_envoy(rig: &mut Rig, i: usize, reloads: &mut u64) -> Result<&'static str> {
    let envoy = rig.envoys.get_mut(i).context("no such Envoy")?;
    *reloads += rig::stat(envoy, RELOADS)?;
    envoy.stop()?;
    *envoy = Envoy::start(rig.envoy_options.get(i).context("no such Envoy")?)?;
    Ok("an Envoy was restarted")
}

/// Kills the primary of these slots. It comes back as a replica.
fn fail_over(rig: &mut Rig, sampler: &Sampler, slots: usize) -> Result<&'static str> {
    let cluster = rig.cluster()?;
    let (primary, replica) = primaries::pair(cluster, slots)?;
    cluster.kill_node(primary)?;
    primaries::taken_over(cluster, replica)?;
    cluster.restart_node(primary)?;
    cluster.wait_until_healthy()?;
    sampler.set(processes(rig));
    Ok("a primary of the cluster died, and its replica took over")
}

fn now() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())
}
