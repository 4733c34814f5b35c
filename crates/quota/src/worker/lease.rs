//! Units held ahead of need, for policies with `precision: lease`.
//!
//! A worker holds about as many units of a counter as it was asked for within the last `ahead`, and admits
//! from them without a call. Where no more than half of that is left, a refill is asked for with the next
//! call; nobody waits for it. The bounds:
//!
//! * units held and on their way: at most `max`, and at most a hundredth of the quota. A target below
//!   [`LEAST`] holds nothing: such a counter is counted exactly.
//! * one refill a counter is on its way at a time.
//! * a unit is spent until *dispatch of its call* + `reset_ms`, which is not after its window's end whatever the
//!   delays; then it is dropped.
//! * at most [`MAX_LEASES`] counters; one that nobody asks for is dropped, and its units go back.

use std::collections::HashMap;
use std::time::Duration;

use super::demand::Demand;
use super::ledger::{Heard, Spent};
use crate::evaluate::Counter;
use crate::time::Monotonic;

/// Most counters of which units are held.
pub(super) const MAX_LEASES: usize = 4096;
/// The smallest target that is worth a lease.
const LEAST: u64 = 2;
/// The store grants at most an eighth of what remains ahead: of less than eight units none.
const SCARCE: u64 = 8;

/// The units that a worker holds ahead.
#[derive(Debug, Default)]
pub(super) struct Leases {
    leases: HashMap<Counter, Lease>,
    /// Those that may want a refill, each once.
    low: Vec<Counter>,
}

/// How much a policy allows to be held ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) ahead: Duration,
    pub(super) max: u64,
}

/// Units of one window that a request has, or that are on their way from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Units {
    /// How many.
    pub(super) units: u64,
    /// The number of their window.
    pub(super) window: u64,
    /// Until when another request may still spend them.
    pub(super) until: Monotonic,
    /// The end of the window, never too early.
    pub(super) ends: Monotonic,
}

/// Units that a request has got, and where it then stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) units: Units,
    pub(super) quota: u64,
    pub(super) remaining: u64,
}

impl Taken {
    /// What is left.
    pub(super) const fn standing(&self) -> Spent {
        Spent { left: self.remaining, quota: self.quota, ends: self.units.ends }
    }
}

#[derive(Debug)]
struct Lease {
    demand: Demand,
    max: u64,
    /// Held, of the window in `heard`.
    units: u64,
    under_way: u64,
    is_low: bool,
    /// The quota in force when the store was last heard.
    quota: u64,
    heard: Option<Term>,
}

/// What the store last said of a window that may still run.
#[derive(Clone, Copy, Debug)]
struct Term {
    heard: Heard,
    /// Until when units may be spent that were granted by the calls whose units are held.
    until: Monotonic,
}

