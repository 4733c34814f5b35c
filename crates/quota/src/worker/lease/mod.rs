//! Units held ahead of need, for policies with `precision: lease`.
//!
//! A worker holds about as many units of a counter as it will be asked for within the next `ahead` ([`demand`]),
//! and admits from them without a call. Where that is less than one unit the counter is counted exactly. The
//! bounds:
//!
//! * units held and on their way: at most `max`, and at most a hundredth of the quota.
//! * one refill a counter is on its way at a time.
//! * a unit is spent until *dispatch of its call* + `reset_ms`, which is not after its window's end whatever the
//!   delays; then it is dropped.
//! * at most [`MAX_LEASES`] counters; one that nobody asks for is dropped, and its units go back.
//!
//! A call costs about as much as ten items of one. So units are asked for beside a request that waits wherever one
//! does. Where no more than half is left and nobody waits, a refill gathers with others and leaves with the next
//! call, and makes a call of its own only when half of the time is over until the units are gone, or after
//! [`GATHER`]: by then its call is shared by all that ran low meanwhile. What goes back gathers likewise, for
//! [`SWEEP`].
//! [`demand`]: crate::worker::lease::demand

mod demand;
pub(crate) mod pool;

use std::collections::HashMap;
use std::time::Duration;

use crate::evaluate::Counter;
use crate::time::Monotonic;
use crate::worker::known::ledger::{Heard, Spent};
use pool::{Extent, Lease, Occasion, Taken, Units};

/// Most counters of which units are held.
pub(crate) const MAX_LEASES: usize = 4096;
/// So long refills gather that nobody waits for: ten ticks, so that what is left costs at most ten calls a second.
const GATHER: Duration = Duration::from_millis(100);
/// How often it is looked for what is held in vain.
const SWEEP: Duration = Duration::from_millis(50);
/// Before the next tick can let a refill leave, so much time passes.
const TICK: Duration = Duration::from_millis(10);

/// The units that a worker holds ahead.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leases {
    leases: HashMap<Counter, Lease>,
    /// Those that may want a refill, each once.
    low: Vec<Counter>,
    /// When the first of them should leave.
    refill_at: Option<Monotonic>,
    sweep_at: Monotonic,
}

impl Leases {
    /// Whether none is held or under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Takes `cost` units, if that many are held and may be spent until `until`, and notes the demand.
    pub(crate) fn take(
        &mut self,
        counter: &Counter,
        cost: u64,
        terms: Extent,
        until: Monotonic,
        now: Monotonic,
    ) -> Option<Taken> {
        let Some(lease) = self.leases.get_mut(counter) else {
            if self.leases.len() < MAX_LEASES {
                let mut lease = Lease::new(counter, terms, now);
                lease.wanted(cost, now);
                self.leases.insert(counter.clone(), lease);
            }
            return None;
        };
        lease.wanted(cost, now);
        lease.expire(now);
        let taken = lease.take(cost, until)?;
        if let Some(by) = lease.runs_low(now) {
            if !std::mem::replace(&mut lease.is_low, true) {
                self.low.push(counter.clone());
            }
            let by = by.min(now + GATHER);
            self.refill_at = Some(self.refill_at.map_or(by, |first| first.min(by)));
        }
        Some(taken)
    }

    /// The request that has just taken these units does not need them after all.
    pub(crate) fn undo(&mut self, counter: &Counter, cost: u64) {
        if let Some(lease) = self.leases.get_mut(counter) {
            lease.undo(cost);
        }
    }

    /// Whether `cost` units are held.
    pub(crate) fn has(&self, counter: &Counter, cost: u64, now: Monotonic) -> bool {
        self.leases.get(counter).is_some_and(|lease| lease.has(cost, now))
    }

    /// Takes `cost` units for a request whose call did not bring them.
    pub(crate) fn take_instead(&mut self, counter: &Counter, cost: u64, now: Monotonic) -> Option<Taken> {
        let lease = self.leases.get_mut(counter)?;
        lease.expire(now);
        lease.take(cost, now)
    }

    /// Units held of window number `window`.
    pub(crate) fn held(&self, counter: &Counter, window: u64, now: Monotonic) -> u64 {
        self.leases.get(counter).map_or(0, |lease| lease.held(window, now))
    }

    /// Where a counter stands of which units are held, or were a moment ago.
    pub(crate) fn standing(&self, counter: &Counter) -> Option<Spent> {
        self.leases.get(counter)?.standing()
    }

    /// Units that a request will not spend: what is kept is added to the lease, and the rest is told.
    pub(crate) fn put_back(&mut self, counter: &Counter, back: Units, now: Monotonic) -> u64 {
        let Some(lease) = self.leases.get_mut(counter) else { return back.units };
        lease.expire(now);
        back.units - lease.put_back(back, now)
    }

    /// Whether a refill waits for a call.
    pub(crate) fn wants_refill(&self) -> bool {
        !self.low.is_empty()
    }

    /// Whether a refill waits that had better not wait for another tick.
    pub(crate) fn refill_is_due(&self, now: Monotonic) -> bool {
        self.refill_at.is_some_and(|at| at < now + TICK)
    }

    /// A counter that may want a refill.
    pub(crate) fn next_low(&mut self) -> Option<Counter> {
        let Some(counter) = self.low.pop() else {
            self.refill_at = None;
            return None;
        };
        if let Some(lease) = self.leases.get_mut(&counter) {
            lease.is_low = false;
        }
        Some(counter)
    }

    /// There was no room for its refill in this call.
    pub(crate) fn still_low(&mut self, counter: Counter) {
        if let Some(lease) = self.leases.get_mut(&counter) {
            lease.is_low = true;
            self.low.push(counter);
        }
    }

    /// How many units the call that leaves now is to ask for ahead; they are under way then.
    pub(crate) fn ask(&mut self, counter: &Counter, occasion: Occasion, now: Monotonic) -> u64 {
        let Some(lease) = self.leases.get_mut(counter) else { return 0 };
        lease.expire(now);
        lease.ask(occasion, now)
    }

    /// A call that asked for `asked` units ahead brought none.
    pub(crate) fn failed(&mut self, counter: &Counter, asked: u64) {
        if let Some(lease) = self.leases.get_mut(counter) {
            lease.asked(asked);
        }
    }

    /// A call that asked for `asked` units ahead brought these, which no request took. What is not kept is told.
    pub(crate) fn arrived(
        &mut self,
        counter: &Counter,
        asked: u64,
        heard: Heard,
        units: Units,
        now: Monotonic,
    ) -> u64 {
        let Some(lease) = self.leases.get_mut(counter) else { return units.units };
        lease.asked(asked);
        lease.arrived(heard, units, now)
    }

    /// Time has passed: drops what is over, and tells which units go back.
    pub(crate) fn tick(&mut self, now: Monotonic, mut back: impl FnMut(&Counter, Units)) {
        if now < self.sweep_at {
            return;
        }
        self.sweep_at = now + SWEEP;
        self.leases.retain(|counter, lease| {
            lease.expire(now);
            if let Some(surplus) = lease.surplus(now) {
                back(counter, surplus);
            }
            !lease.is_over(now)
        });
    }

    /// Units held and under way.
    #[cfg(test)]
    pub(crate) fn load(&self, counter: &Counter) -> (u64, u64) {
        self.leases.get(counter).map_or((0, 0), Lease::load)
    }

    /// How many counters there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }
}
