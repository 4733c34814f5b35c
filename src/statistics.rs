//! Envoy's counters of decisions, by policy and outcome, and of calls.
//!
//! They are defined when first needed. Workers that define the same name share the counter.

use std::collections::BTreeMap;

use proxy_wasm::hostcalls;
use proxy_wasm::types::MetricType;
use quotagate_quota::config::Config;
use quotagate_quota::stats;
use quotagate_quota::worker::Counted;

/// Envoy's ids of the counters defined so far.
#[derive(Debug, Default)]
pub struct Statistics {
    ids: BTreeMap<Counted, u32>,
    /// Of the configuration whose policies they are.
    generation: u64,
}

impl Statistics {
    /// Adds the counts of a worker.
    pub fn add(&mut self, config: &Config, tally: Vec<(Counted, u64)>) {
        if self.generation != config.generation() {
            *self = Self { ids: BTreeMap::new(), generation: config.generation() };
        }
        for (counted, count) in tally {
            let Some(id) = self.counter(config, counted) else { continue };
            // The id is Envoy's own, and a count of requests fits.
            let _ = hostcalls::increment_metric(id, i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    fn counter(&mut self, config: &Config, counted: Counted) -> Option<u32> {
        if let Some(id) = self.ids.get(&counted) {
            return Some(*id);
        }
        let name = stats::counter(config, counted)?;
        let id = hostcalls::define_metric(MetricType::Counter, &name).ok()?;
        self.ids.insert(counted, id);
        Some(id)
    }
}
