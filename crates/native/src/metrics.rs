//! Envoy's counters of decisions and calls, with labels.

use std::sync::atomic::{AtomicU64, Ordering};

use quotagate_quota::config::Config;
use quotagate_quota::stats::{self, FAMILIES};
use quotagate_quota::worker::Counted;

use crate::abi::{FilterConfig, Host};

/// Panics that no counter shows yet.
static PANICS: AtomicU64 = AtomicU64::new(0);
/// Seconds in which the runtime thread stalled, and that no counter shows yet.
static STALLS: AtomicU64 = AtomicU64::new(0);

/// The counters of one filter configuration.
#[derive(Debug)]
pub struct Metrics {
    families: [Option<usize>; FAMILIES.len()],
    panics: Option<usize>,
    stalls: Option<usize>,
}

impl Metrics {
    /// Defines all counters, while Envoy makes the configuration.
    pub fn define(config: &FilterConfig<'_>) -> Self {
        Self {
            families: FAMILIES.map(|family| config.define_counter(family.name, family.labels)),
            panics: config.define_counter("quotagate_panics", &[]),
            stalls: config.define_counter("quotagate_runtime_stalled_seconds", &[]),
        }
    }

    /// No counters, for a route: its requests count in those of the listener.
    pub const fn none() -> Self {
        Self { families: [None; FAMILIES.len()], panics: None, stalls: None }
    }

    /// Adds the counts of a worker with this configuration, in a hook of any stream.
    pub fn add(&self, host: &Host<'_>, config: &Config, tally: Vec<(Counted, u64)>) {
        for (counted, count) in tally {
            if let Some((family, labels)) = stats::labels(config, counted)
                && let Some(Some(id)) = self.families.get(family)
            {
                host.add_to_counter(*id, &labels, count);
            }
        }
        for (counter, waiting) in [(self.panics, &PANICS), (self.stalls, &STALLS)] {
            if let Some(id) = counter
                && waiting.load(Ordering::Relaxed) > 0
            {
                host.add_to_counter(id, &[], waiting.swap(0, Ordering::Relaxed));
            }
        }
    }
}

/// Counts a panic, on any thread.
pub fn count_panic() {
    PANICS.fetch_add(1, Ordering::Relaxed);
}

/// Counts a second in which the runtime thread stalled.
pub fn count_stall() {
    STALLS.fetch_add(1, Ordering::Relaxed);
}
