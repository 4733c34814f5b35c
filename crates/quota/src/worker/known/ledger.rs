//! What a worker remembers of counters: which are spent, how much was left when it last heard of them, and
//! until when that holds.
//!
//! A remembered counter lets the worker refuse by itself. Once a second one request for it asks the store
//! again all the same, because somebody may have returned units, raised the quota or reset the counter.
//! At most [`MAX_SPENT`] counters are remembered; the one that ends first makes room, which costs a call
//! and is never wrong.

use std::time::Duration;

use crate::evaluate::Counter;
use crate::time::Monotonic;
use crate::worker::known::expiring::Expiring;

/// Most counters that a worker remembers as spent.
pub const MAX_SPENT: usize = 16 * 1024;

/// How often one request may ask again about a counter that is remembered as spent.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The memory of spent counters.
#[derive(Clone, Debug)]
pub struct Ledger(Expiring<Memory>);

#[derive(Clone, Copy, Debug)]
struct Memory {
    left: u64,
    quota: u64,
    window: u64,
    ask_at: Monotonic,
}

/// What the store said of a counter when it was last heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Units left.
    pub left: u64,
    /// The quota in force then.
    pub quota: u64,
    /// The number of the window.
    pub window: u64,
    /// The end of the window, never too early.
    pub ends: Monotonic,
}

/// Too little is left for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// Units left, as far as is known.
    pub left: u64,
    /// The quota that they are left of.
    pub quota: u64,
    /// The end of the window, never too early.
    pub ends: Monotonic,
}

/// What the ledger says to a request that costs so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is known against it: ask the store.
    Ask,
    /// Not enough is left.
    Refuse(Spent),
}

/// Whether the store may grant a cost above a counter's quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Above {
    /// It need not be asked.
    Never,
    /// The counter may have a run-time override, which only the store knows.
    Perhaps,
}

impl Default for Ledger {
    fn default() -> Self {
        Self(Expiring::new(MAX_SPENT))
    }
}

impl Ledger {
    /// What is known about taking `cost` units of `counter`.
    pub fn verdict(&self, counter: &Counter, cost: u64, above: Above, now: Monotonic) -> Verdict {
        let known = self.0.get(counter, now);
        match known {
            Some((memory, _)) if memory.ask_at <= now && may_be_granted(counter, cost, above) => Verdict::Ask,
            _ => judge(known, counter, cost, above, now),
        }
    }

    /// The same where nobody can be asked: what was known stays so until the window ends.
    pub fn last_word(&self, counter: &Counter, cost: u64, above: Above, now: Monotonic) -> Verdict {
        judge(self.0.get(counter, now), counter, cost, above, now)
    }

    /// Notes that the store is being asked about `counter`, so that others need not for a second.
    pub fn asking(&mut self, counter: &Counter, now: Monotonic) {
        if let Some(memory) = self.0.get_mut(counter, now) {
            memory.ask_at = now + ASK_AGAIN;
        }
    }

    /// Notes what a reply said, received `now`. `short` tells whether that was too little for a request that
    /// waited.
    pub fn learn(&mut self, counter: &Counter, heard: Heard, short: bool, now: Monotonic) {
        let Heard { left, quota, window, ends } = heard;
        if left > 0 && !short {
            self.0.forget(counter);
        } else {
            self.0.put(counter, Memory { left, quota, window, ask_at: now + ASK_AGAIN }, ends, now);
        }
    }

    /// Notes that this worker gives back `units` of window number `window`.
    pub fn given_back(&mut self, counter: &Counter, window: u64, units: u64, now: Monotonic) {
        if let Some(memory) = self.0.get_mut(counter, now)
            && memory.window == window
        {
            memory.left = memory.left.saturating_add(units).min(memory.quota);
        }
    }

    /// Drops what no longer holds.
    pub fn expire(&mut self, now: Monotonic) {
        self.0.expire(now);
    }
}

fn may_be_granted(counter: &Counter, cost: u64, above: Above) -> bool {
    above == Above::Perhaps || cost <= counter.quota
}

