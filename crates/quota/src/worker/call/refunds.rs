//! Units on their way back to the store: granted, never spent.
//!
//! Each is sent once at most. What cannot be sent in time, or no longer fits ([`MAX_REFUNDS`]), is dropped,
//! which only admits fewer.

use std::collections::HashMap;
use std::rc::Rc;

use crate::evaluate::Counter;
use crate::protocol::{MAX_UNITS, Refund};
use crate::time::Monotonic;
use crate::worker::lease::pool::Units;

/// Most counters with units waiting to go back.
pub const MAX_REFUNDS: usize = 4096;

/// The units to give back, merged by key and window.
#[derive(Clone, Debug, Default)]
pub struct Refunds {
    waiting: HashMap<(Rc<str>, u32, u64), (u64, Monotonic)>,
}

impl Refunds {
    /// Adds units of `counter`, if there are any.
    pub(crate) fn add(&mut self, counter: &Counter, back: Units) {
        let Units { units, window, ends, .. } = back;
        if units == 0 {
            return;
        }
        let id = (Rc::clone(&counter.key), counter.window.seconds(), window);
        if let Some((waiting, _)) = self.waiting.get_mut(&id) {
            // More than was ever granted only where the store answers nonsense; but a return beyond the bounds would
            // be refused, and the requests of its call with it.
            *waiting = waiting.saturating_add(units).min(MAX_UNITS);
        } else if self.waiting.len() < MAX_REFUNDS {
            self.waiting.insert(id, (units, ends));
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes at most `most` of those whose window is still open; from here on they are sent or lost.
    pub fn take(&mut self, most: usize, now: Monotonic) -> Vec<Refund<Rc<str>>> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        self.waiting.retain(|_, (_, ends)| *ends > now);
        let chosen: Vec<_> = self.waiting.keys().take(most).cloned().collect();
        let mut taken = Vec::with_capacity(chosen.len());
        for id in chosen {
            if let Some((units, _)) = self.waiting.remove(&id) {
                let (key, window_s, window) = id;
                taken.push(Refund { key, window_s, window, units });
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::Window;

    fn at(ms: u64) -> Monotonic {
        Monotonic::new(Duration::from_millis(ms))
    }

    fn add(refunds: &mut Refunds, window: u64, units: u64, ends: Monotonic) {
        let counter = Counter { key: "a".into(), quota: 5, window: Window::new(60, 0).unwrap() };
        refunds.add(&counter, Units { units, window, until: ends, ends });
    }

    #[test]
    fn equal_ones_are_merged_and_leave_once() {
        let mut refunds = Refunds::default();
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
    fn no_return_is_beyond_what_a_message_may_say() {
        let mut refunds = Refunds::default();
        add(&mut refunds, 1, MAX_UNITS, at(100));
        add(&mut refunds, 1, MAX_UNITS, at(100));
        let taken = refunds.take(10, at(0));
        assert_eq!(taken.iter().map(|r| r.units).collect::<Vec<_>>(), [MAX_UNITS]);
    }

    #[test]
    fn those_of_a_closed_window_are_dropped_and_the_pool_is_bounded() {
        let mut refunds = Refunds::default();
        for i in 0..MAX_REFUNDS as u64 + 10 {
            add(&mut refunds, i, 1, at(100 + i % 2));
        }
        assert_eq!(refunds.take(10, at(100)).len(), 10);
        assert_eq!(refunds.take(usize::MAX, at(100)).len(), MAX_REFUNDS / 2 - 10);
        assert!(refunds.is_empty());
    }
}
