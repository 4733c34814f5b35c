//! The units of one counter that a worker holds ahead: how many it should hold, when it should ask for more, and
//! what it holds in vain.

use std::time::Duration;

use crate::evaluate::Counter;
use crate::time::Monotonic;
use crate::worker::known::ledger::{Heard, Spent};
use crate::worker::lease::demand::Demand;

/// The store grants at most an eighth of what remains ahead: of less than eight units none.
const SCARCE: u64 = 8;
/// Once no more than this part of a quota is left, others may want what is held in vain.
const CONTENDED: u64 = 8;
/// The least that a refill is worth an item of a call for; beside a request that waits it costs nothing.
const LEAST_REFILL: u64 = 2;
/// What goes back so short before its window ends helps nobody.
const TOO_LATE: Duration = Duration::from_millis(50);

/// How much a policy allows to be held ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) ahead: Duration,
    pub(crate) max: u64,
}

/// Units of one window that a request has, or that are on their way from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Units {
    /// How many.
    pub(crate) units: u64,
    /// The number of their window.
    pub(crate) window: u64,
    /// Until when another request may still spend them.
    pub(crate) until: Monotonic,
    /// The end of the window, never too early.
    pub(crate) ends: Monotonic,
}

/// Units that a request has got, and where it then stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) units: Units,
    pub(crate) quota: u64,
    pub(crate) remaining: u64,
}

impl Taken {
    /// What is left.
    pub(crate) const fn standing(&self) -> Spent {
        Spent { left: self.remaining, quota: self.quota, ends: self.units.ends }
    }
}

/// Who asks for units ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// A reservation that a request waits for: they ride with it.
    Waiting,
    /// Nobody waits: they are an item of their own.
    Nobody,
}

#[derive(Clone, Debug)]
pub(crate) struct Lease {
    demand: Demand,
    max: u64,
    /// Held, of the window in `heard`.
    units: u64,
    /// With more units than this no refill is wanted, as far as was known when it was last looked at.
    enough: u64,
    under_way: u64,
    /// Whether it is among those that may want a refill.
    pub(crate) is_low: bool,
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

impl Lease {
    pub(crate) fn new(counter: &Counter, Extent { ahead, max }: Extent, now: Monotonic) -> Self {
        let demand = Demand::new(ahead, now);
        let quota = counter.quota;
        Self { demand, max, units: 0, enough: 0, under_way: 0, is_low: false, quota, heard: None }
    }

    /// A request wants so many.
    pub(crate) fn wanted(&mut self, units: u64, now: Monotonic) {
        self.demand.add(units, now);
    }

    /// Drops units that may no longer be spent, and what was heard of a window that is over.
    pub(crate) fn expire(&mut self, now: Monotonic) {
        if let Some(Term { heard, until }) = self.heard
            && until <= now
        {
            self.units = 0;
            if heard.ends <= now {
                self.heard = None;
            }
        }
    }

    /// Takes `cost` units, if that many are held and may be spent until `until`.
    pub(crate) fn take(&mut self, cost: u64, until: Monotonic) -> Option<Taken> {
        let Term { heard, until: spendable } = self.heard?;
        if spendable < until {
            return None;
        }
        self.units = self.units.checked_sub(cost)?;
        let units = Units { units: cost, window: heard.window, until: spendable, ends: heard.ends };
        let remaining = heard.left.saturating_add(self.units);
        Some(Taken { units, quota: heard.quota, remaining })
    }

    /// The request that has just taken these units does not need them after all.
    pub(crate) fn undo(&mut self, cost: u64) {
        self.demand.withdraw(cost);
        self.units = self.units.saturating_add(cost);
    }

    /// Whether `cost` units are held.
    pub(crate) fn has(&self, cost: u64, now: Monotonic) -> bool {
        self.units >= cost && self.heard.is_some_and(|known| known.until > now)
    }

    /// Units held of window number `window`.
    pub(crate) fn held(&self, window: u64, now: Monotonic) -> u64 {
        let same = |known: &Term| known.heard.window == window && known.until > now;
        if self.heard.as_ref().is_some_and(same) { self.units } else { 0 }
    }

    /// Where the counter stands, while the window runs that was last heard of.
    pub(crate) fn standing(&self) -> Option<Spent> {
        let Heard { left, quota, ends, .. } = self.heard?.heard;
        Some(Spent { left: left.saturating_add(self.units), quota, ends })
    }

