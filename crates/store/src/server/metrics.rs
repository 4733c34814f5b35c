//! What the server counts of itself, in Prometheus' text format.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::store::{Settled, Store, StoreError};

/// Upper bounds in seconds of the time that a call took.
const BOUNDS: [f64; 13] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Status {
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// The counters of a server, and those of its backend.
pub struct Metrics {
    registry: Registry,
    calls: Family<Status, Counter>,
    served: Counter,
    granted: Counter,
    refused: Counter,
    invalid: Counter,
    unreachable: Counter,
    failed: Counter,
    returns: Counter,
    undone: Counter,
    units: Counter,
    seconds: Histogram,
}

impl Metrics {
    /// Zeroes, with what `store` measures of itself.
    pub fn new(store: &dyn Store) -> Self {
        let mut registry = Registry::with_prefix("quotagate_store");
        let calls = Family::<Status, Counter>::default();
        let reservations = Family::<Outcome, Counter>::default();
        let outcome = |outcome| reservations.get_or_create(&Outcome { outcome }).clone();
        let metrics = Self {
            served: calls.get_or_create(&Status { status: 200 }).clone(),
            granted: outcome("granted"),
            refused: outcome("refused"),
            invalid: outcome("invalid"),
            unreachable: outcome("unreachable"),
            failed: outcome("failed"),
            returns: Counter::default(),
            undone: Counter::default(),
            units: Counter::default(),
            seconds: Histogram::new(BOUNDS),
            registry: Registry::default(),
            calls: calls.clone(),
        };
        registry.register("calls", "Calls of /v1/reserve by the status of their answer", calls);
        registry.register("reservations", "Reservations by what became of them", reservations);
        registry.register("returns", "Returns received", metrics.returns.clone());
        registry.register(
            "grants_undone",
            "Grants returned because their caller had gone",
            metrics.undone.clone(),
        );
        registry.register("units_granted", "Units granted", metrics.units.clone());
        registry.register(
            "call_seconds",
            "Time from receipt of a call to its answer",
            metrics.seconds.clone(),
        );
        store.register(&mut registry);
        Self { registry, ..metrics }
    }

    /// Counts a call that was answered with `status` after `took`.
    pub fn call(&self, status: u16, took: Duration) {
        if status == 200 {
            self.served.inc();
        } else {
            self.calls.get_or_create(&Status { status }).inc();
        }
        self.seconds.observe(took.as_secs_f64());
    }

    /// Counts what became of a reservation.
    pub fn reservation(&self, settled: &Settled) {
        match settled {
            Ok(grant) if grant.granted > 0 => {
                self.granted.inc();
                self.units.inc_by(grant.granted);
            }
            Ok(_) => drop(self.refused.inc()),
            Err(error) if error.is_outage() => drop(self.unreachable.inc()),
            Err(StoreError::Late | StoreError::Rolled | StoreError::Refused(_)) => drop(self.failed.inc()),
            Err(StoreError::Unreachable(_) | StoreError::NoAnswer(_)) => {}
        }
    }

    /// Counts a reservation that was refused for its values.
    pub fn invalid(&self) {
        self.invalid.inc();
    }

    /// Counts returns received.
    pub fn returns(&self, count: usize) {
        self.returns.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// Counts grants returned by the server itself.
    pub fn undone(&self, count: usize) {
        self.undone.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// The text that Prometheus reads.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        if encode(&mut text, &self.registry).is_err() {
            tracing::error!("cannot write the metrics");
        }
        text
    }
}
