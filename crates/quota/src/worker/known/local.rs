//! Counters that a worker keeps itself while the store fails, for policies with `on_failure:
//! local`.
//!
//! Each counter starts at 0, against a share of its quota, and lives until its window ends. A
//! worker keeps at most [`MAX_LOCAL`]; the one that ends first makes room, and starts at 0 again.

use std::time::Duration;

use super::clock::StoreClock;
use super::expiring::Expiring;
use crate::decision::Balance;
use crate::evaluate::Counter;
use crate::time::Monotonic;

/// Most counters that a worker keeps itself.
const MAX_LOCAL: usize = 16 * 1024;

/// The counters that a worker keeps itself.
#[derive(Clone, Debug)]
pub(crate) struct Local(Expiring<u64>);

/// The units that one worker may admit while the store fails: `part` (more than 0, at most 1) of
/// the quota, rounded down, but at least 1. The share of a quota of 0 is 0.
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
    /// The balance with which `cost` units are refused, if fewer of `share` units are left.
    pub(crate) fn refuses(
        &self,
        counter: &Counter,
        cost: u64,
        share: u64,
        clock: &StoreClock,
        now: Monotonic,
    ) -> Option<Balance> {
        let counted = self.0.get(counter, now);
        let left = share.saturating_sub(counted.map_or(0, |(used, _)| *used));
        if cost <= left {
            return None;
        }
        let resets = counted.map_or_else(|| window_end(counter, clock, now), |(_, ends)| ends);
        Some(Balance { quota: share, remaining: left, resets, window_s: counter.window.usual_s() })
    }

    /// Counts `cost` units.
    pub(crate) fn take(
        &mut self,
        counter: &Counter,
        cost: u64,
        clock: &StoreClock,
        now: Monotonic,
    ) {
        if let Some(used) = self.0.get_mut(counter, now) {
            *used = used.saturating_add(cost);
        } else {
            self.0.put(counter, cost, window_end(counter, clock, now), now);
        }
    }

    /// Forgets counters whose window is over.
    pub(crate) fn expire(&mut self, now: Monotonic) {
        self.0.expire(now);
    }

    /// How many counters it keeps.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

fn window_end(counter: &Counter, clock: &StoreClock, now: Monotonic) -> Monotonic {
    let usual = Duration::from_secs(counter.window.usual_s().into());
    clock.end_of(&counter.window, now).unwrap_or_else(|| now + usual)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quotagate_protocol::{MAX_UNITS, Window};

    fn at(ms: u64) -> Monotonic {
        Monotonic::new(Duration::from_millis(ms))
    }

    fn counter(key: &str) -> Counter {
        Counter { key: key.into(), quota: 100, window: Window::new(60, 0).unwrap() }
    }

    #[test]
    fn share_is_at_least_one_and_at_most_the_quota() {
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
    fn local_counter_lives_until_the_known_window_end_or_for_one_window_length() {
        let mut heard = StoreClock::default();
        heard.hear(&Window::new(60, 0).unwrap(), 9, at(31_000));
        for (clock, ends) in [(StoreClock::default(), 61_000), (heard, 31_000)] {
            let (mut local, c) = (Local::default(), counter("a"));
            let spent =
                |left| Some(Balance { window_s: 60, quota: 10, remaining: left, resets: at(ends) });
            assert_eq!(local.refuses(&c, 11, 10, &clock, at(1_000)), spent(10));
            local.take(&c, 9, &clock, at(1_000));
            assert_eq!(local.refuses(&c, 1, 10, &clock, at(2_000)), None);
            assert_eq!(local.refuses(&c, 2, 10, &clock, at(2_000)), spent(1));
            local.take(&c, 1, &clock, at(2_000));
            assert_eq!(local.refuses(&c, 1, 10, &clock, at(ends - 1)), spent(0));
            assert_eq!(local.refuses(&c, 10, 10, &clock, at(ends)), None);
            local.expire(at(ends));
            assert_eq!(local.len(), 0);
        }
    }

    #[test]
    fn full_memory_forgets_the_counter_that_ends_first() {
        let (mut local, clock) = (Local::default(), StoreClock::default());
        for i in 0..=MAX_LOCAL {
            local.take(&counter(&i.to_string()), 10, &clock, at(i as u64));
        }
        assert_eq!(local.len(), MAX_LOCAL);
        assert_eq!(local.refuses(&counter("0"), 1, 10, &clock, at(20_000)), None);
        assert_ne!(local.refuses(&counter("1"), 1, 10, &clock, at(20_000)), None);
    }
}