fn judge(
    known: Option<(&Memory, Monotonic)>,
    counter: &Counter,
    cost: u64,
    above: Above,
    now: Monotonic,
) -> Verdict {
    if !may_be_granted(counter, cost, above) {
        let left = known.map_or(counter.quota, |(memory, _)| memory.left.min(counter.quota));
        return Verdict::Refuse(Spent { left, quota: counter.quota, ends: now + counter.window.length() });
    }
    match known {
        Some((&Memory { left, quota, .. }, ends)) if cost > left => {
            Verdict::Refuse(Spent { left, quota, ends })
        }
        _ => Verdict::Ask,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Window;

    fn counter(key: &str) -> Counter {
        Counter { key: key.into(), quota: 5, window: Window::new(60, 0).unwrap() }
    }

    fn at(ms: u64) -> Monotonic {
        Monotonic::new(Duration::from_millis(ms))
    }

    fn heard(left: u64, ends: u64) -> Heard {
        Heard { left, quota: 5, window: 9, ends: at(ends) }
    }

    fn refused(left: u64, quota: u64, ends: u64) -> Verdict {
        Verdict::Refuse(Spent { left, quota, ends: at(ends) })
    }

    #[test]
    fn a_spent_counter_is_refused_until_its_end_and_asked_about_once_a_second() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        ledger.learn(&c, heard(0, 10_000), false, at(0));
        let refused = refused(0, 5, 10_000);
        assert_eq!(ledger.verdict(&c, 1, Above::Never, at(999)), refused);
        assert_eq!(ledger.verdict(&c, 1, Above::Never, at(1_000)), Verdict::Ask);
        assert_eq!(ledger.last_word(&c, 1, Above::Never, at(1_000)), refused);
        ledger.asking(&c, at(1_000));
        assert_eq!(ledger.verdict(&c, 1, Above::Never, at(1_001)), refused);
        ledger.asking(&c, at(9_999));
        assert_eq!(ledger.verdict(&c, 1, Above::Never, at(10_000)), Verdict::Ask);
    }

    #[test]
    fn what_is_left_still_serves_smaller_costs() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        ledger.learn(&c, heard(3, 10_000), true, at(0));
        assert_eq!(ledger.verdict(&c, 3, Above::Never, at(1)), Verdict::Ask);
        assert_eq!(ledger.verdict(&c, 4, Above::Never, at(1)), refused(3, 5, 10_000));
    }

    #[test]
    fn plenty_is_not_remembered_and_clears_what_was() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        ledger.learn(&c, heard(0, 10_000), true, at(0));
        ledger.learn(&c, heard(4, 10_000), false, at(5));
        assert_eq!(ledger.0.len(), 0);
        assert_eq!(ledger.verdict(&c, 1, Above::Never, at(6)), Verdict::Ask);
    }

    #[test]
    fn what_this_worker_gives_back_may_be_asked_for_at_once() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        ledger.learn(&c, heard(0, 10_000), true, at(0));
        ledger.given_back(&c, 8, 5, at(1));
        assert_eq!(ledger.verdict(&c, 1, Above::Never, at(1)), refused(0, 5, 10_000), "of another window");
        ledger.given_back(&c, 9, 2, at(1));
        assert_eq!(ledger.verdict(&c, 2, Above::Never, at(1)), Verdict::Ask);
        assert_eq!(ledger.verdict(&c, 3, Above::Never, at(1)), refused(2, 5, 10_000));
    }

    #[test]
    fn a_cost_above_the_quota_is_refused_without_asking() {
        let (ledger, c) = (Ledger::default(), counter("a"));
        assert_eq!(ledger.verdict(&c, 5, Above::Never, at(1)), Verdict::Ask);
        assert_eq!(ledger.verdict(&c, 6, Above::Never, at(1)), refused(5, 5, 60_001));
        let nobody = Counter { quota: 0, ..c };
        assert_eq!(ledger.verdict(&nobody, 1, Above::Never, at(1)), refused(0, 0, 60_001));
    }

    #[test]
    fn where_there_are_overrides_the_store_is_asked_about_a_cost_above_the_quota_and_believed() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        let nobody = Counter { quota: 0, ..c };
        assert_eq!(ledger.verdict(&nobody, 6, Above::Perhaps, at(1)), Verdict::Ask);
        assert_eq!(ledger.last_word(&nobody, 6, Above::Perhaps, at(1)), Verdict::Ask);
        ledger.learn(&nobody, Heard { left: 7, quota: 20, window: 9, ends: at(10_000) }, true, at(1));
        for above in [Above::Never, Above::Perhaps] {
            let expected = if above == Above::Never { refused(0, 0, 60_002) } else { refused(7, 20, 10_000) };
            assert_eq!(ledger.verdict(&nobody, 8, above, at(2)), expected);
        }
        assert_eq!(ledger.verdict(&nobody, 7, Above::Perhaps, at(2)), Verdict::Ask);
        assert_eq!(ledger.verdict(&nobody, 8, Above::Perhaps, at(1_001)), Verdict::Ask, "once a second");
        assert_eq!(ledger.verdict(&nobody, 8, Above::Never, at(1_001)), refused(0, 0, 61_001));
    }

    #[test]
    fn another_quota_or_window_is_another_counter() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        ledger.learn(&c, heard(0, 10_000), true, at(0));
        assert_eq!(ledger.verdict(&Counter { quota: 6, ..c }, 1, Above::Never, at(1)), Verdict::Ask);
    }

    #[test]
    fn memory_is_bounded_and_drops_the_first_to_end() {
        let mut ledger = Ledger::default();
        for i in 0..=MAX_SPENT as u64 {
            ledger.learn(&counter(&i.to_string()), heard(0, 100_000 + i), true, at(0));
        }
        assert_eq!(ledger.0.len(), MAX_SPENT);
        assert_eq!(ledger.verdict(&counter("0"), 1, Above::Never, at(1)), Verdict::Ask);
        ledger.expire(at(200_000));
        assert_eq!(ledger.0.len(), 0);
    }
}
