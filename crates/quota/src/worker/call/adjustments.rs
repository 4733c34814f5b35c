//! Units to refund, because the store granted them and nobody spent them; and units to charge,
//! because a settled cost is higher than its reservation.
//!
//! Each is sent at most once. Units that cannot be sent in time, or that no longer fit
//! ([`MAX_COUNTERS`]), are dropped: a dropped refund admits fewer requests, and after a dropped
//! charge the reservation stands.

use std::collections::HashMap;
use std::sync::Arc;

use quotagate_protocol::{Adjustment, MAX_UNITS, Window};

use crate::decision::GrantedUnits;
use crate::evaluate::Counter;
use crate::time::Monotonic;

/// Most counters and windows with units to refund, or to charge.
const MAX_COUNTERS: usize = 4096;

/// The units to refund, or those to charge, merged by key and window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adjustments {
    waiting: HashMap<(Arc<str>, Window, u64), (u64, Monotonic)>,
}

impl Adjustments {
    /// Adds units of `counter`. An amount of 0 adds nothing.
    pub(crate) fn add(&mut self, counter: &Counter, units: GrantedUnits) {
        let GrantedUnits { amount, window, resets, .. } = units;
        if amount == 0 {
            return;
        }
        let id = (Arc::clone(&counter.key), counter.window.clone(), window);
        if let Some((waiting, _)) = self.waiting.get_mut(&id) {
            // The store would reject a call with an adjustment beyond the bounds.
            *waiting = waiting.saturating_add(amount).min(MAX_UNITS);
        } else if self.waiting.len() < MAX_COUNTERS {
            self.waiting.insert(id, (amount, resets));
        }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes at most `most` adjustments whose window still runs. The caller must send them now.
    pub(crate) fn take(&mut self, most: usize, now: Monotonic) -> Vec<Adjustment> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        self.waiting.retain(|_, (_, ends)| *ends > now);
        let chosen: Vec<_> = self.waiting.keys().take(most).cloned().collect();
        let mut taken = Vec::with_capacity(chosen.len());
        for id in chosen {
            if let Some((units, _)) = self.waiting.remove(&id) {
                let (key, whose, window) = id;
                let (kind, window_s, offset_s) = whose.parts();
                taken.push(Adjustment { key, kind, window_s, offset_s, window, units });
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(ms: u64) -> Monotonic {
        Monotonic::new(Duration::from_millis(ms))
    }

    fn add(refunds: &mut Adjustments, window: u64, amount: u64, resets: Monotonic) {
        let counter = Counter { key: "a".into(), quota: 5, window: Window::new(60, 0).unwrap() };
        refunds.add(&counter, GrantedUnits { amount, window, spendable_until: resets, resets });
    }

    #[test]
    fn equal_refunds_merge_and_leave_once() {
        let mut refunds = Adjustments::default();
        add(&mut refunds, 1, 2, at(100));
        add(&mut refunds, 1, 3, at(100));
        add(&mut refunds, 2, 1, at(100));
        add(&mut refunds, 3, 0, at(100));
        let mut taken = refunds.take(10, at(0));
        taken.sort_by_key(|r| r.window);
        assert_eq!(taken.iter().map(|r| (r.window, r.units)).collect::<Vec<_>>(), [(1, 5), (2, 1)]);
        assert!(refunds.is_empty() && refunds.take(10, at(0)).is_empty());
    }

    #[test]
    fn merged_refund_stays_within_the_bounds_of_the_protocol() {
        let mut refunds = Adjustments::default();
        add(&mut refunds, 1, MAX_UNITS, at(100));
        add(&mut refunds, 1, MAX_UNITS, at(100));
        let taken = refunds.take(10, at(0));
        assert_eq!(taken.iter().map(|r| r.units).collect::<Vec<_>>(), [MAX_UNITS]);
    }

    #[test]
    fn refunds_of_closed_windows_are_dropped_and_memory_is_bounded() {
        let mut refunds = Adjustments::default();
        for i in 0..MAX_COUNTERS as u64 + 10 {
            add(&mut refunds, i, 1, at(100 + i % 2));
        }
        assert_eq!(refunds.take(10, at(100)).len(), 10);
        assert_eq!(refunds.take(usize::MAX, at(100)).len(), MAX_COUNTERS / 2 - 10);
        assert!(refunds.is_empty());
    }
}
