//! One policy of one domain: its metrics, and its requests of the last five minutes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use quotagate_protocol::dials::PolicyReport;

use quotagate_store::store::{CheckedReservation, Reserved};

use super::in_flight::{SlotFamilies, SlotMetrics, SlotSums, waits};
use super::picture::{PolicyTotals, Series};
use crate::millis;

/// Cap on each count in a report: no worker serves as many requests between two reports.
pub const MOST: u64 = 100_000_000;
/// How long a step of a series is.
pub const STEP: Duration = Duration::from_secs(5);
/// How many steps are kept.
pub const STEPS: usize = 60;
/// How long steps are kept: [`STEPS`] times [`STEP`].
const KEPT: Duration = Duration::from_secs(5 * 60);
/// Upper bounds of the used part of a quota.
const FULLNESS: [f64; 9] = [0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0];

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Named {
    /// The domain.
    pub domain: String,
    /// The policy.
    pub policy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    domain: String,
    policy: String,
    outcome: &'static str,
}

/// The metrics of all policies.
pub struct Families {
    reservations: Family<Outcome, Counter>,
    requests: Family<Outcome, Counter>,
    missing_identity: Family<Named, Counter>,
    settled_if_missing: Family<Named, Counter>,
    granted: Family<Named, Counter>,
    refused: Family<Named, Counter>,
    refunded: Family<Named, Counter>,
    charged: Family<Named, Counter>,
    partitions_in_debt: Family<Named, Gauge>,
    units_in_debt: Family<Named, Gauge>,
    /// Those of concurrency limits.
    pub slots: SlotFamilies,
    fullness: Family<Named, Histogram>,
}

impl Default for Families {
    fn default() -> Self {
        Self {
            reservations: Family::default(),
            requests: Family::default(),
            missing_identity: Family::default(),
            settled_if_missing: Family::default(),
            granted: Family::default(),
            refused: Family::default(),
            refunded: Family::default(),
            charged: Family::default(),
            partitions_in_debt: Family::default(),
            units_in_debt: Family::default(),
            slots: SlotFamilies::default(),
            fullness: Family::new_with_constructor(|| Histogram::new(FULLNESS)),
        }
    }
}

impl Families {
    /// Adds them to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Reservations by outcome";
        registry.register("reservations", help, self.reservations.clone());
        let help = "Requests by outcome, as filters report them";
        registry.register("requests", help, self.requests.clone());
        let help = "Requests without an identity, admitted or not, as filters report them";
        registry.register("missing_identity", help, self.missing_identity.clone());
        registry.register("units_granted", "Units granted", self.granted.clone());
        registry.register("units_refused", "Units wanted and not granted", self.refused.clone());
        registry.register("units_refunded", "Units refunded", self.refunded.clone());
        let help = "Units that settled costs took beyond their reservations";
        registry.register("units_charged", help, self.charged.clone());
        let help = "Partitions that have used more than their quota, of policies that settle costs";
        registry.register("partitions_in_debt", help, self.partitions_in_debt.clone());
        let help = "Units that these partitions have used beyond their quota";
        registry.register("units_in_debt", help, self.units_in_debt.clone());
        let help = "The part of its quota that a partition had used when its window ended";
        registry.register("window_fullness", help, self.fullness.clone());
    }

    /// Adds the one whose name says itself what it is of.
    pub fn register_settled(&self, registry: &mut Registry) {
        let help = "Requests that cost if_missing, because their responses did not say the cost or \
                    broke off, as filters report them";
        registry.register("quotagate_settled_if_missing", help, self.settled_if_missing.clone());
    }

    /// The metrics of one policy.
    pub fn policy(&self, domain: &str, policy: &str) -> PolicyMetrics {
        let named = Named { domain: domain.to_owned(), policy: policy.to_owned() };
        let of = |family: &Family<Outcome, Counter>, outcome| {
            let Named { domain, policy } = named.clone();
            family.get_or_create_owned(&Outcome { domain, policy, outcome })
        };
        let outcome = |outcome| of(&self.reservations, outcome);
        let request = |outcome| of(&self.requests, outcome);
        PolicyMetrics {
            granted: outcome("granted"),
            refused: outcome("refused"),
            no_spare: outcome("no_spare"),
            invalid: outcome("invalid"),
            unreachable: outcome("unreachable"),
            failed: outcome("failed"),
            requests: [
                request("admitted"),
                request("refused"),
                request("shadow_refused"),
                request("marked"),
                self.missing_identity.get_or_create_owned(&named),
                request("store_error"),
                self.settled_if_missing.get_or_create_owned(&named),
            ],
            units_granted: self.granted.get_or_create_owned(&named),
            units_refused: self.refused.get_or_create_owned(&named),
            units_refunded: self.refunded.get_or_create_owned(&named),
            units_charged: self.charged.get_or_create_owned(&named),
            settles: AtomicBool::new(false),
            partitions_in_debt: self.partitions_in_debt.get_or_create_owned(&named),
            units_in_debt: self.units_in_debt.get_or_create_owned(&named),
            slots: SlotMetrics::new(self.slots.clone()),
            fullness: self.fullness.get_or_create_owned(&named),
            recent: Mutex::default(),
            named,
        }
    }
}

