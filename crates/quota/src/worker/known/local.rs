//! What a worker counts by itself while the store fails, for policies with `on_failure: local`.
//!
//! Each counter begins at nothing, against a part of its quota, and lives until its window ends. At most
//! [`MAX_LOCAL`] are counted; the one that ends first makes room, and begins anew.

use crate::evaluate::Counter;
use crate::time::Monotonic;
use crate::worker::known::clock::StoreClock;
use crate::worker::known::expiring::Expiring;
use crate::worker::known::ledger::{Spent, Verdict};

/// Most counters that a worker counts by itself.
pub(crate) const MAX_LOCAL: usize = 16 * 1024;

/// The counters that a worker counts by itself.
#[derive(Clone, Debug)]
pub(crate) struct Local(Expiring<u64>);

/// The units that one worker may admit by itself: `part` (more than 0, at most 1) of the quota, rounded down,
/// but at least 1; of no quota none.
pub(crate) fn share(quota: u64, part: f64) -> u64 {
    // 100 x 0.29 is 28.999999999999996.
    let rounding = 1e-6;
    ((quota as f64 * part + rounding) as u64).clamp(quota.min(1), quota)
}

impl Default for Local {
    fn default() -> Self {
        Self(Expiring::new(MAX_LOCAL))
    }
}

impl Local {
    /// Whether `cost` units are left of `share` units, and if not, how many and until when.
    pub(crate) fn verdict(
        &self,
        counter: &Counter,
        cost: u64,
        share: u64,
        clock: &StoreClock,
        now: Monotonic,
    ) -> Verdict {
        let counted = self.0.get(counter, now);
        let left = share.saturating_sub(counted.map_or(0, |(used, _)| *used));
        if cost <= left {
            return Verdict::Ask;
        }
        let ends = counted.map_or_else(|| window_end(counter, clock, now), |(_, ends)| ends);
        Verdict::Refuse(Spent { left, quota: share, ends })
    }

    /// Counts `cost` units.
    pub(crate) fn take(&mut self, counter: &Counter, cost: u64, clock: &StoreClock, now: Monotonic) {
        if let Some(used) = self.0.get_mut(counter, now) {
            *used = used.saturating_add(cost);
        } else {
            self.0.put(counter, cost, window_end(counter, clock, now), now);
        }
    }

    /// Drops the counters whose window is over.
    pub(crate) fn expire(&mut self, now: Monotonic) {
        self.0.expire(now);
    }

    /// How many counters there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

fn window_end(counter: &Counter, clock: &StoreClock, now: Monotonic) -> Monotonic {
    clock.end_of(counter.window, now).unwrap_or_else(|| now + counter.window.length())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::{MAX_UNITS, Window};

    fn at(ms: u64) -> Monotonic {
        Monotonic::new(Duration::from_millis(ms))
    }

    fn counter(key: &str) -> Counter {
        Counter { key: key.into(), quota: 100, window: Window::new(60, 0).unwrap() }
    }

    #[test]
    fn a_share_is_at_least_one_and_never_more_than_the_quota() {
        for (quota, part, expected) in [
            (0, 1.0, 0),
            (1, 0.000_1, 1),
            (9, 0.1, 1),
            (25, 0.1, 2),
            (100, 1.0, 100),
            (100, 0.29, 29),
            (MAX_UNITS, 1.0, MAX_UNITS),
            (MAX_UNITS, 0.5, MAX_UNITS / 2),
        ] {
            assert_eq!(share(quota, part), expected, "{quota} x {part}");
        }
    }

    #[test]
    fn it_counts_until_the_window_ends_that_the_store_told_or_one_that_begins_with_the_first() {
        let mut told = StoreClock::default();
        told.hear(Window::new(60, 0).unwrap(), 9, at(31_000));
        for (clock, ends) in [(StoreClock::default(), 61_000), (told, 31_000)] {
            let (mut local, c) = (Local::default(), counter("a"));
            let spent = |left| Verdict::Refuse(Spent { left, quota: 10, ends: at(ends) });
            assert_eq!(local.verdict(&c, 11, 10, &clock, at(1_000)), spent(10));
            local.take(&c, 9, &clock, at(1_000));
            assert_eq!(local.verdict(&c, 1, 10, &clock, at(2_000)), Verdict::Ask);
            assert_eq!(local.verdict(&c, 2, 10, &clock, at(2_000)), spent(1));
            local.take(&c, 1, &clock, at(2_000));
            assert_eq!(local.verdict(&c, 1, 10, &clock, at(ends - 1)), spent(0));
            assert_eq!(local.verdict(&c, 10, 10, &clock, at(ends)), Verdict::Ask);
            local.expire(at(ends));
            assert_eq!(local.len(), 0);
        }
    }

    #[test]
    fn memory_is_bounded() {
        let (mut local, clock) = (Local::default(), StoreClock::default());
        for i in 0..=MAX_LOCAL {
            local.take(&counter(&i.to_string()), 10, &clock, at(i as u64));
        }
        assert_eq!(local.len(), MAX_LOCAL);
        assert_eq!(local.verdict(&counter("0"), 1, 10, &clock, at(20_000)), Verdict::Ask);
        assert_ne!(local.verdict(&counter("1"), 1, 10, &clock, at(20_000)), Verdict::Ask);
    }
}
