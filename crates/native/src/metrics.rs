//! Envoy's counters of decisions and calls, with labels.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quotagate_quota::config::Config;
use quotagate_quota::stats::{self, FAMILIES};
use quotagate_quota::time::Monotonic;
use quotagate_quota::worker::Counted;

use crate::abi::FilterConfig;
use crate::clock::{millis, millis_of};
use crate::main_thread::MainThread;

/// Counts are written this often.
const PERIOD: Duration = Duration::from_millis(100);

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

    /// Passes the counts of a worker with this configuration to `add`: the counter, its labels and
    /// the count.
    pub fn each(
        &self,
        config: &Config,
        tally: Vec<(Counted, u64)>,
        mut add: impl FnMut(usize, &[&str], u64),
    ) {
        for (counted, count) in tally {
            if let Some((family, labels)) = stats::labels(config, counted)
                && let Some(Some(id)) = self.families.get(family)
            {
                add(*id, &labels, count);
            }
        }
        for (counter, waiting) in [(self.panics, &PANICS), (self.stalls, &STALLS)] {
            if let Some(id) = counter
                && waiting.load(Ordering::Relaxed) > 0
            {
                add(id, &[], waiting.swap(0, Ordering::Relaxed));
            }
        }
    }
}

/// When the counts of one shard are written.
pub struct MetricsSchedule {
    /// Writes what the last stream leaves, where Envoy can.
    main: Option<Arc<MainThread>>,
    /// When the shard last looked at the clock, in milliseconds of [`now`](crate::clock::now).
    seen_ms: AtomicU64,
    /// When the counts were last written, as `seen_ms`.
    written_ms: AtomicU64,
    /// Whether the main thread was asked to write, and has not yet.
    is_asked: AtomicBool,
}

impl MetricsSchedule {
    /// Nothing was written yet. Without `main`, streams write everything.
    pub const fn new(main: Option<Arc<MainThread>>) -> Self {
        let (seen_ms, written_ms) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { main, seen_ms, written_ms, is_asked: AtomicBool::new(false) }
    }

    /// The shard has looked at the clock.
    pub fn saw(&self, now: Monotonic) {
        self.seen_ms.store(millis(now), Ordering::Relaxed);
    }

    /// Whether a stream that ends writes the counts. `is_last`: no other stream is left for now.
    pub fn is_for_stream(&self, is_last: bool) -> bool {
        let faults = PANICS.load(Ordering::Relaxed) > 0 || STALLS.load(Ordering::Relaxed) > 0;
        self.is_due() || is_last && (self.main.is_none() || faults)
    }

    /// Asks the main thread to write, if that is due. Nothing may be locked: Envoy may destroy the
    /// configuration meanwhile.
    pub fn ask(&self) {
        if self.is_due()
            && let Some(scheduler) = self.main.as_ref().and_then(|main| main.scheduler())
        {
            self.is_asked.store(true, Ordering::Relaxed);
            scheduler.commit();
        }
    }

    /// Whether the main thread was asked.
    pub fn is_for_main(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    /// The counts are taken.
    pub fn wrote(&self) {
        self.is_asked.store(false, Ordering::Relaxed);
        self.written_ms.store(self.seen_ms.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn is_due(&self) -> bool {
        let written = self.written_ms.load(Ordering::Relaxed);
        self.seen_ms.load(Ordering::Relaxed).saturating_sub(written) >= millis_of(PERIOD)
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
