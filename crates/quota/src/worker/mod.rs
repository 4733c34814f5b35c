//! One Envoy worker's side of all quotas: events in, calls and decisions out.
//!
//! A request is decided at once where the ledger knows enough, and otherwise waits for a call. With no call
//! under way that somebody waits for, its call leaves at once. Else requests gather, and leave together when that
//! refunds, when there are [`FULL_BATCH`] of them, or after [`GATHER`] (a tick may add its period), while no
//! more than [`MAX_IN_FLIGHT`] calls are out. So a lone request waits for nothing, and the busier a worker is,
//! the fewer calls a request costs (`docs/design/batching.md`).
//!
//! Every waiting request is decided by its deadline plus a tick, whatever the store does. At most
//! [`MAX_WAITING`] wait; the next is decided as if the store had failed.
//!
//! A request's way: [`Worker::submit`] (`submit`) decides it by what the worker knows, or lets it wait; a call
//! leaves and refunds (`calls`, `batch`, `pools`); `settle` decides those that waited. What operators turn meanwhile is
//! the business of `dials`: a request is decided by the mode that its policies had when it arrived.

mod call;
pub(crate) mod known;
mod lease;
mod overrides;
mod settle;
mod submit;
mod telemetry;
#[cfg(test)]
mod tests;

pub use call::breaker::Change;
pub use call::faults::{AnsweredBy, CallEnd, CallFault, CallOutcome, Misread};
pub use overrides::OutgoingFetch;
pub use telemetry::notices::{Notice, PAUSE as NOTICE_PAUSE};
pub use telemetry::tally::Counted;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use crate::config::Config;
use crate::decision::{Admission, Decision, Held, Outcome};
use crate::evaluate::Counter;
use crate::time::Monotonic;
use call::batch::Want;
use call::breaker::Breaker;
use call::flight::Call;
use call::refunds::Refunds;
use known::clock::StoreClock;
use known::ledger::Ledger;
use known::local::Local;
use lease::Leases;
use lease::pool::Units;
use overrides::Dials;
use telemetry::notices::Notices;
use telemetry::refusals::Refusals;
use telemetry::tally::Tally;

/// One call for each request, as others do it: only `cargo xtask bench` compiles this, to compare with.
const UNBATCHED: bool = cfg!(quotagate_unbatched);
/// Most calls under way at once.
pub const MAX_IN_FLIGHT: usize = if UNBATCHED { 1024 } else { 4 };
/// So many gathered requests leave although no call has returned.
pub const FULL_BATCH: usize = if UNBATCHED { 1 } else { 256 };
/// Most requests that one call decides; the bounds of its body aside.
const MAX_BATCH: usize = if UNBATCHED { 1 } else { usize::MAX };
/// So long requests gather at most while calls are under way; a quarter of the timeout where that is less.
pub const GATHER: Duration = Duration::from_millis(5);
/// Most requests that wait at once.
pub const MAX_WAITING: usize = 8192;

/// One worker's quotas. `W` is how the caller finds a waiting request again.
#[derive(Clone, Debug)]
pub struct Worker<W> {
    /// As dials have turned it.
    config: Rc<Config>,
    dials: Dials,
    ledger: Ledger,
    leases: Leases,
    local: Local,
    clock: StoreClock,
    refunds: Refunds,
    /// A tick has passed since the first of the refunds came.
    refunds_due: bool,
    /// Refills that nobody waits for have gathered long enough.
    refills_due: bool,
    breaker: Breaker,
    waiting: BTreeMap<Ticket, Waiter<W>>,
    gathering: VecDeque<Ticket>,
    calls: Vec<Call>,
    decided: VecDeque<Decided<W>>,
    tally: Tally,
    refusals: Refusals,
    notices: Notices,
    serial: u64,
}

/// A request that waits for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// A call under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub(crate) u64);

/// What a request gets when it arrives.
#[derive(Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It is decided.
    Decided(Decision),
    /// It waits; its decision comes out of [`Worker::next_decision`]. Send what [`Worker::next_call`] gives.
    Waiting(Ticket),
    /// It goes on, admitted by all policies that may refuse: only such as never do wait for the store. As for
    /// `Waiting`, a call may be due; what those policies say comes out of [`Worker::next_decision`] when it is
    /// known, as an admission to be [joined](Admission::join) to this one.
    Counting(Admission),
}

