//! `cargo xtask bench`: what a request costs with this filter, with others, and with none.
//!
//! Every stack is one Envoy worker in front of the same upstream process; all parts run from the beginning and
//! idle while it is not their turn. In each round every load goes to every stack in turn (A B C ... A B C ...),
//! after a second of warm-up, and what is compared is compared within a round. A measurement during which others
//! used the machine is repeated; one whose answers are not what they should be ends the run.

mod counts;
mod cpu;
mod load;
mod machine;
mod micro;
mod picture;
mod plan;
mod rig;
mod sample;
mod stacks;
mod stats;
mod summary;
mod table;
mod unbatched;

use std::{
    cell::Cell,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use quotagate_support::{paths, process, store::StoreProcess};

use crate::{build, run, setup};
use load::{Load, Wrk};
use machine::Circumstances;
pub use plan::BenchArgs;
use plan::{Plan, WARM_UP};
use rig::{Filters, Rig, Running};
use sample::Sample;
use stacks::Stack;
use table::Memory;

/// The part of the machine that others may use during a measurement.
const QUIET: f64 = 0.05;
/// So often a measurement is made that others disturb, before the last one is taken as it is.
const ATTEMPTS: u32 = 3;
/// How long the machine has to be quiet before a disturbed measurement is made again.
const LOOK: Duration = Duration::from_secs(1);

/// Measures, and writes the report.
pub fn run(arguments: &BenchArgs) -> Result<()> {
    if arguments.micro {
        return micro::run();
    }
    cpu::machine().context("this task reads /proc: it needs Linux")?;
    let plan = arguments.plan()?;
    setup::run(setup::Redis::Fetch)?;
    let wrk = setup::wrk()?;
    build::run()?;
    let unbatched = plan.stacks.contains(&Stack::H).then(unbatched::build).transpose()?;
    let circumstances = Circumstances::of(&wrk)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::SeqCst)).context("cannot listen for Ctrl-C")?;

    process::raise_file_limit()?;
    run::step("bench: starting the parts");
    let rig = Rig::start(&plan.stacks, &Filters { shipped: paths::filter(), unbatched })?;
    let minutes = plan.time().as_secs().div_ceil(60);
    run::step(&format!("bench: {} measurements, {minutes} min where nothing disturbs", plan.len()));
    let patience = Cell::new(plan.patience);
    let session = Session { rig: &rig, wrk: Wrk::new(wrk)?, patience, interrupted: &interrupted };
    let samples = session.measure(&plan)?;
    let memory = rig.stacks().iter().map(memory).collect::<Result<Vec<_>>>()?;
    report(&plan, &samples, &memory, &circumstances)
}

struct Session<'a> {
    rig: &'a Rig,
    wrk: Wrk,
    /// What is left of the time to wait for a quiet machine.
    patience: Cell<Duration>,
    interrupted: &'a AtomicBool,
}

