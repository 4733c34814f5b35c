//! The leased units of one counter: how many a worker should hold, when it should refill them, and
//! which units it should refund.

use std::time::Duration;

use super::demand::Demand;
use crate::decision::{Balance, GrantedUnits};
use crate::evaluate::Counter;
use crate::time::Monotonic;

/// The store grants leases at most an eighth of what is left, so nothing of fewer than eight units.
const SCARCE: u64 = 8;
/// When at most the quota divided by this is left, other workers may need surplus units.
const CONTENDED: u64 = 8;
/// The smallest refill that is worth an item of its own in a call.
const LEAST_REFILL: u64 = 2;
/// A refund so close to the end of its window is useless.
const TOO_LATE: Duration = Duration::from_millis(50);

/// How many units a policy lets a worker lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseBounds {
    /// A lease covers the recent traffic of this much time.
    pub(crate) ahead: Duration,
    /// The most units of one counter.
    pub(crate) max: u64,
    /// Whether the quota may differ from the policy's.
    pub(crate) own_quota: bool,
}

/// Why a call may prefetch units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// A request waits for the same reservation, so prefetched units need no item of their own.
    Request,
    /// No request waits, so prefetched units are an item of their own.
    Refill,
}

/// The leased units of one counter.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    demand: Demand,
    max: u64,
    /// Units held, of the window in `term`.
    units: u64,
    /// With more units than this, no refill is needed. Recomputed with each change of the demand's
    /// estimate.
    enough: u64,
    /// Units that a call under way prefetches.
    under_way: u64,
    /// Whether it is among the pools that may need a refill.
    pub(super) is_low: bool,
    /// Whether the quota may differ from the policy's.
    pub(super) own_quota: bool,
    /// The quota in the store's last reply.
    quota: u64,
    term: Option<Term>,
}

/// The store's last reply about a window that may still run.
#[derive(Clone, Copy, Debug)]
struct Term {
    window: u64,
    /// What was left in the store, leased units not included.
    balance: Balance,
    /// When the held units may no longer be spent.
    spendable_until: Monotonic,
}

impl Term {
    const fn units(&self, amount: u64) -> GrantedUnits {
        let Self { window, balance, spendable_until } = *self;
        GrantedUnits { amount, window, spendable_until, resets: balance.resets }
    }
}

impl Pool {
    /// A pool without units.
    pub(super) fn new(
        counter: &Counter,
        LeaseBounds { ahead, max, own_quota }: LeaseBounds,
        now: Monotonic,
    ) -> Self {
        let demand = Demand::new(ahead, now);
        Self {
            demand,
            max,
            units: 0,
            enough: 0,
            under_way: 0,
            is_low: false,
            own_quota,
            quota: counter.quota,
            term: None,
        }
    }

    /// A request needs `units`.
    pub(super) fn wanted(&mut self, units: u64, now: Monotonic) {
        self.demand.add(units, now);
    }

    /// Drops units that may no longer be spent, and the term of a window that is over.
    pub(super) fn expire(&mut self, now: Monotonic) {
        if let Some(Term { balance, spendable_until, .. }) = self.term
            && spendable_until <= now
        {
            self.units = 0;
            if balance.resets <= now {
                self.term = None;
            }
        }
    }

    /// Takes `cost` units, if that many are held and may be spent until `until`. Returns them and
    /// what is left.
    pub(super) fn take(&mut self, cost: u64, until: Monotonic) -> Option<(GrantedUnits, Balance)> {
        let term = self.term.filter(|term| term.spendable_until >= until)?;
        self.units = self.units.checked_sub(cost)?;
        Some((term.units(cost), term.balance.plus(self.units)))
    }

    /// The request that just took these units does not need them after all.
    pub(super) fn undo(&mut self, cost: u64) {
        self.demand.withdraw(cost);
        self.units = self.units.saturating_add(cost);
    }

    /// Whether `cost` units are held.
    pub(super) fn has(&self, cost: u64, now: Monotonic) -> bool {
        self.units >= cost && self.term.is_some_and(|term| term.spendable_until > now)
    }

    /// Units held of window number `window`.
    pub(super) fn units_of(&self, window: u64, now: Monotonic) -> u64 {
        let same = |term: &Term| term.window == window && term.spendable_until > now;
        if self.term.as_ref().is_some_and(same) { self.units } else { 0 }
    }

    /// What is left, leased units included, while the window of the last reply runs.
    pub(super) fn balance(&self) -> Option<Balance> {
        Some(self.term?.balance.plus(self.units))
    }

    /// A request will not spend these units. Keeps those that the pool needs, and returns how
    /// many.
    pub(super) fn take_back(&mut self, back: GrantedUnits, now: Monotonic) -> u64 {
        let room = self.target(now).saturating_sub(self.units + self.under_way);
        let same = self.term.is_some_and(|term| term.window == back.window);
        if same { self.keep(back.amount.min(room), back.spendable_until, now) } else { 0 }
    }