    /// Units that a request will not spend: those that are wanted are kept, and their number is told.
    pub(crate) fn put_back(&mut self, back: Units, now: Monotonic) -> u64 {
        let room = self.target(now).saturating_sub(self.units + self.under_way);
        let same = self.heard.is_some_and(|known| known.heard.window == back.window);
        if same { self.keep(back.units.min(room), back.until, now) } else { 0 }
    }

    /// After units were taken: when a refill should leave, if one is wanted that nobody waits for. That is half-way
    /// to the moment when the last unit will be gone, and judged anew each time that half of the rest is.
    pub(crate) fn runs_low(&mut self, now: Monotonic) -> Option<Monotonic> {
        if self.units > self.enough || self.refill(Occasion::Nobody, now) == 0 {
            return None;
        }
        self.enough = self.units / 2;
        Some(now + self.demand.lasts(self.units, self.demand.expected(now)) / 2)
    }

    /// How many units the call that leaves now is to ask for ahead; they are under way then.
    pub(crate) fn ask(&mut self, occasion: Occasion, now: Monotonic) -> u64 {
        let refill = self.refill(occasion, now);
        self.under_way += refill;
        refill
    }

    /// A call that asked for `asked` units ahead has ended.
    pub(crate) fn asked(&mut self, asked: u64) {
        self.under_way = self.under_way.saturating_sub(asked);
    }

    /// A call brought these, which no request took. What is not kept is told.
    pub(crate) fn arrived(&mut self, heard: Heard, units: Units, now: Monotonic) -> u64 {
        self.expire(now);
        if !self.learn(heard, units.until) {
            return units.units;
        }
        let room = self.bound().saturating_sub(self.units + self.under_way);
        let kept = self.keep(units.units.min(room), units.until, now);
        units.units - kept + self.surplus(now).map_or(0, |surplus| surplus.units)
    }

    /// Takes out what is held in vain.
    pub(crate) fn surplus(&mut self, now: Monotonic) -> Option<Units> {
        let Term { heard, until } = self.heard?;
        let is_contended = heard.left <= heard.quota / CONTENDED;
        let wanted = if is_contended { self.target(now) } else { self.bounded(self.demand.expected(now)) };
        let most = if self.units > 2 * wanted { wanted } else { self.bound() };
        let units = self.units.saturating_sub(most);
        if units == 0 || until.since(now) <= TOO_LATE {
            return None;
        }
        self.units -= units;
        Some(Units { units, window: heard.window, until, ends: heard.ends })
    }

    /// Whether nothing is held, under way, waits for a call or is expected.
    pub(crate) fn is_over(&self, now: Monotonic) -> bool {
        let is_empty = self.units == 0 && self.under_way == 0 && !self.is_low;
        is_empty && self.demand.is_quiet(now) && self.demand.expected(now) == 0
    }

    /// Units held and under way.
    #[cfg(test)]
    pub(crate) fn load(&self) -> (u64, u64) {
        (self.units, self.under_way)
    }

    /// Adds units of the window in `heard` that may be spent until `until`; how many were added.
    fn keep(&mut self, units: u64, until: Monotonic, now: Monotonic) -> u64 {
        let Some(known) = self.heard.as_mut().filter(|_| until > now) else { return 0 };
        if units > 0 {
            // Of several calls' units, none is spent later than its own call allows.
            known.until = if self.units > 0 { known.until.min(until) } else { until };
            self.units += units;
            self.enough = self.target(now) / 2;
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

    /// The most units to hold, those under way included; where that is less than a refill, nothing is held.
    fn bound(&self) -> u64 {
        Some(self.max.min(self.quota / 100)).filter(|most| *most >= LEAST_REFILL).unwrap_or_default()
    }

    fn bounded(&self, units: u64) -> u64 {
        units.min(self.bound())
    }

    /// How many units to hold: those that will be wanted within `ahead` and before the window ends.
    fn target(&self, now: Monotonic) -> u64 {
        let expected = self.demand.expected(now);
        let spendable = match self.heard {
            Some(Term { until, .. }) => self.demand.part(expected, until.since(now)),
            None => expected,
        };
        self.bounded(spendable)
    }

    /// How many units to ask for.
    fn refill(&mut self, occasion: Occasion, now: Monotonic) -> u64 {
        if self.under_way > 0 || self.heard.is_some_and(|known| known.heard.left < SCARCE) {
            return 0;
        }
        let target = self.target(now);
        self.enough = target / 2;
        let refill = if self.units > self.enough { 0 } else { target - self.units };
        if occasion == Occasion::Nobody && refill < LEAST_REFILL { 0 } else { refill }
    }
}