impl Leases {
    /// Whether none is held or under way.
    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Takes `cost` units, if that many are held and may be spent until `until`, and notes the demand.
    pub(super) fn take(
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
                lease.demand.add(cost, now);
                self.leases.insert(counter.clone(), lease);
            }
            return None;
        };
        lease.demand.add(cost, now);
        lease.expire(now);
        let taken = lease.take(cost, until)?;
        if !lease.is_low && lease.refill(now) > 0 {
            lease.is_low = true;
            self.low.push(counter.clone());
        }
        Some(taken)
    }

    /// The request that has just taken these units does not need them after all.
    pub(super) fn undo(&mut self, counter: &Counter, cost: u64) {
        if let Some(lease) = self.leases.get_mut(counter) {
            lease.demand.withdraw(cost);
            lease.units = lease.units.saturating_add(cost);
        }
    }

    /// Whether `cost` units are held.
    pub(super) fn has(&self, counter: &Counter, cost: u64, now: Monotonic) -> bool {
        let Some(lease) = self.leases.get(counter) else { return false };
        lease.units >= cost && lease.heard.is_some_and(|known| known.until > now)
    }

    /// Takes `cost` units for a request whose call did not bring them.
    pub(super) fn take_instead(&mut self, counter: &Counter, cost: u64, now: Monotonic) -> Option<Taken> {
        let lease = self.leases.get_mut(counter)?;
        lease.expire(now);
        lease.take(cost, now)
    }

    /// Units held of window number `window`.
    pub(super) fn held(&self, counter: &Counter, window: u64, now: Monotonic) -> u64 {
        let Some(lease) = self.leases.get(counter) else { return 0 };
        let same = |known: &Term| known.heard.window == window && known.until > now;
        if lease.heard.as_ref().is_some_and(same) { lease.units } else { 0 }
    }

    /// Where a counter stands of which units are held, or were a moment ago.
    pub(super) fn standing(&self, counter: &Counter) -> Option<Spent> {
        let lease = self.leases.get(counter)?;
        let Heard { left, quota, ends, .. } = lease.heard?.heard;
        Some(Spent { left: left.saturating_add(lease.units), quota, ends })
    }

    /// Units that a request will not spend: what is kept is added to the lease, and the rest is told.
    pub(super) fn put_back(&mut self, counter: &Counter, back: Units, now: Monotonic) -> u64 {
        let Some(lease) = self.leases.get_mut(counter) else { return back.units };
        lease.expire(now);
        let room = lease.target(now).saturating_sub(lease.units + lease.under_way);
        let same = lease.heard.is_some_and(|known| known.heard.window == back.window);
        back.units - if same { lease.keep(back.units.min(room), back.until, now) } else { 0 }
    }

    /// Whether a refill waits for a call.
    pub(super) fn wants_refill(&self) -> bool {
        !self.low.is_empty()
    }

    /// A counter that may want a refill.
    pub(super) fn next_low(&mut self) -> Option<Counter> {
        let counter = self.low.pop()?;
        if let Some(lease) = self.leases.get_mut(&counter) {
            lease.is_low = false;
        }
        Some(counter)
    }

    /// There was no room for its refill in this call.
    pub(super) fn still_low(&mut self, counter: Counter) {
        if let Some(lease) = self.leases.get_mut(&counter) {
            lease.is_low = true;
            self.low.push(counter);
        }
    }

    /// How many units the call that leaves now is to ask for ahead; they are under way then.
    pub(super) fn ask(&mut self, counter: &Counter, now: Monotonic) -> u64 {
        let Some(lease) = self.leases.get_mut(counter) else { return 0 };
        lease.expire(now);
        let refill = lease.refill(now);
        lease.under_way += refill;
        refill
    }

    /// A call that asked for `asked` units ahead brought none.
    pub(super) fn failed(&mut self, counter: &Counter, asked: u64) {
        if let Some(lease) = self.leases.get_mut(counter) {
            lease.under_way = lease.under_way.saturating_sub(asked);
        }
    }

    /// A call that asked for `asked` units ahead brought these, which no request took. What is not kept is told.
    pub(super) fn arrived(
        &mut self,
        counter: &Counter,
        asked: u64,
        heard: Heard,
        units: Units,
        now: Monotonic,
    ) -> u64 {
        let Some(lease) = self.leases.get_mut(counter) else { return units.units };
        lease.under_way = lease.under_way.saturating_sub(asked);
        lease.expire(now);
        if !lease.learn(heard, units.until) {
            return units.units;
        }
        let room = lease.bound().saturating_sub(lease.units + lease.under_way);
        let kept = lease.keep(units.units.min(room), units.until, now);
        units.units - kept + lease.surplus(now)
    }

    /// Time has passed: drops what is over, and tells which units go back.
    pub(super) fn tick(&mut self, now: Monotonic, mut back: impl FnMut(&Counter, Units)) {
        self.leases.retain(|counter, lease| {
            lease.expire(now);
            let units = lease.surplus(now);
            if let (Some(Term { heard, until }), 1..) = (lease.heard, units) {
                back(counter, Units { units, window: heard.window, until, ends: heard.ends });
            }
            lease.units > 0 || lease.under_way > 0 || lease.demand.recent(now) > 0
        });
    }

    /// Units held and under way.
    #[cfg(test)]
    pub(super) fn load(&self, counter: &Counter) -> (u64, u64) {
        self.leases.get(counter).map_or((0, 0), |lease| (lease.units, lease.under_way))
    }

    /// How many counters there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }
}

