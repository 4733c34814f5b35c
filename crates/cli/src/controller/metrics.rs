//! What the controller counts.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

/// Upper bounds in seconds of the time that a pass took.
const BOUNDS: [f64; 9] = [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 30.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DomainLabel {
    pub(super) domain: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct AcceptedLabel {
    pub(super) accepted: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct KindLabel {
    pub(super) kind: String,
}

/// What the controller counts.
pub(super) struct ControllerMetrics {
    registry: Registry,
    pub(super) leader: Gauge,
    pub(super) policies: Family<AcceptedLabel, Gauge>,
    pub(super) documents: Family<DomainLabel, Gauge<u64, AtomicU64>>,
    pub(super) unpublished: Family<DomainLabel, Gauge>,
    pub(super) published: Family<DomainLabel, Counter>,
    pub(super) patches: Counter,
    pub(super) faults: Counter,
    pub(super) passes: Histogram,
    pub(super) watch_failures: Family<KindLabel, Gauge>,
}

impl ControllerMetrics {
    pub(super) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("quotagate_controller"),
            leader: Gauge::default(),
            policies: Family::default(),
            documents: Family::default(),
            unpublished: Family::default(),
            published: Family::default(),
            patches: Counter::default(),
            faults: Counter::default(),
            passes: Histogram::new(BOUNDS),
            watch_failures: Family::default(),
        };
        metrics.register("leader", "1 if this controller acts", |of| of.leader.clone());
        let help = "QuotaPolicies, by whether all of their targets accept them";
        metrics.register("policies", help, |of| of.policies.clone());
        let help = "The number of the published document of a domain; 0 for none";
        metrics.register("document", help, |of| of.documents.clone());
        let help = "1 if the document that the objects of a domain make is not published";
        metrics.register("unpublished", help, |of| of.unpublished.clone());
        let help = "Documents that this controller published or withdrew";
        metrics.register("published", help, |of| of.published.clone());
        let help = "Statuses that this controller wrote";
        metrics.register("status_patches", help, |of| of.patches.clone());
        let help = "Passes that failed in part and are tried again";
        metrics.register("faults", help, |of| of.faults.clone());
        let help = "Time of a pass that merged, published and wrote statuses";
        metrics.register("pass_seconds", help, |of| of.passes.clone());
        let help = "Failures in a row of the watch of a kind";
        metrics.register("watch_failures", help, |of| of.watch_failures.clone());
        metrics
    }

    fn register<M: Metric>(&mut self, name: &str, help: &str, of: impl FnOnce(&Self) -> M) {
        let metric = of(self);
        self.registry.register(name, help, metric);
    }

    /// Forgets what only the controller knows that acts.
    pub(super) fn stands_by(&self) {
        self.policies.clear();
        self.documents.clear();
        self.unpublished.clear();
    }

    /// All of them, in Prometheus' text format.
    ///
    /// # Errors
    /// When a metric cannot be written.
    pub(super) fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
