//! The metrics of concurrency limits. Only policies with slots have them.

use std::sync::OnceLock;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use quotagate_store::store::CheckedReservation;

use super::picture::SlotTotals;
use super::policy::Named;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SlotState {
    domain: String,
    policy: String,
    state: &'static str,
}

/// The metrics of all concurrency limits.
#[derive(Clone, Default)]
pub struct SlotFamilies {
    slots: Family<SlotState, Gauge>,
    expired: Family<Named, Counter>,
}

/// The slots of the watched partitions of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotSums {
    held: u64,
    waiting: u64,
}

impl SlotSums {
    /// Adds a partition.
    pub fn add(&mut self, held: u64, waiting: u64) {
        self.held = self.held.saturating_add(held);
        self.waiting = self.waiting.saturating_add(waiting);
    }
}

impl SlotFamilies {
    /// Adds them to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Slots of concurrency limits that requests hold, or that were asked for within \
                    the last second and not granted, as this store saw them with its last calls";
        registry.register("quotagate_slots", help, self.slots.clone());
        let help = "Slots whose worker did not say for 9 s that it holds them, as this store \
                    found them";
        registry.register("quotagate_slots_expired", help, self.expired.clone());
    }
}

/// Whether requests go on to wait for what is not granted.
pub fn waits(ask: &CheckedReservation) -> bool {
    ask.holding.as_ref().is_some_and(|holding| holding.waiting > 0)
}

/// The slots of one policy. They have metrics as soon as it is known to be a concurrency limit.
pub struct SlotMetrics {
    families: SlotFamilies,
    metrics: OnceLock<(Gauge, Gauge, Counter)>,
}

impl SlotMetrics {
    /// Those of a policy, which may be no concurrency limit.
    pub const fn new(families: SlotFamilies) -> Self {
        Self { families, metrics: OnceLock::new() }
    }

    /// Counts slots that a message of a worker found expired.
    pub fn expired(&self, named: &Named, slots: u64) {
        let (.., expired) = self.metrics.get_or_init(|| {
            let Named { domain, policy } = named;
            let gauge = |state| {
                let (domain, policy) = (domain.clone(), policy.clone());
                self.families.slots.get_or_create_owned(&SlotState { domain, policy, state })
            };
            (gauge("held"), gauge("waiting"), self.families.expired.get_or_create_owned(named))
        });
        expired.inc_by(slots);
    }

    /// All of them; `None` if the policy is no concurrency limit.
    pub fn totals(&self) -> Option<SlotTotals> {
        let (held, waiting, expired) = self.metrics.get()?;
        let units = |gauge: &Gauge| u64::try_from(gauge.get()).unwrap_or_default();
        Some(SlotTotals { held: units(held), waiting: units(waiting), expired: expired.get() })
    }

    /// Sets the slots that are held and waited for.
    pub fn set(&self, sums: SlotSums) {
        if let Some((held, waiting, _)) = self.metrics.get() {
            held.set(i64::try_from(sums.held).unwrap_or(i64::MAX));
            waiting.set(i64::try_from(sums.waiting).unwrap_or(i64::MAX));
        }
    }
}