/// A call to be sent to the store.
#[derive(Debug)]
pub struct OutgoingCall {
    /// To tell its outcome by.
    pub id: CallId,
    /// The body for [`RESERVE_PATH`](crate::protocol::RESERVE_PATH).
    pub body: Vec<u8>,
    /// The longest to wait for the reply, at least a millisecond.
    pub timeout: Duration,
}

#[derive(Clone, Debug)]
struct Waiter<W> {
    who: W,
    wants: Vec<Want>,
    deadline: Monotonic,
}

/// A request that is decided and does not know it yet.
#[derive(Clone, Debug)]
struct Decided<W> {
    ticket: Ticket,
    who: W,
    wants: Vec<Want>,
    decision: Decision,
}

impl<W> Worker<W> {
    /// A worker that knows nothing yet; `seed` varies the pauses of its breaker.
    pub fn new(config: Rc<Config>, seed: u64) -> Self {
        Self {
            ledger: Ledger::default(),
            leases: Leases::default(),
            local: Local::default(),
            clock: StoreClock::default(),
            refunds: Refunds::default(),
            refunds_due: false,
            refills_due: false,
            breaker: Breaker::new(seed),
            waiting: BTreeMap::new(),
            gathering: VecDeque::new(),
            calls: Vec::new(),
            decided: VecDeque::new(),
            tally: Tally::new(config.policies.len()),
            refusals: Refusals::default(),
            notices: Notices::default(),
            serial: 0,
            dials: Dials::new(Rc::clone(&config)),
            config,
        }
    }

    /// The client of a waiting request has gone. Units that it got, or that are on their way, go back.
    pub fn cancel(&mut self, ticket: Ticket, now: Monotonic) {
        let place = || self.decided.iter().position(|decided| decided.ticket == ticket);
        let wants = match self.waiting.remove(&ticket) {
            Some(waiter) => waiter.wants,
            None => match place().and_then(|place| self.decided.remove(place)) {
                Some(decided) => decided.wants,
                None => return,
            },
        };
        for mut want in wants {
            self.release(&mut want, now);
        }
    }

    /// Takes back units that a request held and that do not count, because of how it was answered.
    pub fn give_back(&mut self, held: Vec<Held>, now: Monotonic) {
        for Held { counter, window, units, until, ends, .. } in held {
            self.put_back(&counter, Units { units, window, until, ends }, now);
        }
    }

    /// Counts an outcome that the worker does not see by itself ([`Outcome::MissingIdentity`]).
    pub fn count(&mut self, policy: usize, outcome: Outcome) {
        self.tally.count(policy, outcome);
    }

    /// Takes what has been counted since the last time, each at most once.
    pub fn take_tally(&mut self) -> Vec<(Counted, u64)> {
        self.tally.take()
    }

    /// Takes what is to be written to the log: after every call that ended, and after every tick.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        self.notices.take()
    }

    /// The next request that is decided after it waited, or whose counting is done.
    pub fn next_decision(&mut self) -> Option<(W, Decision)> {
        let Decided { who, wants, decision, .. } = self.decided.pop_front()?;
        self.count_outcomes(&wants);
        Some((who, decision))
    }

    /// Whether decisions are left to be taken.
    pub fn has_decisions(&self) -> bool {
        !self.decided.is_empty()
    }

    /// Whether nothing waits for time to pass, or to be taken.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.calls.is_empty()
            && self.decided.is_empty()
            && self.refunds.is_empty()
            && self.leases.is_empty()
            && self.tally.is_empty()
            && self.notices.is_settled()
            && !self.fetch_needs_time()
            && !self.report_needs_time()
    }

    fn count_outcomes(&mut self, wants: &[Want]) {
        for Want { check, outcome, .. } in wants {
            let Some((outcome, from_ledger)) = *outcome else { continue };
            self.tally.count(check.policy, outcome);
            if from_ledger {
                self.tally.count(check.policy, Outcome::FromLedger);
                if outcome == Outcome::Refused {
                    self.refusals.note(&check.counter.key);
                }
            }
        }
    }

    /// Units that were granted and will not be spent are held ahead or go back.
    fn put_back(&mut self, counter: &Counter, back: Units, now: Monotonic) {
        let units = self.leases.put_back(counter, back, now);
        self.ledger.given_back(counter, back.window, units, now);
        self.refunds.add(counter, Units { units, ..back });
    }
}
