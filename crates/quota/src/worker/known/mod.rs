//! What a worker knows about counters without a call: which are spent, what it counted itself while
//! the store failed, and when windows end.

mod clock;
mod expiring;
mod ledger;
pub(crate) mod local;

pub(super) use ledger::RuntimeOverrides;

use crate::decision::Balance;
use crate::evaluate::{Check, Counter};
use crate::time::Monotonic;
use clock::StoreClock;
use ledger::Ledger;
use local::Local;

/// The knowledge of a worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) ledger: Ledger,
    pub(super) local: Local,
    clock: StoreClock,
}

impl Known {
    /// Learns from a reply about a counter. `short`: the grant was too small for a waiting request.
    pub(super) fn learn(
        &mut self,
        counter: &Counter,
        window: u64,
        balance: Balance,
        short: bool,
        now: Monotonic,
    ) {
        self.clock.hear(&counter.window, window, balance.resets);
        self.ledger.learn(counter, window, balance, short, now);
    }

    /// Why `cost` units of `counter` are refused without a call. `None`: ask the store.
    pub(super) fn refuses(
        &self,
        counter: &Counter,
        cost: u64,
        overrides: RuntimeOverrides,
        now: Monotonic,
    ) -> Option<Balance> {
        let balance = self.ledger.refuses(counter, cost, overrides, now)?;
        Some(self.dated(counter, balance, now))
    }

    /// The same while the store cannot be asked.
    pub(super) fn refuses_for_good(
        &self,
        counter: &Counter,
        cost: u64,
        overrides: RuntimeOverrides,
        now: Monotonic,
    ) -> Option<Balance> {
        let balance = self.ledger.refuses_for_good(counter, cost, overrides, now)?;
        Some(self.dated(counter, balance, now))
    }

    /// The ledger knows no clock: it dates what it never asked for a whole window ahead.
    fn dated(&self, counter: &Counter, balance: Balance, now: Monotonic) -> Balance {
        let end = self.clock.end_of(&counter.window, now);
        Balance { resets: end.map_or(balance.resets, |end| end.min(balance.resets)), ..balance }
    }

    /// The balance with which this worker's `share` of a quota refuses a request, if it does.
    pub(super) fn refuses_locally(
        &self,
        check: &Check,
        share: u64,
        now: Monotonic,
    ) -> Option<Balance> {
        self.local.refuses(&check.counter, check.cost.get(), share, &self.clock, now)
    }

    /// Counts a request against this worker's own share.
    pub(super) fn take_locally(&mut self, check: &Check, now: Monotonic) {
        self.local.take(&check.counter, check.cost.get(), &self.clock, now);
    }

    /// Forgets counters whose window is over.
    pub(super) fn expire(&mut self, now: Monotonic) {
        self.ledger.expire(now);
        self.local.expire(now);
    }
}
