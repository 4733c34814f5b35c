//! A fault: how it is injected, what may result from it, and the run that measures what does.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quotagate_support::envoy::Form;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::audit;
use crate::findings::{Findings, Round};
use crate::load::Load;
use crate::plan::Plan;
use crate::rig::{Rig, Setup};

/// The statistics that count crashes of the filter: restarts of its virtual machines, and panics
/// that the native module caught.
pub const RELOADS: &str = "(vm_reload_success|quotagate_panics)$";

/// A fault of a running system.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// The name on the command line and of the test.
    pub name: &'static str,
    /// What is injected, in a few words.
    pub injected: &'static str,
    /// What may result from it.
    pub bounds: Bounds,
    /// The one form of the filter that can suffer it; `None` if both can.
    pub only: Option<Form>,
    /// How it is run.
    pub run: Run,
}

/// How a fault is run.
#[derive(Debug, Clone, Copy)]
pub enum Run {
    /// Injected into this rig under its load, as often as the plan says.
    Under(Setup, fn(&mut Scene<'_>) -> Result<()>),
    /// An experiment of its own.
    Own(fn(&Plan) -> Result<Findings>),
}

/// What may result from a fault. Anything not listed here must not.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The most units that a window may admit, as a multiple of the quota.
    pub quotas: u64,
    /// Why a window may admit more than one quota. Counters may then be smaller than what was
    /// admitted.
    pub forgets: Option<&'static str>,
    /// The most requests that may fail, if that is bounded.
    pub fails: Option<usize>,
    /// Whether clients may lose connections or get answers that are not the filter's.
    pub breaks: Option<Breaks>,
    /// Whether Envoy may restart the filter.
    pub reloads: bool,
    /// Users whose requests the fault must not affect.
    pub spares: Option<&'static [&'static str]>,
    /// How long after its start the fault may keep requests from being counted.
    pub avoided_after: Option<Duration>,
}

/// Answers other than the filter's that clients may get.
#[derive(Debug, Clone, Copy)]
pub struct Breaks {
    /// These statuses of Envoy. A lost connection is always allowed.
    pub statuses: &'static [u16],
    /// At most one request in so many.
    pub one_in: usize,
}

impl Bounds {
    /// No window over quota, no counter lost, no connection lost.
    pub const STRICT: Self = Self {
        quotas: 1,
        forgets: None,
        fails: None,
        breaks: None,
        reloads: false,
        spares: None,
        avoided_after: None,
    };
}

/// A running rig while a fault is injected.
#[derive(Debug)]
pub struct Scene<'a> {
    /// What it is injected into.
    pub rig: &'a mut Rig,
    /// The load that goes on.
    pub load: &'a Load,
    /// How long things take.
    pub plan: &'a Plan,
    /// Draws moments and victims.
    pub chance: &'a mut Xoshiro256PlusPlus,
    /// Remarks for the report.
    pub notes: &'a mut Vec<String>,
    /// When the fault ended, if that was before its function returned.
    pub ended: &'a mut Option<Instant>,
}

impl Scene<'_> {
    /// Marks the end of the fault: the rest of its function is no part of it.
    pub fn over(&mut self) {
        *self.ended = Some(Instant::now());
    }

    /// A random part of the time that the fault lasts.
    pub fn moment(&mut self) -> Duration {
        self.plan.during.mul_f64(self.chance.random_range(0.0..1.0))
    }
}

impl Fault {
    /// Runs it.
    ///
    /// # Errors
    /// When the rig does not come up, or the fault cannot be injected.
    pub fn findings(&self, plan: &Plan) -> Result<Findings> {
        match self.run {
            Run::Under(setup, inject) => under_load(&setup, inject, plan),
            Run::Own(run) => run(plan),
        }
        .with_context(|| self.name)
    }
}

fn under_load(
    setup: &Setup,
    inject: fn(&mut Scene<'_>) -> Result<()>,
    plan: &Plan,
) -> Result<Findings> {
    let mut rig = Rig::start(setup)?;
    inject_into(&mut rig, setup, inject, plan)
}

/// Injects a fault into a running rig, as often as the plan says, and audits the result.
///
/// # Errors
/// When the fault cannot be injected, or a part does not answer at the end.
pub fn inject_into(
    rig: &mut Rig,
    setup: &Setup,
    inject: fn(&mut Scene<'_>) -> Result<()>,
    plan: &Plan,
) -> Result<Findings> {
    let mut chance = Xoshiro256PlusPlus::seed_from_u64(plan.seed);
    let (mut rounds, mut notes) = (Vec::new(), Vec::new());
    let load = Load::start(&rig.ports(), &setup.traffic)?;
    load.go_on(plan.before);
    let mut footprints = vec![rig.footprint()];
    for _ in 0..plan.rounds {
        let began = Instant::now();
        let mut ended = None;
        let (chance, notes, ended) = (&mut chance, &mut notes, &mut ended);
        inject(&mut Scene { rig, load: &load, plan, chance, notes, ended })?;
        rounds.push(Round { began, ended: ended.unwrap_or_else(Instant::now) });
        load.go_on(plan.after);
        footprints.push(rig.footprint());
    }
    let samples = load.end()?;
    let (stuck, reloads) = (rig.stuck()?, rig.stat(RELOADS)?);
    let counts = audit::counts(rig, &samples, setup.endless())?;
    let connections = setup.traffic.connections.into();
    Ok(Findings { samples, rounds, footprints, connections, counts, stuck, reloads, notes })
}
