//! How many calls were answered, and how long they took.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::picture::Pace;

/// Calls so far.
#[derive(Debug, Default)]
pub struct Calls {
    count: AtomicU64,
    failed: AtomicU64,
    micros: AtomicU64,
}

/// Calls until a moment.
#[derive(Clone, Copy, Debug)]
pub struct Totals {
    /// Calls.
    pub calls: u64,
    /// How many of them had another status than 200.
    pub failed: u64,
    /// Microseconds that they took.
    pub micros: u64,
    /// When they were read.
    pub at: Instant,
}

impl Calls {
    /// Counts a call that was answered with `status` after `took`.
    pub fn add(&self, status: u16, took: Duration) {
        self.count.fetch_add(1, Relaxed);
        self.failed.fetch_add((status != 200).into(), Relaxed);
        self.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or_default(), Relaxed);
    }

    /// All calls until now.
    pub fn totals(&self) -> Totals {
        let [calls, failed, micros] =
            [&self.count, &self.failed, &self.micros].map(|sum| sum.load(Relaxed));
        Totals { calls, failed, micros, at: Instant::now() }
    }
}

impl Totals {
    /// The calls between an earlier moment and this one.
    pub fn since(&self, before: &Self) -> Pace {
        let calls = self.calls.saturating_sub(before.calls) as f64;
        let micros = self.micros.saturating_sub(before.micros) as f64;
        // Avoids a division by zero.
        let seconds = self.at.saturating_duration_since(before.at).as_secs_f64().max(0.001);
        Pace { per_s: calls / seconds, ms: (calls > 0.0).then(|| micros / calls / 1000.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_is_relative_to_the_elapsed_time() {
        let begun = Instant::now();
        let totals = |calls, micros, ms| {
            let at = begun + Duration::from_millis(ms);
            Totals { calls, failed: 0, micros, at }
        };
        let before = totals(10, 1000, 0);
        let pace = |per_s, ms| Pace { per_s, ms };
        assert_eq!(totals(40, 7000, 1000).since(&before), pace(30.0, Some(0.2)));
        assert_eq!(totals(40, 7000, 3000).since(&before), pace(10.0, Some(0.2)));
        assert_eq!(totals(10, 1000, 0).since(&before), pace(0.0, None));
    }
}
