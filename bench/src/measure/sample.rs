//! One measurement: a load on one stack, and its cost.

use std::sync::atomic::AtomicBool;

use anyhow::{Result, bail};
use quotagate_support::store::StoreProcess;

use super::{
    counts::Counts,
    cpu::{self, Machine},
    load::{Load, Seen, Wrk},
};
use crate::{
    rig::{Rig, Running, Server},
    stacks::{Due, Stack},
};

/// How many requests of each user a stack that refuses may admit: the first, and one more if the
/// window ends.
const ADMITTED: u64 = 2;

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
    /// Calls to the store beside Envoy for each request.
    pub calls: f64,
    /// Scripts in Redis for each request.
    pub scripts: f64,
    /// The part of the machine that other programs used meanwhile, 0 to 1.
    pub foreign: f64,
}

/// Microseconds of processor time for each request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cpu {
    /// Time of the Envoy under measurement.
    pub envoy: f64,
    /// Time of the upstream.
    pub upstream: f64,
    /// Time of the store.
    pub store: f64,
    /// Time of all Redis servers.
    pub redis: f64,
}

impl Cpu {
    /// The sum of all parts.
    pub fn all(&self) -> f64 {
        self.envoy + self.upstream + self.store + self.redis
    }
}

/// Sends a load to a stack.
///
/// # Errors
/// When the load cannot be sent, or an answer is wrong: then it is no measurement.
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
    if let Some(fault) = fault(running.stack, load, &counts, &seen) {
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

/// Why the answers are wrong.
fn fault(stack: Stack, load: Load, counts: &Counts, seen: &Seen) -> Option<String> {
    if seen.broken > 0 {
        return Some(format!("{} connections failed, broke or waited too long", seen.broken));
    }
    let wrong = match stack.due() {
        Due::Uncounted | Due::Counted => counts.refused + counts.other,
        Due::Refused if counts.ok <= ADMITTED * u64::from(load.users) => counts.other,
        Due::Refused => counts.ok + counts.other,
    };
    if wrong > 0 || counts.answers() == 0 {
        let Counts { ok, refused, other, .. } = counts;
        return Some(format!("wrong answers: {ok} of 2xx, {refused} of 4xx, {other} others"));
    }
    let Counts { calls, .. } = counts;
    let answers = counts.answers();
    let called = match stack {
        Stack::D | Stack::E | Stack::F => *calls > 0,
        Stack::H | Stack::T | Stack::U | Stack::V => calls * 10 >= answers * 9,
        Stack::A | Stack::B | Stack::C | Stack::K | Stack::L | Stack::Q => *calls == 0,
        // A worker of the native module asks once for each user, and then refuses by itself.
        Stack::P => *calls == 0,
        // The native module does not call through Envoy.
        Stack::M | Stack::N | Stack::O | Stack::R | Stack::S | Stack::W => {
            *calls == 0 && counts.scripts > 0
        }
        Stack::G | Stack::I | Stack::J => true,
    };
    (!called).then(|| format!("{calls} calls for {answers} requests: wrong for this stack"))
}

/// Processor time of each part, in clock ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    envoy: u64,
    upstream: u64,
    store: u64,
    redis: u64,
    /// The processor time of all parts of all stacks, of this task and of its children.
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

    /// The part of the machine that other programs used.
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
    fn unexpected_response_is_an_error() {
        let counts = |ok, refused, other| Counts { ok, refused, other, ..Counts::default() };
        let load = Load { connections: 1, users: 3, seconds: 1 };
        for (stack, counts, broken, right) in [
            (Stack::A, counts(100, 0, 0), 0, true),
            (Stack::G, counts(100, 0, 0), 0, true),
            (Stack::G, counts(99, 1, 0), 0, false),
            (Stack::G, counts(99, 0, 1), 0, false),
            (Stack::G, counts(100, 0, 0), 1, false),
            (Stack::G, counts(0, 0, 0), 0, false),
            (Stack::I, counts(0, 100, 0), 0, true),
            (Stack::I, counts(6, 94, 0), 0, true),
            (Stack::I, counts(7, 93, 0), 0, false),
            (Stack::I, counts(0, 99, 1), 0, false),
        ] {
            let right_so_far = fault(stack, load, &counts, &seen(broken)).is_none();
            assert_eq!(right_so_far, right, "{stack} {counts:?} {broken}");
        }
    }

    #[test]
    fn stack_with_unexpected_calls_is_an_error() {
        let load = Load { connections: 1, users: 1, seconds: 1 };
        for (stack, calls, scripts, right) in [
            (Stack::A, 0, 0, true),
            (Stack::C, 1, 0, false),
            (Stack::E, 0, 0, false),
            (Stack::E, 10, 0, true),
            (Stack::H, 89, 0, false),
            (Stack::H, 100, 0, true),
            (Stack::M, 0, 1, true),
            (Stack::M, 0, 0, false),
            (Stack::M, 1, 1, false),
            (Stack::N, 0, 0, false),
        ] {
            let counts = Counts { ok: 100, calls, scripts, ..Counts::default() };
            let right_so_far = fault(stack, load, &counts, &seen(0)).is_none();
            assert_eq!(right_so_far, right, "{stack} {calls} {scripts}");
        }
    }

    #[test]
    fn processor_time_of_other_programs_is_foreign() {
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
        // This task's own time may be known a tick earlier than the machine's.
        assert!(ticks(5, 4, 100).foreign().abs() < 1e-9);
    }
}
