//! `cargo xtask bench --service`: the rate limit service alone, beside envoyproxy/ratelimit if its
//! program is given, and then both behind Envoy.
//!
//! Each service runs as it is shipped, with one Redis for all. They are measured in turn, round
//! after round, by a client that waits for each answer.

mod load;
pub mod parts;
mod report;

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use quotagate_support::{
    process::raise_file_limit, redis::Redis, resp, store::StoreProcess, tools,
};
use quotagate_workspace::task;

use crate::{
    instructions::callgrind::Callgrind,
    measure::{
        cpu::{self, Machine},
        load::{Load, Seen},
        ping,
    },
};
use load::End;
use parts::{ServiceParts, Subject};

/// A value whose limit is used up.
const SPENT: &str = "spent";
const ROUNDS: u32 = 5;
const SECONDS: u32 = 2;
/// Connections, keys, and whether they are used up.
const LOADS: [(u32, u32, &str); 7] = [
    (1, 1, "user"),
    (32, 1, "user"),
    (128, 1, "user"),
    (1, 1000, "user"),
    (32, 1000, "user"),
    (128, 1000, "user"),
    (32, 1, SPENT),
];
/// Calls of each connection before callgrind counts, and while it counts.
const CALLS: u32 = 100;

/// One measurement.
#[derive(Debug, Clone, Copy)]
struct ServiceSample {
    subject: Subject,
    /// Its index in [`LOADS`].
    load: usize,
    round: u32,
    seen: Seen,
    /// Microseconds of processor time for each decision.
    service: f64,
    redis: f64,
    /// The part of the machine that other programs used meanwhile, 0 to 1.
    foreign: f64,
}

/// Measures the services alone. Returns the report.
pub fn run(parts: &ServiceParts, interrupted: &AtomicBool) -> Result<String> {
    raise_file_limit()?;
    task::step("bench: the rate limit service alone");
    let redis = Redis::start()?;
    let subjects = parts.subjects();
    let start = |subject: &Subject| Ok((*subject, parts.start(*subject, &redis, &[])?));
    let running: Vec<(Subject, StoreProcess)> =
        subjects.iter().map(start).collect::<Result<_>>()?;
    let (mut samples, mut pings) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        pings.extend(ping::take(redis.port())?);
        for load in 0..LOADS.len() {
            // Each round begins with another one, so that none always follows the same one.
            let (later, first) = running.split_at(round as usize % running.len().max(1));
            for (subject, service) in first.iter().chain(later) {
                let sample = measure(*subject, service, &redis, load, round)?;
                if interrupted.load(Ordering::SeqCst) {
                    bail!("interrupted");
                }
                task::note(&report::line(&sample));
                samples.push(sample);
            }
        }
    }
    Ok(report::tables(&samples, &pings))
}

fn measure(
    subject: Subject,
    service: &StoreProcess,
    redis: &Redis,
    load: usize,
    round: u32,
) -> Result<ServiceSample> {
    let &(connections, users, value) = LOADS.get(load).context("no such load")?;
    let of = |seconds| Load { connections, users, seconds };
    let port = service.port();
    let send = |seconds| {
        load::send(of(seconds), End::Time, value, port).with_context(|| {
            format!("{}, {connections} connections, {users} keys", subject.title())
        })
    };
    send(1)?;
    let redis_pid = pid(redis)?;
    let before = ServiceTicks::now(service, redis_pid)?;
    let seen = send(SECONDS)?;
    let ticks = ServiceTicks::now(service, redis_pid)?.since(&before);
    let wrong = if value == SPENT { seen.requests - seen.refused } else { seen.refused };
    ensure!(wrong == 0, "{}: {wrong} of {} answers are wrong", subject.title(), seen.requests);
    let each = |amount: f64| amount / seen.requests as f64;
    Ok(ServiceSample {
        subject,
        load,
        round,
        seen,
        service: each(cpu::micros(ticks.service)),
        redis: each(cpu::micros(ticks.redis)),
        foreign: Machine { busy: ticks.machine.busy.saturating_sub(ticks.ours()), ..ticks.machine }
            .share(),
    })
}

/// Counts the instructions of our service for each decision. Returns the report.
pub fn instructions(parts: &ServiceParts) -> Result<String> {
    task::step("bench: instructions of the rate limit service, counted by callgrind");
    let redis = Redis::start()?;
    let mut rows = Vec::new();
    for subject in [Subject::Exact, Subject::Lease] {
        let callgrind = Callgrind::new(tools::instructions()?.0)?;
        let service = parts.start(subject, &redis, &callgrind.command())?;
        let mut counted = Vec::new();
        for connections in [32, 1] {
            let load = Load { connections, users: 1, seconds: 0 };
            let send = |calls| load::send(load, End::Calls(calls), "user", service.port());
            send(CALLS)?;
            callgrind.begin(service.pid())?;
            let seen = send(CALLS * if connections == 1 { 10 } else { 1 })?;
            let name = format!("service.{subject:?}.{connections}");
            let counts = callgrind.end(service.pid(), "quotagate", &name)?;
            let each = |count: u64| count as f64 / seen.requests as f64;
            counted.push((each(counts.total), each(counts.allocations)));
        }
        rows.push((subject, counted));
    }
    Ok(report::instructions(&rows))
}

/// Processor time in clock ticks.
#[derive(Debug, Clone, Copy)]
struct ServiceTicks {
    service: u64,
    redis: u64,
    own: u64,
    machine: Machine,
}

impl ServiceTicks {
    fn now(service: &StoreProcess, redis: u32) -> Result<Self> {
        Ok(Self {
            service: cpu::used(service.pid())?,
            redis: cpu::used(redis)?,
            own: cpu::own()?,
            machine: cpu::machine()?,
        })
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            service: self.service.saturating_sub(earlier.service),
            redis: self.redis.saturating_sub(earlier.redis),
            own: self.own.saturating_sub(earlier.own),
            machine: self.machine.since(earlier.machine),
        }
    }

    const fn ours(&self) -> u64 {
        self.service + self.redis + self.own
    }
}

fn pid(redis: &Redis) -> Result<u32> {
    let info = resp::command(redis.port(), &["INFO", "server"])?.lines();
    cpu::of_redis(&info).context("Redis names no process")
}
