//! What a worker remembers of counters: which are spent, how much was left when it last heard of them, and
//! until when that holds.
//!
//! A remembered counter lets the worker refuse by itself. Once a second one request for it asks the store
//! again all the same, because somebody may have returned units, raised the quota or reset the counter.
//! At most [`MAX_SPENT`] counters are remembered; the one that ends first makes room, which costs a call
//! and is never wrong.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::evaluate::Counter;
use crate::time::Monotonic;

/// Most counters that a worker remembers as spent.
pub const MAX_SPENT: usize = 16 * 1024;

/// How often one request may ask again about a counter that is remembered as spent.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The memory of spent counters.
#[derive(Debug, Default)]
pub struct Ledger {
    spent: HashMap<Counter, Spent>,
    by_end: BTreeSet<(Monotonic, Counter)>,
}

#[derive(Clone, Copy, Debug)]
struct Spent {
    left: u64,
    quota: u64,
    ends: Monotonic,
    ask_at: Monotonic,
}

/// What the ledger says to a request that costs so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is known against it: ask the store.
    Ask,
    /// Not enough is left until `ends`.
    Refuse {
        /// Units left when the store was last heard.
        left: u64,
        /// The quota in force then.
        quota: u64,
        /// The end of the window, never too early.
        ends: Monotonic,
    },
}

impl Ledger {
    /// What is known about taking `cost` units of `counter`.
    pub fn verdict(&self, counter: &Counter, cost: u64, now: Monotonic) -> Verdict {
        if self.spent.get(counter).is_some_and(|spent| spent.ask_at <= now) && cost <= counter.quota {
            return Verdict::Ask;
        }
        self.last_word(counter, cost, now)
    }

    /// The same where nobody can be asked: what was known stays so until the window ends.
    pub fn last_word(&self, counter: &Counter, cost: u64, now: Monotonic) -> Verdict {
        let spent = self.spent.get(counter);
        if cost > counter.quota {
            let left = spent.map_or(counter.quota, |spent| spent.left);
            return Verdict::Refuse { left, quota: counter.quota, ends: now + counter.window.length() };
        }
        match spent {
            Some(spent) if spent.ends > now && cost > spent.left => {
                Verdict::Refuse { left: spent.left, quota: spent.quota, ends: spent.ends }
            }
            _ => Verdict::Ask,
        }
    }

    /// Notes that the store is being asked about `counter`, so that others need not for a second.
    pub fn asking(&mut self, counter: &Counter, now: Monotonic) {
        if let Some(spent) = self.spent.get_mut(counter) {
            spent.ask_at = now + ASK_AGAIN;
        }
    }

    /// Notes what a reply said: `left` units of `quota` until `ends`, received `now`. `short` tells whether
    /// that was too little for a request that waited.
    pub fn learn(
        &mut self,
        counter: &Counter,
        left: u64,
        quota: u64,
        ends: Monotonic,
        short: bool,
        now: Monotonic,
    ) {
        self.forget(counter);
        if left > 0 && !short {
            return;
        }
        self.make_room(now);
        self.spent.insert(counter.clone(), Spent { left, quota, ends, ask_at: now + ASK_AGAIN });
        self.by_end.insert((ends, counter.clone()));
    }

    /// Drops what no longer holds.
    pub fn expire(&mut self, now: Monotonic) {
        while self.by_end.first().is_some_and(|(ends, _)| *ends <= now) {
            self.drop_first();
        }
    }

    fn forget(&mut self, counter: &Counter) {
        if let Some(spent) = self.spent.remove(counter) {
            self.by_end.remove(&(spent.ends, counter.clone()));
        }
    }

    fn make_room(&mut self, now: Monotonic) {
        self.expire(now);
        if self.spent.len() >= MAX_SPENT {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some((_, counter)) = self.by_end.pop_first() {
            self.spent.remove(&counter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Window;

    fn counter(key: &str) -> Counter {
        Counter { key: key.into(), quota: 5, window: Window::new(60, 0).unwrap() }
    }

    fn at(ms: u64) -> Monotonic {
        Monotonic::new(Duration::from_millis(ms))
    }

    #[test]
    fn a_spent_counter_is_refused_until_its_end_and_asked_about_once_a_second() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        ledger.learn(&c, 0, 5, at(10_000), false, at(0));
        let refused = Verdict::Refuse { left: 0, quota: 5, ends: at(10_000) };
        assert_eq!(ledger.verdict(&c, 1, at(999)), refused);
        assert_eq!(ledger.verdict(&c, 1, at(1_000)), Verdict::Ask);
        assert_eq!(ledger.last_word(&c, 1, at(1_000)), refused);
        ledger.asking(&c, at(1_000));
        assert_eq!(ledger.verdict(&c, 1, at(1_001)), refused);
        ledger.asking(&c, at(9_999));
        assert_eq!(ledger.verdict(&c, 1, at(10_000)), Verdict::Ask);
    }

    #[test]
    fn what_is_left_still_serves_smaller_costs() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        ledger.learn(&c, 3, 5, at(10_000), true, at(0));
        assert_eq!(ledger.verdict(&c, 3, at(1)), Verdict::Ask);
        assert!(matches!(ledger.verdict(&c, 4, at(1)), Verdict::Refuse { left: 3, .. }));
    }

    #[test]
    fn plenty_is_not_remembered_and_clears_what_was() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        ledger.learn(&c, 0, 5, at(10_000), true, at(0));
        ledger.learn(&c, 4, 5, at(10_000), false, at(5));
        assert!(ledger.spent.is_empty());
        assert_eq!(ledger.verdict(&c, 1, at(6)), Verdict::Ask);
    }

    #[test]
    fn a_cost_above_the_quota_is_refused_without_asking() {
        let (ledger, c) = (Ledger::default(), counter("a"));
        assert_eq!(ledger.verdict(&c, 5, at(1)), Verdict::Ask);
        assert_eq!(ledger.verdict(&c, 6, at(1)), Verdict::Refuse { left: 5, quota: 5, ends: at(60_001) });
        let nobody = Counter { quota: 0, ..c };
        assert_eq!(
            ledger.verdict(&nobody, 1, at(1)),
            Verdict::Refuse { left: 0, quota: 0, ends: at(60_001) }
        );
    }

    #[test]
    fn another_quota_or_window_is_another_counter() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        ledger.learn(&c, 0, 5, at(10_000), true, at(0));
        assert_eq!(ledger.verdict(&Counter { quota: 6, ..c }, 1, at(1)), Verdict::Ask);
    }

    #[test]
    fn memory_is_bounded_and_drops_the_first_to_end() {
        let mut ledger = Ledger::default();
        for i in 0..=MAX_SPENT as u64 {
            ledger.learn(&counter(&i.to_string()), 0, 5, at(100_000 + i), true, at(0));
        }
        assert_eq!((ledger.spent.len(), ledger.by_end.len()), (MAX_SPENT, MAX_SPENT));
        assert_eq!(ledger.verdict(&counter("0"), 1, at(1)), Verdict::Ask);
        ledger.expire(at(200_000));
        assert!(ledger.spent.is_empty() && ledger.by_end.is_empty());
    }
}
