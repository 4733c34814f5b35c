//! One measurement: a load on one stack, and what it took.

use std::sync::atomic::AtomicBool;

use anyhow::{Result, bail};
use quotagate_support::store::StoreProcess;

use super::{
    counts::Counts,
    cpu::{self, Machine},
    load::{Load, Seen, Wrk},
    rig::{Rig, Running, Server},
    stacks::{Due, Stack},
};

/// Of 100 answers of a stack that refuses, so many may be others: each user's first request is admitted.
const ADMITTED_PERCENT: u64 = 5;

/// What one measurement saw.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Which stack.
    pub stack: Stack,
    /// Which load.
    pub load: Load,
    /// In which round.
    pub round: u32,
    /// What the client saw.
    pub seen: Seen,
    /// Processor time.
    pub cpu: Cpu,
    /// Calls to the store for each request.
    pub calls: f64,
    /// Scripts in Redis for each request.
    pub scripts: f64,
    /// The part of the machine that others used meanwhile, 0 to 1.
    pub foreign: f64,
}

/// Microseconds of processor time for each request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cpu {
    /// Of the Envoy under measurement.
    pub envoy: f64,
    /// Of the upstream.
    pub upstream: f64,
    /// Of the store.
    pub store: f64,
    /// Of all Redis servers.
    pub redis: f64,
}

impl Cpu {
    /// Of all of them.
    pub fn all(&self) -> f64 {
        self.envoy + self.upstream + self.store + self.redis
    }
}

/// Sends a load to a stack.
///
/// # Errors
/// When it cannot be sent, or when answers are not what they should be: that is no measurement.
pub fn take(
    rig: &Rig,
    running: &Running,
    wrk: &Wrk,
    load: Load,
    round: u32,
    interrupted: &AtomicBool,
) -> Result<Sample> {
    let counts = Counts::of(running)?;
    let before = Ticks::now(rig, running)?;
    let seen = wrk.send(load, running.envoy.port(), interrupted)?;
    let ticks = Ticks::now(rig, running)?.since(&before);
    let counts = Counts::of(running)?.since(counts);
    if let Some(fault) = fault(running.stack.due(), &counts, &seen) {
        bail!("{} with {} connections: {fault}", running.stack, load.connections);
    }
    let each = |amount: f64| amount / counts.answers() as f64;
    Ok(Sample {
        stack: running.stack,
        load,
        round,
        seen,
        cpu: Cpu {
            envoy: each(cpu::micros(ticks.envoy)),
            upstream: each(cpu::micros(ticks.upstream)),
            store: each(cpu::micros(ticks.store)),
            redis: each(cpu::micros(ticks.redis)),
        },
        calls: each(counts.calls as f64),
        scripts: each(counts.scripts as f64),
        foreign: ticks.foreign(),
    })
}

/// Why answers are not what they should be.
fn fault(due: Due, counts: &Counts, seen: &Seen) -> Option<String> {
    if seen.broken > 0 {
        return Some(format!("{} connections failed, broke or waited too long", seen.broken));
    }
    let wrong = match due {
        Due::Uncounted | Due::Counted => counts.refused + counts.other,
        Due::Refused if counts.ok * 100 <= counts.answers() * ADMITTED_PERCENT => counts.other,
        Due::Refused => counts.ok + counts.other,
    };
    (wrong > 0 || counts.answers() == 0).then(|| {
        let Counts { ok, refused, other, .. } = counts;
        format!("answers are not what they should be: {ok} of 2xx, {refused} of 4xx, {other} others")
    })
}

/// Processor time of each part, in clock ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    envoy: u64,
    upstream: u64,
    store: u64,
    redis: u64,
    /// Of all parts of all stacks, and of what this task has run.
    ours: u64,
    machine: Machine,
}

impl Ticks {
    fn now(rig: &Rig, running: &Running) -> Result<Self> {
        let sum = |pids: &[u32]| pids.iter().map(|&pid| cpu::used(pid)).sum::<Result<u64>>();
        let redis: Vec<u32> = running.redis.iter().map(|&Server { pid, .. }| pid).collect();
        Ok(Self {
            envoy: cpu::used(running.envoy.pid())?,
            upstream: cpu::used(rig.upstream())?,
            store: running.store.as_ref().map(StoreProcess::pid).map_or(Ok(0), cpu::used)?,
            redis: sum(&redis)?,
            ours: sum(&rig.processes())? + cpu::own()?,
            machine: cpu::machine()?,
        })
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            envoy: self.envoy.saturating_sub(earlier.envoy),
            upstream: self.upstream.saturating_sub(earlier.upstream),
            store: self.store.saturating_sub(earlier.store),
            redis: self.redis.saturating_sub(earlier.redis),
            ours: self.ours.saturating_sub(earlier.ours),
            machine: self.machine.since(earlier.machine),
        }
    }

    /// The part of the machine that others used.
    fn foreign(&self) -> f64 {
        Machine { busy: self.machine.busy.saturating_sub(self.ours), ..self.machine }.share()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(broken: u64) -> Seen {
        Seen { rate: 1.0, p50_ms: 1.0, p99_ms: 1.0, requests: 1, refused: 0, broken }
    }

    #[test]
    fn an_answer_that_is_not_due_is_an_error() {
        let counts = |ok, refused, other| Counts { ok, refused, other, ..Counts::default() };
        for (due, counts, broken, right) in [
            (Due::Uncounted, counts(100, 0, 0), 0, true),
            (Due::Counted, counts(100, 0, 0), 0, true),
            (Due::Counted, counts(99, 1, 0), 0, false),
            (Due::Counted, counts(99, 0, 1), 0, false),
            (Due::Counted, counts(100, 0, 0), 1, false),
            (Due::Counted, counts(0, 0, 0), 0, false),
            (Due::Refused, counts(0, 100, 0), 0, true),
            (Due::Refused, counts(5, 95, 0), 0, true),
            (Due::Refused, counts(6, 94, 0), 0, false),
            (Due::Refused, counts(0, 99, 1), 0, false),
        ] {
            assert_eq!(fault(due, &counts, &seen(broken)).is_none(), right, "{due:?} {counts:?} {broken}");
        }
    }

    #[test]
    fn what_is_not_ours_is_foreign() {
        let ticks = |ours, busy, total| Ticks {
            envoy: 0,
            upstream: 0,
            store: 0,
            redis: 0,
            ours,
            machine: Machine { busy, total },
        };
        let between = ticks(150, 190, 600).since(&ticks(50, 70, 400));
        assert!((between.foreign() - 0.1).abs() < 1e-9);
        // Our own time may be known a tick earlier than the machine's.
        assert!(ticks(5, 4, 100).foreign().abs() < 1e-9);
    }
}
