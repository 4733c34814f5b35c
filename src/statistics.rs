//! Envoy's counters of what was decided, by policy and outcome, and of what became of calls.
//!
//! They are defined when first needed; what another worker has defined under the same name is the same counter.

use std::collections::BTreeMap;

use proxy_wasm::hostcalls;
use proxy_wasm::types::MetricType;
use quotagate_quota::config::Config;
use quotagate_quota::stats;
use quotagate_quota::worker::Counted;

/// The host's ids of the counters so far.
#[derive(Debug, Default)]
pub struct Statistics(BTreeMap<Counted, u32>);

impl Statistics {
    /// Adds what has been counted.
    pub fn add(&mut self, config: &Config, tally: Vec<(Counted, u64)>) {
        for (counted, count) in tally {
            let Some(id) = self.counter(config, counted) else { continue };
            // The id is the host's own, and a sum of single requests fits.
            let _ = hostcalls::increment_metric(id, i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    fn counter(&mut self, config: &Config, counted: Counted) -> Option<u32> {
        if let Some(id) = self.0.get(&counted) {
            return Some(*id);
        }
        let name = stats::counter(config, counted)?;
        let id = hostcalls::define_metric(MetricType::Counter, &name).ok()?;
        self.0.insert(counted, id);
        Some(id)
    }
}
