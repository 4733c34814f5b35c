//! The ledger: counters that are spent, their balance, and how long it holds.
//!
//! A remembered counter lets the worker refuse without a call. Once per second, one request
//! rechecks the store in case units were refunded, the quota was raised or the counter was reset.
//! The ledger holds at most [`MAX_SPENT`] counters. The one that ends first makes room; that costs
//! a call and is never wrong.

use std::time::Duration;

use super::expiring::Expiring;
use crate::decision::Balance;
use crate::evaluate::Counter;
use crate::time::Monotonic;

/// Most counters that a worker remembers as spent.
const MAX_SPENT: usize = 16 * 1024;

/// How often one request rechecks a counter that is remembered as spent.
const RECHECK: Duration = Duration::from_secs(1);

/// The memory of spent counters.
#[derive(Clone, Debug)]
pub(crate) struct Ledger(Expiring<Memory>);

#[derive(Clone, Copy, Debug)]
struct Memory {
    balance: Balance,
    window: u64,
    recheck_at: Monotonic,
}

/// Whether the store may grant a cost above a counter's quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuntimeOverrides {
    /// No partition of the policy has one: the quota is the most that the store grants.
    None,
    /// Some partition has one. Only the store knows whether it is this one.
    Some,
}

impl Default for Ledger {
    fn default() -> Self {
        Self(Expiring::new(MAX_SPENT))
    }
}

impl Ledger {
    /// Why `cost` units of `counter` are refused without a call. `None`: ask the store.
    pub(crate) fn refuses(
        &self,
        counter: &Counter,
        cost: u64,
        overrides: RuntimeOverrides,
        now: Monotonic,
    ) -> Option<Balance> {
        let memory = self.0.get(counter, now).map(|(memory, _)| memory);
        if memory.is_some_and(|memory| memory.recheck_at <= now)
            && may_be_granted(counter, cost, overrides)
        {
            return None;
        }
        judge(memory, counter, cost, overrides, now)
    }

    /// The same while the store cannot be asked: a memory holds until its window ends.
    pub(crate) fn refuses_for_good(
        &self,
        counter: &Counter,
        cost: u64,
        overrides: RuntimeOverrides,
        now: Monotonic,
    ) -> Option<Balance> {
        judge(self.0.get(counter, now).map(|(memory, _)| memory), counter, cost, overrides, now)
    }

    /// A request asks the store about `counter`, so no other request rechecks it for a second.
    pub(crate) fn asking(&mut self, counter: &Counter, now: Monotonic) {
        if let Some(memory) = self.0.get_mut(counter, now) {
            memory.recheck_at = now + RECHECK;
        }
    }

    /// Learns from a reply that was received `now`. `short`: the grant was too small for a waiting
    /// request.
    pub(crate) fn learn(
        &mut self,
        counter: &Counter,
        window: u64,
        balance: Balance,
        short: bool,
        now: Monotonic,
    ) {
        if balance.remaining > 0 && !short {
            self.0.forget(counter);
        } else {
            let memory = Memory { balance, window, recheck_at: now + RECHECK };
            self.0.put(counter, memory, balance.resets, now);
        }
    }

    /// This worker refunds `units` of window number `window`.
    pub(crate) fn refunded(&mut self, counter: &Counter, window: u64, units: u64, now: Monotonic) {
        if let Some(Memory { balance, window: known, .. }) = self.0.get_mut(counter, now)
            && *known == window
        {
            balance.remaining = balance.remaining.saturating_add(units).min(balance.quota);
        }
    }

    /// This worker charges `units` of window number `window`.
    pub(crate) fn charged(&mut self, counter: &Counter, window: u64, units: u64, now: Monotonic) {
        if let Some(Memory { balance, window: known, .. }) = self.0.get_mut(counter, now)
            && *known == window
        {
            balance.remaining = balance.remaining.saturating_sub(units);
        }
    }

    /// Forgets counters whose window is over.
    pub(crate) fn expire(&mut self, now: Monotonic) {
        self.0.expire(now);
    }
}

fn may_be_granted(counter: &Counter, cost: u64, overrides: RuntimeOverrides) -> bool {
    overrides == RuntimeOverrides::Some || cost <= counter.quota
}