    /// After units were taken: when a refill should leave, if one is needed. That is half-way to
    /// the moment when the last unit will be gone. The pool recomputes it each time that half of
    /// the rest is gone.
    pub(super) fn runs_low(&mut self, now: Monotonic) -> Option<Monotonic> {
        if self.units > self.enough || self.refill(Occasion::Refill, now) == 0 {
            return None;
        }
        self.enough = self.units / 2;
        Some(now + self.demand.lasts(self.units, self.demand.expected(now)) / 2)
    }

    /// How many units the call that leaves now should prefetch. They count as under way.
    pub(super) fn prefetch(&mut self, occasion: Occasion, now: Monotonic) -> u64 {
        let refill = self.refill(occasion, now);
        self.under_way += refill;
        refill
    }

    /// A call that prefetched `units` has ended.
    pub(super) fn call_ended(&mut self, units: u64) {
        self.under_way = self.under_way.saturating_sub(units);
    }

    /// A call brought these units, which no request took. `balance` is what is left in the store.
    /// Returns how many to refund.
    pub(super) fn arrived(&mut self, units: GrantedUnits, balance: Balance, now: Monotonic) -> u64 {
        self.expire(now);
        if !self.learn(units, balance) {
            return units.amount;
        }
        let room = self.bound().saturating_sub(self.units + self.under_way);
        let kept = self.keep(units.amount.min(room), units.spendable_until, now);
        units.amount - kept + self.surplus(now).map_or(0, |surplus| surplus.amount)
    }

    /// Takes out the units that the pool does not need.
    pub(super) fn surplus(&mut self, now: Monotonic) -> Option<GrantedUnits> {
        let term = self.term?;
        let is_contended = term.balance.remaining <= term.balance.quota / CONTENDED;
        let wanted =
            if is_contended { self.target(now) } else { self.bounded(self.demand.expected(now)) };
        let most = if self.units > 2 * wanted { wanted } else { self.bound() };
        let units = self.units.saturating_sub(most);
        if units == 0 || term.spendable_until.since(now) <= TOO_LATE {
            return None;
        }
        self.units -= units;
        Some(term.units(units))
    }

    /// All units that it holds, for the last time.
    pub(super) fn close(&mut self) -> Option<GrantedUnits> {
        let units = std::mem::take(&mut self.units);
        self.term.filter(|_| units > 0).map(|term| term.units(units))
    }

    /// Whether no units are held, under way or expected.
    pub(super) fn is_over(&self, now: Monotonic) -> bool {
        let is_empty = self.units == 0 && self.under_way == 0 && !self.is_low;
        is_empty && self.demand.is_quiet(now) && self.demand.expected(now) == 0
    }

    /// Units held and under way.
    #[cfg(test)]
    pub(super) fn load(&self) -> (u64, u64) {
        (self.units, self.under_way)
    }

    /// Adds units of the current window that may be spent until `until`. Returns how many it added.
    fn keep(&mut self, units: u64, until: Monotonic, now: Monotonic) -> u64 {
        let Some(term) = self.term.as_mut().filter(|_| until > now) else { return 0 };
        if units > 0 {
            // Units of several calls: none may be spent later than its own call allows.
            let first = term.spendable_until.min(until);
            term.spendable_until = if self.units > 0 { first } else { until };
            self.units += units;
            self.enough = self.target(now) / 2;
        }
        units
    }

    /// Learns from a reply. Returns `false` if it is about an earlier window than the known one.
    fn learn(
        &mut self,
        GrantedUnits { window, spendable_until, .. }: GrantedUnits,
        balance: Balance,
    ) -> bool {
        match &mut self.term {
            Some(term) if term.window > window => return false,
            Some(term) if term.window == window => {
                term.balance =
                    Balance { resets: term.balance.resets.min(balance.resets), ..balance };
                if self.units == 0 {
                    term.spendable_until = term.spendable_until.max(spendable_until);
                }
            }
            other => {
                *other = Some(Term { window, balance, spendable_until });
                self.units = 0;
            }
        }
        self.quota = balance.quota;
        true
    }

    /// The most units to hold, including those under way. Below the smallest refill it is 0.
    fn bound(&self) -> u64 {
        Some(self.max.min(self.quota / 100))
            .filter(|most| *most >= LEAST_REFILL)
            .unwrap_or_default()
    }

    fn bounded(&self, units: u64) -> u64 {
        units.min(self.bound())
    }

    /// How many units to hold: the expected demand within `ahead`, and before the window ends.
    fn target(&self, now: Monotonic) -> u64 {
        let expected = self.demand.expected(now);
        let spendable = match self.term {
            Some(term) => self.demand.part(expected, term.spendable_until.since(now)),
            None => expected,
        };
        self.bounded(spendable)
    }

    /// How many units to prefetch.
    fn refill(&mut self, occasion: Occasion, now: Monotonic) -> u64 {
        if self.under_way > 0 || self.term.is_some_and(|term| term.balance.remaining < SCARCE) {
            return 0;
        }
        let target = self.target(now);
        self.enough = target / 2;
        let refill = if self.units > self.enough { 0 } else { target - self.units };
        if occasion == Occasion::Refill && refill < LEAST_REFILL { 0 } else { refill }
    }
}