/// One policy of one domain.
pub struct PolicyMetrics {
    named: Named,
    granted: Counter,
    refused: Counter,
    no_spare: Counter,
    invalid: Counter,
    unreachable: Counter,
    failed: Counter,
    /// In the order of [`PolicyReport`]'s counts.
    requests: [Counter; 7],
    units_granted: Counter,
    units_refused: Counter,
    units_refunded: Counter,
    units_charged: Counter,
    /// Whether its costs are settled, as a proxy reported last.
    settles: AtomicBool,
    partitions_in_debt: Gauge,
    units_in_debt: Gauge,
    slots: SlotMetrics,
    fullness: Histogram,
    recent: Mutex<VecDeque<Step>>,
}

/// What the partitions of a policy have used beyond their quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    partitions: i64,
    units: i64,
}

impl Debt {
    /// Adds a partition with so many units beyond its quota.
    pub fn add(&mut self, units: u64) {
        self.partitions = self.partitions.saturating_add(1);
        self.units = self.units.saturating_add_unsigned(units);
    }
}

/// The requests reported within one [`STEP`].
pub struct Step {
    begun: Instant,
    counts: OutcomeCounts,
}

/// Requests by outcome, in the order of [`PolicyReport`]'s counts.
pub type OutcomeCounts = [u64; 7];

impl Step {
    const fn at(begun: Instant) -> Self {
        Self { begun, counts: [0; 7] }
    }
}

impl PolicyMetrics {
    /// Counts the outcome of a reservation.
    pub fn reserved(&self, ask: &CheckedReservation, reserved: &Reserved) {
        match reserved {
            Ok(grant) => {
                let is_of_slots = ask.holding.is_some();
                // A worker says every few seconds what it holds, and asks again and again for
                // requests that wait. Nothing is refused by that.
                let outcome = match grant.granted {
                    0 if is_of_slots && (ask.want == 0 || waits(ask)) => None,
                    0 if ask.want == 0 => Some(&self.no_spare),
                    0 => Some(&self.refused),
                    _ => Some(&self.granted),
                };
                if let Some(outcome) = outcome {
                    outcome.inc();
                }
                if is_of_slots {
                    self.slots.expired(&self.named, grant.expired);
                }
                self.units_granted.inc_by(grant.granted);
                if !waits(ask) {
                    self.units_refused.inc_by(ask.want.saturating_sub(grant.granted));
                }
            }
            Err(error) if error.is_outage() => drop(self.unreachable.inc()),
            Err(_) => drop(self.failed.inc()),
        }
    }

    /// Counts a reservation that was rejected for its values.
    pub fn invalid(&self) {
        self.invalid.inc();
    }

    /// Counts refunded units.
    pub fn refunded(&self, units: u64) {
        self.units_refunded.inc_by(units);
    }

    /// Counts units that a settled cost took beyond its reservation.
    pub fn charged(&self, units: u64) {
        self.units_charged.inc_by(units);
    }

    /// Whether its costs are settled, as far as proxies reported.
    pub fn settles(&self) -> bool {
        self.settles.load(Relaxed)
    }

    /// Sets what its partitions have used beyond their quota.
    pub fn owes(&self, debt: Debt) {
        self.partitions_in_debt.set(debt.partitions);
        self.units_in_debt.set(debt.units);
    }

    /// Sets the slots that are held and waited for.
    pub fn holds(&self, slots: SlotSums) {
        self.slots.set(slots);
    }

    /// Records how full a partition's window was when it ended.
    pub fn ended(&self, fullness: f64) {
        self.fullness.observe(fullness);
    }

    /// Adds the requests that a proxy reported.
    pub fn reported(&self, report: &PolicyReport, now: Instant) {
        // Many policies may be counted as one.
        self.settles.store(report.settles && report.name == self.named.policy, Relaxed);
        let counts = counts_of(report);
        for (counter, count) in self.requests.iter().zip(counts) {
            counter.inc_by(count.min(MOST));
        }
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        add_to(&mut recent, counts, now);
    }