impl Session<'_> {
    fn measure(&self, plan: &Plan) -> Result<Vec<Sample>> {
        let mut samples = Vec::with_capacity(plan.len());
        let start = Instant::now();
        for round in 0..plan.rounds {
            for &load in &plan.loads {
                // Each round begins with another stack, so that none always follows the same one.
                let (later, first) =
                    self.rig.stacks().split_at(round as usize % self.rig.stacks().len().max(1));
                for running in first.iter().chain(later) {
                    let sample = self.quietly(running, load, round)?;
                    samples.push(sample);
                    run::note(&progress(&sample, samples.len(), plan.len(), start.elapsed()));
                }
            }
        }
        Ok(samples)
    }

    /// A measurement that others did not disturb, if there is one to be had; else the least disturbed one.
    fn quietly(&self, running: &Running, load: Load, round: u32) -> Result<Sample> {
        let mut best: Option<Sample> = None;
        for attempt in 1.. {
            let warm_up = Load { seconds: WARM_UP, ..load };
            self.wrk.send(warm_up, running.envoy.port(), self.interrupted)?;
            let sample = sample::take(self.rig, running, &self.wrk, load, round, self.interrupted);
            // Ctrl-C reaches every part: what went wrong then is no finding.
            if self.interrupted.load(Ordering::SeqCst) {
                bail!("interrupted");
            }
            let sample = sample?;
            let best = *best.insert(best.filter(|best| best.foreign <= sample.foreign).unwrap_or(sample));
            if best.foreign <= QUIET || attempt == ATTEMPTS || self.patience.get().is_zero() {
                return Ok(best);
            }
            run::note(&format!("others used {:.0} % of the machine: again", sample.foreign * 100.0));
            self.wait_for_quiet()?;
        }
        bail!("no measurement was made")
    }

    /// Waits until others leave the machine alone, as long as there is patience left.
    fn wait_for_quiet(&self) -> Result<()> {
        while !self.patience.get().is_zero() {
            if self.interrupted.load(Ordering::SeqCst) {
                bail!("interrupted");
            }
            let before = cpu::machine()?;
            sleep(LOOK);
            self.patience.set(self.patience.get().saturating_sub(LOOK));
            if cpu::machine()?.since(before).share() <= QUIET {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn progress(sample: &Sample, done: usize, of: usize, elapsed: Duration) -> String {
    let left = elapsed.as_secs_f64() / done as f64 * of.saturating_sub(done) as f64;
    let Load { connections, users, .. } = sample.load;
    format!(
        "[{done}/{of}, {:.0} min left] round {}, c={connections}, users={users}: {} {:.0} req/s, {:.0} µs each",
        (left / 60.0).ceil(),
        sample.round + 1,
        sample.stack,
        sample.seen.rate,
        sample.cpu.all(),
    )
}

fn memory(running: &Running) -> Result<Memory> {
    Ok(Memory {
        title: format!("{} {}", running.stack, running.stack.title()),
        envoy: cpu::resident(running.envoy.pid())?,
        store: running.store.as_ref().map(StoreProcess::pid).map(cpu::resident).transpose()?,
    })
}

fn report(plan: &Plan, samples: &[Sample], memory: &[Memory], circumstances: &Circumstances) -> Result<()> {
    let groups = summary::groups(samples);
    let tables =
        groups.iter().map(table::group).chain([table::memory(memory)]).collect::<Vec<_>>().join("\n");
    println!("\n{tables}");
    fs::create_dir_all(&plan.out).with_context(|| format!("cannot make {}", plan.out.display()))?;
    let markdown = format!(
        "# What a request costs\n\n![ratios and processor time](results.svg)\n\n{}\n\n{tables}",
        preface(plan, samples, circumstances)
    );
    write(&plan.out.join("results.md"), &markdown)?;
    let picture = plan.out.join("results.svg");
    picture::draw(&groups, &circumstances.to_string(), &picture)?;
    run::note(&format!("written: {}", shown(&picture)));
    Ok(())
}

fn preface(plan: &Plan, samples: &[Sample], circumstances: &Circumstances) -> String {
    let disturbed = samples.iter().filter(|sample| sample.foreign > QUIET).count();
    let seconds = plan.loads.first().map_or(0, |load| load.seconds);
    format!(
        "{circumstances}.\n\nWritten by `cargo xtask bench`. Each stack is one Envoy worker in front of the same upstream \
         process (an Envoy that answers by itself); wrk, Envoy, upstream, store and Redis share the machine. No stack \
         verifies tokens; the user is named by the header `x-user`. Every number is the median of {} interleaved \
         rounds of {seconds} s after {WARM_UP} s of warm-up; ratios and differences are to A of the same round, and \
         in brackets is their range. I is answered without the upstream, and A is not. Processor time is what `/proc` says of each process, by the requests that \
         Envoy answered; calls (to the store) and scripts (in Redis) are for each request as well. In {disturbed} of \
         {} measurements others used more than {:.0} % of the machine.\n",
        plan.rounds,
        samples.len(),
        QUIET * 100.0
    )
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    run::note(&format!("written: {}", shown(file)));
    Ok(())
}

fn shown(file: &Path) -> String {
    file.strip_prefix(paths::root()).unwrap_or(file).display().to_string()
}
