//! `cargo xtask bench --instructions`: the instructions of Envoy for each request, and of the core
//! alone.
//!
//! Callgrind runs each stack's Envoy and counts the instructions of all its threads. Unlike times,
//! they are the same within 0.5 % on a busy machine, so several stacks run at a time.

mod budgets;
pub mod callgrind;
mod operations;
mod report;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use quotagate_support::tools;
use quotagate_workspace::task;

use crate::{
    measure::cpu,
    plan::BenchArgs,
    report::table::number,
    rig::{Filters, Rig, Running},
    stacks::{Due, Stack, USER_HEADER},
};
use callgrind::{Callgrind, InstructionCounts};
use operations::Operation;

/// Requests before callgrind counts, so that V8 has compiled what runs often.
const WARM_UP: u32 = 2_000;
/// Requests for each measurement over many connections.
const REQUESTS: u32 = 3_000;
/// Requests over a single connection. They take longer.
const LONE_REQUESTS: u32 = 1_000;
/// The numbers of connections.
const CONNECTIONS: [u32; 2] = [32, 1];
/// Under callgrind, a Wasm filter sometimes does not come up.
const ATTEMPTS: u32 = 3;
/// How often a process is looked at until it rests, how long each time, and the share of a
/// processor that it may still use.
const LOOKS: u32 = 40;
const LOOK: Duration = Duration::from_millis(500);
const IDLE: f64 = 0.1;
/// How many stacks are measured at a time: as many as two cores can serve.
const LANES: usize = 2;
/// The object whose allocations are counted: the native module.
const MODULE: &str = "libquotagate.so";

/// What was counted.
#[derive(Debug, Default)]
pub struct InstructionReport {
    /// The operations of the core.
    core: Vec<Operation>,
    /// The stacks, in their order, over each number of connections.
    stacks: Vec<Measurement>,
}

/// What the requests of a stack cost.
#[derive(Debug, Clone)]
pub struct Measurement {
    stack: Stack,
    connections: u32,
    requests: u32,
    counts: InstructionCounts,
}

impl Measurement {
    /// Instructions for each request.
    fn each(&self) -> f64 {
        self.of_each(self.counts.total)
    }

    /// A count, divided by the requests.
    fn of_each(&self, count: u64) -> f64 {
        count as f64 / f64::from(self.requests)
    }

    /// The calls of functions whose names begin so: the rest of the name, how many calls and
    /// instructions for each request.
    fn calls(&self, prefix: &str) -> impl Iterator<Item = (&str, f64, f64)> {
        self.counts.calls.iter().filter_map(move |(name, calls)| {
            let name = name.strip_prefix(prefix)?;
            Some((name, self.of_each(calls.count), self.of_each(calls.instructions)))
        })
    }

    /// What Envoy's calls of the module cost, by hook.
    fn hooks(&self) -> impl Iterator<Item = (&str, f64)> {
        self.calls("envoy_dynamic_module_on_http_filter_").map(|(name, _, cost)| (name, cost))
    }

    /// How often the module calls Envoy, by callback.
    fn callbacks(&self) -> impl Iterator<Item = (&str, f64)> {
        self.calls("envoy_dynamic_module_callback_").map(|(name, count, _)| (name, count))
    }
}

/// Counts, and writes the report, or compares with the budgets.
pub fn run(arguments: &BenchArgs, filters: impl FnOnce(&[Stack]) -> Result<Filters>) -> Result<()> {
    let (stacks, connections) = if arguments.budgets {
        (budgets::STACKS.to_vec(), CONNECTIONS.split_at(1).0)
    } else {
        (arguments.stacks(), &CONNECTIONS[..])
    };
    let (valgrind, h2load) = tools::instructions()?;
    let core = operations::measure(&valgrind)?;
    let filters = filters(&stacks)?;
    let counter = Counter { valgrind, h2load, rig: Rig::behind(&stacks)?, filters };
    task::step("bench: instructions of Envoy for each request, counted by callgrind");
    let measured = InstructionReport { core, stacks: counter.measure_all(&stacks, connections)? };
    if arguments.budgets { budgets::judge(&measured) } else { report::write(arguments, &measured) }
}

/// Counts the instructions of stacks.
struct Counter {
    valgrind: PathBuf,
    h2load: PathBuf,
    rig: Rig,
    filters: Filters,
}

