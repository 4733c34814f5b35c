//! One run: every load on every stack in turn, round after round.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use quotagate_workspace::task;

use crate::{
    measure::{
        cpu,
        load::{Load, Wrk},
        ping,
        sample::{self, Sample},
    },
    plan::{Plan, WARM_UP},
    rig::{Rig, Running},
};

/// A measurement is quiet if other programs used at most this part of the machine meanwhile.
pub const QUIET: f64 = 0.05;
/// A disturbed measurement is repeated until there are this many. The quietest one counts.
const ATTEMPTS: u32 = 3;
/// The machine must be quiet this long before a disturbed measurement is repeated.
const LOOK: Duration = Duration::from_secs(1);

/// What all measurements of a run share.
pub struct Session<'a> {
    /// The running stacks.
    pub rig: &'a Rig,
    /// The load generator.
    pub wrk: Wrk,
    /// How much longer the run may wait for a quiet machine.
    pub patience: Cell<Duration>,
    /// Set by Ctrl-C.
    pub interrupted: &'a AtomicBool,
}

/// What a run measured.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// Every sample of the plan.
    pub samples: Vec<Sample>,
    /// PINGs before each round, if a Redis runs.
    pub pings: Vec<Duration>,
}

impl Session<'_> {
    /// Takes every sample of the plan.
    pub fn measure(&self, plan: &Plan) -> Result<Measured> {
        let mut measured = Measured::default();
        let start = Instant::now();
        for round in 0..plan.rounds {
            if let Some(port) = self.rig.redis() {
                measured.pings.extend(ping::take(port)?);
            }
            for &load in &plan.loads {
                // Each round begins with another stack, so that none always follows the same one.
                let (later, first) =
                    self.rig.stacks().split_at(round as usize % self.rig.stacks().len().max(1));
                for running in first.iter().chain(later) {
                    let sample = self.quietly(running, load, round)?;
                    measured.samples.push(sample);
                    let done = measured.samples.len();
                    task::note(&progress(&sample, done, plan.len(), start.elapsed()));
                }
            }
        }
        Ok(measured)
    }

    /// An undisturbed measurement if possible, else the least disturbed one.
    fn quietly(&self, running: &Running, load: Load, round: u32) -> Result<Sample> {
        let mut best: Option<Sample> = None;
        for attempt in 1.. {
            let warm_up = Load { seconds: WARM_UP, ..load };
            self.wrk.send(warm_up, running.envoy.port(), self.interrupted)?;
            let sample = sample::take(self.rig, running, &self.wrk, load, round, self.interrupted);
            // Ctrl-C reaches every part, so an error after it is no finding.
            if self.interrupted.load(Ordering::SeqCst) {
                bail!("interrupted");
            }
            let sample = sample?;
            let best =
                *best.insert(best.filter(|best| best.foreign <= sample.foreign).unwrap_or(sample));
            if best.foreign <= QUIET || attempt == ATTEMPTS || self.patience.get().is_zero() {
                return Ok(best);
            }
            task::note(&format!(
                "others used {:.0} % of the machine: again",
                sample.foreign * 100.0
            ));
            self.wait_for_quiet()?;
        }
        bail!("no measurement was made")
    }

    /// Waits until other programs leave the machine alone, as long as the allowed time lasts.
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
