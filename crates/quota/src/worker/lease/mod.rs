//! Leases: units that a worker prefetches, for policies with `precision: lease`.
//!
//! A worker holds about as many units of a counter as it expects to need within `ahead`
//! ([`demand`]), and admits from them without a call. If that is less than the cost of one request,
//! it counts exactly. The bounds:
//!
//! * Units held and under way: at most `max`, and at most a hundredth of the quota.
//! * Refills under way: one per counter.
//! * A unit is spent until *dispatch of its call* + `reset_ms`. Whatever the delays, that is not
//!   after the end of its window. Later the worker drops it.
//! * Counters: at most [`MAX_LEASES`]. A counter without demand is dropped, and its units are
//!   refunded.
//!
//! A call costs about as much as ten of its items. So a lease prefetches with a reservation that a
//! request waits for, if there is one. When half of the units are gone and no request waits, a
//! refill gathers with others and leaves with the next call. It makes a call of its own only
//! half-way to the moment when the units will be gone, or after [`GATHER`]. By then all pools that
//! ran low meanwhile share that call. Refunds of leases gather for [`SWEEP`].

mod demand;
mod pool;

pub(crate) use pool::{LeaseBounds, Occasion};

use std::collections::HashMap;
use std::time::Duration;

use crate::decision::{Balance, GrantedUnits};
use crate::evaluate::Counter;
use crate::time::Monotonic;
use pool::Pool;

/// Most counters with a pool.
pub(crate) const MAX_LEASES: usize = 4096;
/// How long refills gather, so that they cost at most ten calls a second.
const GATHER: Duration = Duration::from_millis(100);
/// How often a worker looks for units that its leases do not need.
const SWEEP: Duration = Duration::from_millis(50);
/// About the time between ticks. A refill that the next tick would send too late leaves now.
const TICK: Duration = Duration::from_millis(10);

/// The leases of a worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leases {
    pools: HashMap<Counter, Pool>,
    /// Counters that may need a refill, each once.
    low: Vec<Counter>,
    /// When the first of them should be refilled.
    refill_at: Option<Monotonic>,
    sweep_at: Monotonic,
}

impl Leases {
    /// Whether no counter has a pool.
    pub(crate) fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// Takes `cost` units, if that many are leased and may be spent until `until`, and notes the
    /// demand. Returns them and what is left.
    pub(crate) fn take(
        &mut self,
        counter: &Counter,
        cost: u64,
        extent: LeaseBounds,
        until: Monotonic,
        now: Monotonic,
    ) -> Option<(GrantedUnits, Balance)> {
        let Some(pool) = self.pools.get_mut(counter) else {
            if self.pools.len() < MAX_LEASES {
                let mut pool = Pool::new(counter, extent, now);
                pool.wanted(cost, now);
                self.pools.insert(counter.clone(), pool);
            }
            return None;
        };
        pool.wanted(cost, now);
        pool.expire(now);
        let taken = pool.take(cost, until)?;
        if let Some(by) = pool.runs_low(now) {
            if !std::mem::replace(&mut pool.is_low, true) {
                self.low.push(counter.clone());
            }
            let by = by.min(now + GATHER);
            self.refill_at = Some(self.refill_at.map_or(by, |first| first.min(by)));
        }
        Some(taken)
    }

    /// The request that just took these units does not need them after all.
    pub(crate) fn undo(&mut self, counter: &Counter, cost: u64) {
        if let Some(pool) = self.pools.get_mut(counter) {
            pool.undo(cost);
        }
    }

    /// Whether `cost` units are leased.
    pub(crate) fn has(&self, counter: &Counter, cost: u64, now: Monotonic) -> bool {
        self.pools.get(counter).is_some_and(|pool| pool.has(cost, now))
    }

    /// Takes `cost` units for a request whose call did not bring them. Returns them and what is
    /// left.
    pub(crate) fn take_instead(
        &mut self,
        counter: &Counter,
        cost: u64,
        now: Monotonic,
    ) -> Option<(GrantedUnits, Balance)> {
        let pool = self.pools.get_mut(counter)?;
        pool.expire(now);
        pool.take(cost, now)
    }