    /// The requests of the last five minutes; `None` if no proxy reported any.
    pub fn series(&self, now: Instant) -> Option<Series> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        advance(&mut recent, now);
        let age = now.saturating_duration_since(recent.back()?.begun);
        let mut counts: [Vec<u64>; 7] = Default::default();
        for (index, column) in counts.iter_mut().enumerate() {
            let count = |step: &Step| step.counts.get(index).copied().unwrap_or_default();
            if recent.iter().any(|step| count(step) > 0) {
                *column = recent.iter().map(count).collect();
            }
        }
        let Named { domain, policy } = self.named.clone();
        Some(Series { domain, policy, age_ms: millis(age), counts })
    }

    /// All requests; `None` if no proxy reported any.
    pub fn totals(&self) -> Option<PolicyTotals> {
        let counts = self.requests.each_ref().map(Counter::get);
        let Named { domain, policy } = self.named.clone();
        let slots = self.slots.totals();
        let is_seen = counts != [0; 7] || slots.is_some();
        is_seen.then_some(PolicyTotals { domain, policy, counts, slots })
    }
}

/// The requests of a report by outcome.
pub fn counts_of(report: &PolicyReport) -> OutcomeCounts {
    let PolicyReport {
        admitted,
        refused,
        shadow_refused,
        marked,
        missing_identity,
        store_error,
        settled_if_missing,
        ..
    } = *report;
    [admitted, refused, shadow_refused, marked, missing_identity, store_error, settled_if_missing]
}

/// Adds requests to the step that runs.
pub fn add_to(recent: &mut VecDeque<Step>, counts: OutcomeCounts, now: Instant) {
    advance(recent, now);
    if recent.is_empty() {
        recent.push_back(Step::at(now));
    }
    if let Some(step) = recent.back_mut() {
        for (sum, count) in step.counts.iter_mut().zip(counts) {
            *sum = sum.saturating_add(count.min(MOST));
        }
    }
}

/// The requests of the last five minutes, and how many of them were refused.
pub fn refused_of(recent: &VecDeque<Step>, now: Instant) -> [u64; 2] {
    let kept = recent.iter().filter(|step| now.saturating_duration_since(step.begun) < KEPT);
    kept.fold([0, 0], |[all, refused], step| {
        // Those without an identity, or settled by if_missing, are counted by their outcome, too.
        let [admitted, of_step, shadow_refused, marked, _, store_error, _] = step.counts;
        let sum = [admitted, of_step, shadow_refused, marked, store_error].into_iter();
        [sum.fold(all, u64::saturating_add), refused.saturating_add(of_step)]
    })
}

/// Adds a step for each [`STEP`] that has passed since the last one, and drops the oldest.
fn advance(recent: &mut VecDeque<Step>, now: Instant) {
    while let Some(begun) =
        recent.back().map(|step| step.begun + STEP).filter(|begun| *begun <= now)
    {
        if now.saturating_duration_since(begun) > KEPT {
            recent.clear();
            return;
        }
        recent.push_back(Step::at(begun));
        if recent.len() > STEPS {
            recent.pop_front();
        }
    }
    if recent.iter().all(|step| step.counts == [0; 7]) {
        recent.clear();
    }
}

#[cfg(test)]
mod tests {
    use quotagate_protocol::dials::DocumentOverrides;
    use quotagate_protocol::{Kind, Mode, OnFailure};

    use super::*;

    #[test]
    fn series_has_the_steps_of_the_last_five_minutes() {
        let (metrics, now) = (Families::default().policy("d", "p"), Instant::now());
        let report = |admitted| PolicyReport {
            name: "p".to_owned(),
            quota: 1,
            kind: Kind::Fixed,
            window_s: 1,
            stagger: false,
            mode: Mode::Enforce,
            on_failure: OnFailure::Allow,
            partition_by: None,
            tiers: false,
            overrides: DocumentOverrides::None,
            settles: false,
            admitted,
            refused: 5,
            shadow_refused: 5,
            marked: 5,
            missing_identity: 1,
            store_error: 2,
            settled_if_missing: 3,
        };
        let at = |seconds| now + Duration::from_secs(seconds);
        assert!(metrics.series(at(0)).is_none());
        metrics.reported(&report(10), at(0));
        metrics.reported(&report(20), at(4));
        metrics.reported(&report(50), at(12));
        let series = metrics.series(at(16)).unwrap();
        let [admitted, refused, _, _, missing_identity, store_error, settled] = &series.counts;
        assert_eq!((admitted, refused), (&vec![30, 0, 50, 0], &vec![10, 0, 5, 0]));
        assert_eq!((missing_identity, store_error), (&vec![2, 0, 1, 0], &vec![4, 0, 2, 0]));
        assert_eq!(settled, &vec![6, 0, 3, 0]);
        assert_eq!(series.age_ms, 1000);
        assert_eq!(metrics.totals().unwrap().counts, [80, 15, 15, 15, 3, 6, 9]);
        let admitted = |seconds| metrics.series(at(seconds)).unwrap().counts[0].clone();
        assert_eq!(admitted(299).len(), STEPS);
        assert_eq!(admitted(304).first(), Some(&0));
        assert!(metrics.series(at(700)).is_none());
        metrics.reported(&PolicyReport { admitted: u64::MAX, ..report(0) }, at(701));
        assert_eq!(metrics.requests.first().unwrap().get(), 80 + MOST);
    }
}
