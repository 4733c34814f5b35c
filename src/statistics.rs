//! Envoy's counters of what was decided, by policy and outcome.
//!
//! They are defined when first needed; what another worker has defined under the same name is the same counter.

use std::collections::BTreeMap;

use proxy_wasm::hostcalls;
use proxy_wasm::types::MetricType;
use quotagate_quota::config::Config;
use quotagate_quota::decision::Outcome;
use quotagate_quota::stats;

/// The host's ids of the counters so far: as many as there are policies and outcomes at most.
#[derive(Debug, Default)]
pub struct Statistics(BTreeMap<(usize, Outcome), u32>);

impl Statistics {
    /// Adds what has been counted.
    pub fn add(&mut self, config: &Config, tally: Vec<(usize, Outcome, u64)>) {
        for (policy, outcome, count) in tally {
            let Some(id) = self.counter(config, policy, outcome) else { continue };
            // The id is the host's own, and a sum of single requests fits.
            let _ = hostcalls::increment_metric(id, i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    fn counter(&mut self, config: &Config, policy: usize, outcome: Outcome) -> Option<u32> {
        if let Some(id) = self.0.get(&(policy, outcome)) {
            return Some(*id);
        }
        let name = stats::counter(config, policy, outcome)?;
        let id = hostcalls::define_metric(MetricType::Counter, &name).ok()?;
        self.0.insert((policy, outcome), id);
        Some(id)
    }
}