impl Lease {
    fn new(counter: &Counter, Extent { ahead, max }: Extent, now: Monotonic) -> Self {
        let demand = Demand::new(ahead, now);
        Self { demand, max, units: 0, under_way: 0, is_low: false, quota: counter.quota, heard: None }
    }

    /// Drops units that may no longer be spent, and what was heard of a window that is over.
    fn expire(&mut self, now: Monotonic) {
        if self.heard.is_some_and(|known| known.until <= now) {
            self.units = 0;
        }
        self.heard = self.heard.filter(|known| known.heard.ends > now);
    }

    fn take(&mut self, cost: u64, until: Monotonic) -> Option<Taken> {
        let Term { heard, until: spendable } = self.heard?;
        if spendable < until {
            return None;
        }
        self.units = self.units.checked_sub(cost)?;
        let units = Units { units: cost, window: heard.window, until: spendable, ends: heard.ends };
        let remaining = heard.left.saturating_add(self.units);
        Some(Taken { units, quota: heard.quota, remaining })
    }

    /// Adds units of the window in `heard` that may be spent until `until`; how many were added.
    fn keep(&mut self, units: u64, until: Monotonic, now: Monotonic) -> u64 {
        let Some(known) = self.heard.as_mut().filter(|_| until > now) else { return 0 };
        if units > 0 {
            // Of several calls' units, none is spent later than its own call allows.
            known.until = if self.units > 0 { known.until.min(until) } else { until };
            self.units += units;
        }
        units
    }

    /// Takes note of what the store said; `false` if that is of a window before the one that is known.
    fn learn(&mut self, heard: Heard, until: Monotonic) -> bool {
        match &mut self.heard {
            Some(known) if known.heard.window > heard.window => return false,
            Some(known) if known.heard.window == heard.window => {
                known.heard = Heard { ends: known.heard.ends.min(heard.ends), ..heard };
                if self.units == 0 {
                    known.until = known.until.max(until);
                }
            }
            other => {
                *other = Some(Term { heard, until });
                self.units = 0;
            }
        }
        self.quota = heard.quota;
        true
    }

    /// The most units to hold, those under way included.
    fn bound(&self) -> u64 {
        self.max.min(self.quota / 100)
    }

    /// The units that the recent demand calls for; towards the end of a window only those that can still be
    /// spent in it.
    fn wanted(&self, now: Monotonic) -> u64 {
        let demand = self.demand.recent(now);
        let spendable = match self.heard {
            Some(Term { until, .. }) => self.demand.part(demand, until.since(now)),
            None => demand,
        };
        spendable.min(self.bound())
    }

    fn target(&self, now: Monotonic) -> u64 {
        Some(self.wanted(now)).filter(|units| *units >= LEAST).unwrap_or_default()
    }

    /// How many units to ask for.
    fn refill(&self, now: Monotonic) -> u64 {
        let is_scarce = self.heard.is_some_and(|known| known.heard.left < SCARCE);
        let target = self.target(now);
        if self.under_way > 0 || is_scarce || self.units > target / 2 { 0 } else { target - self.units }
    }

    /// Takes out what is held in vain.
    fn surplus(&mut self, now: Monotonic) -> u64 {
        let wanted = self.wanted(now);
        let most = if self.units > 2 * wanted { wanted } else { self.bound() };
        let surplus = self.units.saturating_sub(most);
        self.units -= surplus;
        surplus
    }
}