impl Counter {
    /// Measures stacks, several at a time. The first error ends each lane.
    fn measure_all(&self, stacks: &[Stack], connections: &[u32]) -> Result<Vec<Measurement>> {
        let queue = Mutex::new(stacks.iter());
        let queue = || queue.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = || {
            let mut measured = Vec::new();
            // The lock is free again while a stack is measured.
            while let Some(&stack) = { queue().next() } {
                match self.measure(stack, connections) {
                    Ok(measurements) => measured.extend(measurements),
                    Err(error) => {
                        *queue() = [].iter();
                        return Err(error);
                    }
                }
            }
            Ok(measured)
        };
        let mut measured = thread::scope(|scope| {
            let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
            let ended = lanes
                .into_iter()
                .map(|lane| lane.join().unwrap_or_else(|_| Err(anyhow!("a measurement panicked"))));
            ended.collect::<Result<Vec<_>>>()
        })?
        .concat();
        measured.sort_by_key(|measurement| measurement.stack);
        Ok(measured)
    }

    fn measure(&self, stack: Stack, connections: &[u32]) -> Result<Vec<Measurement>> {
        let callgrind = Callgrind::new(self.valgrind.clone())?;
        let running = self.start(stack, &callgrind)?;
        let (port, pid) = (running.envoy.port(), running.envoy.pid());
        send(&self.h2load, stack, port, WARM_UP, CONNECTIONS[0])?;
        wait_until_idle(pid)?;
        let mut measured = Vec::new();
        for &connections in connections {
            let requests = if connections == 1 { LONE_REQUESTS } else { REQUESTS };
            callgrind.begin(pid)?;
            send(&self.h2load, stack, port, requests, connections)?;
            let counts = callgrind.end(pid, MODULE, &format!("{stack}.{connections}"))?;
            let measurement = Measurement { stack, connections, requests, counts };
            task::note(&format!(
                "{stack} {}: {:.1} k over {}",
                stack.title(),
                measurement.each() / 1e3,
                number(connections, "connection")
            ));
            measured.push(measurement);
        }
        Ok(measured)
    }

    /// Starts a stack, up to [`ATTEMPTS`] times.
    fn start(&self, stack: Stack, callgrind: &Callgrind) -> Result<Running> {
        let start = || self.rig.running(stack, &self.filters, &callgrind.command());
        for _ in 1..ATTEMPTS {
            match start() {
                Ok(running) => return Ok(running),
                Err(error) => {
                    task::note(&format!("{stack} did not start, so it starts again: {error:#}"));
                }
            }
        }
        start()
    }
}

/// Waits until a process rests: after the warm-up, V8 goes on to compile on threads of its own.
fn wait_until_idle(pid: u32) -> Result<()> {
    for _ in 0..LOOKS {
        let before = cpu::used(pid)?;
        thread::sleep(LOOK);
        if cpu::micros(cpu::used(pid)? - before) < LOOK.as_micros() as f64 * IDLE {
            break;
        }
    }
    Ok(())
}

/// Sends so many requests of one user, and checks that each got the right answer.
fn send(h2load: &Path, stack: Stack, port: u16, requests: u32, connections: u32) -> Result<()> {
    let mut command = Command::new(h2load);
    command.args(["--h1", "--threads=1"]);
    command.arg(format!("--requests={requests}")).arg(format!("--clients={connections}"));
    command.arg(format!("--header={USER_HEADER}: user-1"));
    command.arg(format!("http://127.0.0.1:{port}/api/items"));
    let printed = task::printed(&mut command)?;
    let due = if stack.due() == Due::Refused { "4xx" } else { "2xx" };
    let found = answered(&printed, due).context("cannot read the output of h2load")?;
    if found != requests {
        bail!("{stack}: {found} of {requests} requests were answered with {due}:\n{printed}");
    }
    Ok(())
}

/// How many answers of this class h2load saw: `status codes: 3000 2xx, 0 3xx, 0 4xx, 0 5xx`.
fn answered(printed: &str, class: &str) -> Option<u32> {
    let line = printed.lines().find_map(|line| line.strip_prefix("status codes: "))?;
    line.split(", ").find_map(|part| part.strip_suffix(class)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_class() {
        let printed = "finished in 1s\nstatus codes: 2999 2xx, 0 3xx, 1 4xx, 0 5xx\ntraffic: 1";
        assert_eq!(answered(printed, "2xx"), Some(2999));
        assert_eq!(answered(printed, "4xx"), Some(1));
        assert_eq!(answered("finished in 1s", "2xx"), None);
    }
}