fn judge(
    memory: Option<&Memory>,
    counter: &Counter,
    cost: u64,
    overrides: RuntimeOverrides,
    now: Monotonic,
) -> Option<Balance> {
    if !may_be_granted(counter, cost, overrides) {
        let quota = counter.quota;
        let remaining = memory.map_or(quota, |memory| memory.balance.remaining.min(quota));
        let window_s = counter.window.usual_s();
        let resets = now + Duration::from_secs(window_s.into());
        return Some(Balance { quota, remaining, resets, window_s });
    }
    memory.map(|memory| memory.balance).filter(|balance| cost > balance.remaining)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quotagate_protocol::{Calendar, Unit, Window};

    fn counter(key: &str) -> Counter {
        Counter { key: key.into(), quota: 5, window: Window::new(60, 0).unwrap() }
    }

    fn at(ms: u64) -> Monotonic {
        Monotonic::new(Duration::from_millis(ms))
    }

    fn left(remaining: u64, resets: u64) -> Balance {
        Balance { window_s: 60, remaining, quota: 5, resets: at(resets) }
    }

    fn refused(remaining: u64, quota: u64, resets: u64) -> Option<Balance> {
        Some(Balance { window_s: 60, remaining, quota, resets: at(resets) })
    }

    #[test]
    fn spent_counter_is_refused_until_its_window_ends_and_rechecked_once_per_second() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        ledger.learn(&c, 9, left(0, 10_000), false, at(0));
        let refused = refused(0, 5, 10_000);
        assert_eq!(ledger.refuses(&c, 1, RuntimeOverrides::None, at(999)), refused);
        assert_eq!(ledger.refuses(&c, 1, RuntimeOverrides::None, at(1_000)), None);
        assert_eq!(ledger.refuses_for_good(&c, 1, RuntimeOverrides::None, at(1_000)), refused);
        ledger.asking(&c, at(1_000));
        assert_eq!(ledger.refuses(&c, 1, RuntimeOverrides::None, at(1_001)), refused);
        ledger.asking(&c, at(9_999));
        assert_eq!(ledger.refuses(&c, 1, RuntimeOverrides::None, at(10_000)), None);
    }

    #[test]
    fn remaining_units_still_serve_smaller_costs() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        ledger.learn(&c, 9, left(3, 10_000), true, at(0));
        assert_eq!(ledger.refuses(&c, 3, RuntimeOverrides::None, at(1)), None);
        assert_eq!(ledger.refuses(&c, 4, RuntimeOverrides::None, at(1)), refused(3, 5, 10_000));
    }

    #[test]
    fn counter_with_units_left_is_forgotten() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        ledger.learn(&c, 9, left(0, 10_000), true, at(0));
        ledger.learn(&c, 9, left(4, 10_000), false, at(5));
        assert_eq!(ledger.0.len(), 0);
        assert_eq!(ledger.refuses(&c, 1, RuntimeOverrides::None, at(6)), None);
    }

    #[test]
    fn refunded_units_may_be_asked_for_at_once() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        ledger.learn(&c, 9, left(0, 10_000), true, at(0));
        ledger.refunded(&c, 8, 5, at(1));
        assert_eq!(
            ledger.refuses(&c, 1, RuntimeOverrides::None, at(1)),
            refused(0, 5, 10_000),
            "units of another window"
        );
        ledger.refunded(&c, 9, 2, at(1));
        assert_eq!(ledger.refuses(&c, 2, RuntimeOverrides::None, at(1)), None);
        assert_eq!(ledger.refuses(&c, 3, RuntimeOverrides::None, at(1)), refused(2, 5, 10_000));
    }

    #[test]
    fn cost_above_the_quota_is_refused_without_a_call() {
        let (ledger, c) = (Ledger::default(), counter("a"));
        assert_eq!(ledger.refuses(&c, 5, RuntimeOverrides::None, at(1)), None);
        assert_eq!(ledger.refuses(&c, 6, RuntimeOverrides::None, at(1)), refused(5, 5, 60_001));
        let zero = Counter { quota: 0, ..c };
        assert_eq!(ledger.refuses(&zero, 1, RuntimeOverrides::None, at(1)), refused(0, 0, 60_001));
    }

    #[test]
    fn refusal_without_a_reply_shows_the_usual_length_of_a_calendar_window() {
        let calendar = Calendar { unit: Unit::Day, time_zone: "UTC".into() };
        let daily = Counter { window: Window::Calendar(calendar), ..counter("a") };
        let balance = Ledger::default().refuses(&daily, 6, RuntimeOverrides::None, at(0));
        let shown = balance.map(|balance| (balance.window_s, balance.resets));
        assert_eq!(shown, Some((86_400, at(86_400_000))));
    }

    #[test]
    fn policy_with_runtime_overrides_asks_the_store_about_a_cost_above_the_quota() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        let zero = Counter { quota: 0, ..c };
        assert_eq!(ledger.refuses(&zero, 6, RuntimeOverrides::Some, at(1)), None);
        assert_eq!(ledger.refuses_for_good(&zero, 6, RuntimeOverrides::Some, at(1)), None);
        ledger.learn(
            &zero,
            9,
            Balance { window_s: 60, remaining: 7, quota: 20, resets: at(10_000) },
            true,
            at(1),
        );
        for overrides in [RuntimeOverrides::None, RuntimeOverrides::Some] {
            let expected = if overrides == RuntimeOverrides::None {
                refused(0, 0, 60_002)
            } else {
                refused(7, 20, 10_000)
            };
            assert_eq!(ledger.refuses(&zero, 8, overrides, at(2)), expected);
        }
        assert_eq!(ledger.refuses(&zero, 7, RuntimeOverrides::Some, at(2)), None);
        assert_eq!(
            ledger.refuses(&zero, 8, RuntimeOverrides::Some, at(1_001)),
            None,
            "once a second"
        );
        assert_eq!(
            ledger.refuses(&zero, 8, RuntimeOverrides::None, at(1_001)),
            refused(0, 0, 61_001)
        );
    }

    #[test]
    fn counter_with_another_quota_is_another_counter() {
        let (mut ledger, c) = (Ledger::default(), counter("a"));
        ledger.learn(&c, 9, left(0, 10_000), true, at(0));
        assert_eq!(
            ledger.refuses(&Counter { quota: 6, ..c }, 1, RuntimeOverrides::None, at(1)),
            None
        );
    }

    #[test]
    fn full_ledger_forgets_the_counter_that_ends_first() {
        let mut ledger = Ledger::default();
        for i in 0..=MAX_SPENT as u64 {
            ledger.learn(&counter(&i.to_string()), 9, left(0, 100_000 + i), true, at(0));
        }
        assert_eq!(ledger.0.len(), MAX_SPENT);
        assert_eq!(ledger.refuses(&counter("0"), 1, RuntimeOverrides::None, at(1)), None);
        ledger.expire(at(200_000));
        assert_eq!(ledger.0.len(), 0);
    }
}