    /// Leased units of window number `window`.
    pub(crate) fn units_of(&self, counter: &Counter, window: u64, now: Monotonic) -> u64 {
        self.pools.get(counter).map_or(0, |pool| pool.units_of(window, now))
    }

    /// What is left of a counter with a lease, leased units included.
    pub(crate) fn balance(&self, counter: &Counter) -> Option<Balance> {
        self.pools.get(counter)?.balance()
    }

    /// Takes back units that a request will not spend. Returns how many the lease does not need:
    /// refund those.
    pub(crate) fn take_back(
        &mut self,
        counter: &Counter,
        back: GrantedUnits,
        now: Monotonic,
    ) -> u64 {
        let Some(pool) = self.pools.get_mut(counter) else { return back.amount };
        pool.expire(now);
        back.amount - pool.take_back(back, now)
    }

    /// Whether a refill waits for a call.
    pub(crate) fn needs_refill(&self) -> bool {
        !self.low.is_empty()
    }

    /// Whether a refill waits that should not wait for another tick.
    pub(crate) fn refill_is_due(&self, now: Monotonic) -> bool {
        self.refill_at.is_some_and(|at| at < now + TICK)
    }

    /// The next counter that may need a refill.
    pub(crate) fn next_low(&mut self) -> Option<Counter> {
        let Some(counter) = self.low.pop() else {
            self.refill_at = None;
            return None;
        };
        if let Some(pool) = self.pools.get_mut(&counter) {
            pool.is_low = false;
        }
        Some(counter)
    }

    /// The call had no room for its refill.
    pub(crate) fn still_low(&mut self, counter: Counter) {
        if let Some(pool) = self.pools.get_mut(&counter) {
            pool.is_low = true;
            self.low.push(counter);
        }
    }

    /// How many units the call that leaves now should prefetch. They count as under way.
    pub(crate) fn prefetch(
        &mut self,
        counter: &Counter,
        occasion: Occasion,
        now: Monotonic,
    ) -> u64 {
        let Some(pool) = self.pools.get_mut(counter) else { return 0 };
        pool.expire(now);
        pool.prefetch(occasion, now)
    }

    /// Whether the quota of this counter may differ from its policy's.
    pub(crate) fn own_quota(&self, counter: &Counter) -> bool {
        self.pools.get(counter).is_some_and(|pool| pool.own_quota)
    }

    /// A call that prefetched `units` failed.
    pub(crate) fn failed(&mut self, counter: &Counter, units: u64) {
        if let Some(pool) = self.pools.get_mut(counter) {
            pool.call_ended(units);
        }
    }

    /// A call that prefetched `prefetched` units brought `units` that no request took. `balance` is
    /// what is left in the store. Returns how many the lease does not need: refund those.
    pub(crate) fn arrived(
        &mut self,
        counter: &Counter,
        prefetched: u64,
        units: GrantedUnits,
        balance: Balance,
        now: Monotonic,
    ) -> u64 {
        let Some(pool) = self.pools.get_mut(counter) else { return units.amount };
        pool.call_ended(prefetched);
        pool.arrived(units, balance, now)
    }

    /// Time has passed: drops leases that are over, and hands the units to refund to `refund`.
    pub(crate) fn tick(&mut self, now: Monotonic, mut refund: impl FnMut(&Counter, GrantedUnits)) {
        if now < self.sweep_at {
            return;
        }
        self.sweep_at = now + SWEEP;
        self.pools.retain(|counter, pool| {
            pool.expire(now);
            if let Some(surplus) = pool.surplus(now) {
                refund(counter, surplus);
            }
            !pool.is_over(now)
        });
    }

    /// Drops the leases of counters that no policy has any more, and hands their units to `refund`.
    pub(crate) fn release(
        &mut self,
        stays: impl Fn(&Counter) -> bool,
        mut refund: impl FnMut(&Counter, GrantedUnits),
    ) {
        self.pools.retain(|counter, pool| {
            let stays = stays(counter);
            if !stays && let Some(units) = pool.close() {
                refund(counter, units);
            }
            stays
        });
    }

    /// Units leased and under way.
    #[cfg(test)]
    pub(crate) fn load(&self, counter: &Counter) -> (u64, u64) {
        self.pools.get(counter).map_or((0, 0), Pool::load)
    }

    /// How many counters have a pool.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.pools.len()
    }
}
