//! One Envoy worker's side of all quotas: events in, calls and decisions out.
//!
//! A request is decided at once where the ledger knows enough, and otherwise waits for a call. With no call
//! under way its call leaves at once. With calls under way, requests gather, and leave together when one
//! returns, when there are [`FULL_BATCH`] of them, or after [`GATHER`] (a tick may add its period), while no
//! more than [`MAX_IN_FLIGHT`] calls are out. So a lone request waits for nothing, and the busier a worker is,
//! the fewer calls a request costs.
//!
//! Every waiting request is decided by its deadline plus a tick, whatever the store does. At most
//! [`MAX_WAITING`] wait; the next is decided as if the store had failed.

mod batch;
mod breaker;
#[cfg(test)]
mod invariants;
mod ledger;
mod returns;
mod tally;
#[cfg(test)]
mod tests;

pub use breaker::Change;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use crate::config::{Config, Mode, OnFailure, Policy};
use crate::decision::{Admission, Decision, Held, Outcome, Refusal, Standing, Uncounted};
use crate::evaluate::Check;
use crate::time::Monotonic;
use batch::{Batch, MAX_CALL_RETURNS, Want};
use breaker::Breaker;
use ledger::{Ledger, Verdict};
use returns::Returns;
use tally::Tally;

/// Most calls under way at once.
pub const MAX_IN_FLIGHT: usize = 4;
/// So many gathered requests leave although no call has returned.
pub const FULL_BATCH: usize = 256;
/// So long requests gather at most while calls are under way.
pub const GATHER: Duration = Duration::from_millis(5);
/// Most requests that wait at once.
pub const MAX_WAITING: usize = 8192;
/// How long after its timeout a call is given up that the host never reported.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// The host takes a timeout below this for none at all.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);

/// One worker's quotas. `W` is how the caller finds a waiting request again.
#[derive(Debug)]
pub struct Worker<W> {
    config: Rc<Config>,
    ledger: Ledger,
    returns: Returns,
    returns_due: bool,
    breaker: Breaker,
    waiting: BTreeMap<Ticket, Waiter<W>>,
    gathering: VecDeque<Ticket>,
    /// A call has returned since the last one left.
    returned: bool,
    calls: Vec<Call>,
    decided: VecDeque<Decided<W>>,
    tally: Tally,
    serial: u64,
}

/// A request that waits for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// A call under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(u64);

/// What a request gets when it arrives.
#[derive(Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It is decided.
    Decided(Decision),
    /// It waits; its decision comes out of [`Worker::next_decision`]. Send what [`Worker::next_call`] gives.
    Waiting(Ticket),
    /// It goes on, and policies that only count go to the store without it: as for `Waiting`, a call may be due.
    Counting,
}

/// A call to be sent to the store.
#[derive(Debug)]
pub struct OutgoingCall {
    /// To tell its outcome by.
    pub id: CallId,
    /// The body for [`RESERVE_PATH`](crate::wire::RESERVE_PATH).
    pub body: Vec<u8>,
    /// The longest to wait for the reply, at least a millisecond.
    pub timeout: Duration,
}

#[derive(Debug)]
struct Waiter<W> {
    /// `None` where nobody waits for the outcome.
    who: Option<W>,
    wants: Vec<Want>,
    deadline: Monotonic,
}

/// A request that is decided and does not know it yet.
#[derive(Debug)]
struct Decided<W> {
    ticket: Ticket,
    who: W,
    wants: Vec<Want>,
    decision: Decision,
}

#[derive(Debug)]
struct Call {
    id: CallId,
    tickets: Vec<Ticket>,
    batch: Batch,
    /// Whether the breaker let it through to try a store that was given up.
    probe: bool,
    lost_at: Monotonic,
}

impl<W> Worker<W> {
    /// A worker that knows nothing yet; `seed` varies the pauses of its breaker.
    pub fn new(config: Rc<Config>, seed: u64) -> Self {
        Self {
            config,
            ledger: Ledger::default(),
            returns: Returns::default(),
            returns_due: false,
            breaker: Breaker::new(seed),
            waiting: BTreeMap::new(),
            gathering: VecDeque::new(),
            returned: false,
            calls: Vec::new(),
            decided: VecDeque::new(),
            tally: Tally::default(),
            serial: 0,
        }
    }

    /// A request arrives with the units that it needs.
    pub fn submit(&mut self, who: W, checks: Vec<Check>, now: Monotonic) -> Submitted {
        let checks = match self.ask_ledger(checks, now) {
            Ok(checks) => checks,
            Err(refusal) => return Submitted::Decided(Decision::Refuse(refusal)),
        };
        let mut wants: Vec<Want> = checks.into_iter().map(Want::from).collect();
        if wants.is_empty() {
            return Submitted::Decided(Decision::Admit(Admission::default()));
        }
        if !self.breaker.lets_through(now) || self.waiting.len() >= MAX_WAITING {
            return Submitted::Decided(self.uncounted(&wants, now));
        }
        if self.gathering.len() >= 2 * MAX_WAITING {
            self.gathering.retain(|ticket| self.waiting.contains_key(ticket));
        }
        for want in &mut wants {
            self.ledger.asking(&want.check.counter, now);
        }
        let only_counts = wants.iter().all(|want| self.enforced(&want.check).is_none());
        self.serial += 1;
        let ticket = Ticket(self.serial);
        let deadline = now + self.config.store.timeout;
        self.waiting.insert(ticket, Waiter { who: (!only_counts).then_some(who), wants, deadline });
        self.gathering.push_back(ticket);
        if only_counts { Submitted::Counting } else { Submitted::Waiting(ticket) }
    }

    /// The client of a waiting request has gone. Units that it got, or that are on their way, go back.
    pub fn cancel(&mut self, ticket: Ticket) {
        if self.waiting.remove(&ticket).is_some() {
            return;
        }
        let place = self.decided.iter().position(|decided| decided.ticket == ticket);
        if let Some(decided) = place.and_then(|place| self.decided.remove(place)) {
            for want in decided.wants {
                want.give_back(&mut self.returns);
            }
        }
    }

    /// Takes back units that a request held and that do not count, because of how it was answered.
    pub fn give_back(&mut self, held: Vec<Held>) {
        for Held { key, window_s, window, units, ends, .. } in held {
            self.returns.add(key, window_s, window, units, ends);
        }
    }

    /// Counts an outcome that the worker does not see by itself ([`Outcome::MissingIdentity`]).
    pub fn count(&mut self, policy: usize, outcome: Outcome) {
        self.tally.count(policy, outcome);
    }

    /// Takes what has been counted since the last time: each policy and outcome at most once.
    pub fn take_tally(&mut self) -> Vec<(usize, Outcome, u64)> {
        self.tally.take()
    }

    /// The next call that is due: ask until there is none. A call that cannot be sent has failed.
    pub fn next_call(&mut self, now: Monotonic) -> Option<OutgoingCall> {
        while self.gathering.front().is_some_and(|ticket| !self.waiting.contains_key(ticket)) {
            self.gathering.pop_front();
        }
        if self.calls.len() >= MAX_IN_FLIGHT || !(self.batch_is_due(now) || self.returns_are_due(now)) {
            return None;
        }
        self.returned = false;
        let returns = self.returns.take(MAX_CALL_RETURNS, now);
        self.returns_due &= !self.returns.is_empty();
        let mut batch = Batch::default();
        let mut tickets = Vec::with_capacity(self.gathering.len());
        let mut until = now + SHORTEST_TIMEOUT;
        while let Some(&ticket) = self.gathering.front() {
            if let Some(waiter) = self.waiting.get_mut(&ticket) {
                if !batch.join(&mut waiter.wants, returns.len()) {
                    break;
                }
                until = until.max(waiter.deadline);
                tickets.push(ticket);
            }
            self.gathering.pop_front();
        }
        if batch.is_empty() {
            if returns.is_empty() {
                return None;
            }
            until = now + self.config.store.timeout.max(SHORTEST_TIMEOUT);
        }
        let probe = !batch.is_empty() && self.breaker.calling(now);
        let timeout = until.since(now);
        let body = batch.body(&returns, timeout);
        self.serial += 1;
        let id = CallId(self.serial);
        self.calls.push(Call { id, tickets, batch, probe, lost_at: until + LOST_AFTER });
        Some(OutgoingCall { id, body, timeout })
    }

    /// The store answered a call with 200 and this body.
    pub fn replied(&mut self, id: CallId, body: &[u8], now: Monotonic) -> Change {
        let Some(call) = self.take_call(id) else { return Change::None };
        if call.batch.is_empty() {
            return Change::None;
        }
        let Some(mut pools) = call.batch.granted(body, now) else {
            return self.all_failed(call.tickets, call.probe, now);
        };
        for ticket in call.tickets {
            let Some(mut waiter) = self.waiting.remove(&ticket) else { continue };
            let decision = pools.settle(&mut waiter.wants, &self.config, &self.ledger, now);
            self.decide(ticket, waiter, decision);
        }
        let usable = pools.any_usable();
        pools.close(&mut self.ledger, &mut self.returns, now);
        if usable { self.breaker.succeeded() } else { self.broke(call.probe, now) }
    }

    /// A call came to nothing: not sent, refused, timed out, reset, or answered with anything but 200.
    pub fn call_failed(&mut self, id: CallId, now: Monotonic) -> Change {
        match self.take_call(id) {
            Some(call) if !call.batch.is_empty() => self.all_failed(call.tickets, call.probe, now),
            _ => Change::None,
        }
    }

    /// Time has passed: to be called every 10 ms or so while [`Worker::is_idle`] is false. Decides requests
    /// whose time is over and makes returns due; calls may be due afterwards.
    pub fn tick(&mut self, now: Monotonic) -> Change {
        while let Some(first) = self.waiting.first_entry().filter(|first| first.get().deadline <= now) {
            let ticket = *first.key();
            self.fail(ticket, now);
        }
        let lost: Vec<CallId> = self.calls.iter().filter(|c| c.lost_at <= now).map(|c| c.id).collect();
        let mut change = Change::None;
        for id in lost {
            change = self.call_failed(id, now);
        }
        self.ledger.expire(now);
        self.returns_due = !self.returns.is_empty();
        change
    }

    /// The next request that is decided after it waited.
    pub fn next_decision(&mut self) -> Option<(W, Decision)> {
        self.decided.pop_front().map(|decided| (decided.who, decided.decision))
    }

    /// Whether decisions are left to be taken.
    pub fn has_decisions(&self) -> bool {
        !self.decided.is_empty()
    }

    /// Whether nothing waits for time to pass.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.calls.is_empty() && self.decided.is_empty() && self.returns.is_empty()
    }

    /// Leaves out what is not worth asking, or says why the request is refused without asking.
    fn ask_ledger(&self, checks: Vec<Check>, now: Monotonic) -> Result<Vec<Check>, Refusal> {
        let mut refusal = Refusal { standings: Vec::new(), until: now };
        let mut asked = Vec::with_capacity(checks.len());
        for check in checks {
            match self.ledger.verdict(&check.counter, check.cost.get(), now) {
                Verdict::Ask => asked.push(check),
                verdict => self.add(&mut refusal, &check, verdict),
            }
        }
        if refusal.standings.is_empty() { Ok(asked) } else { Err(refusal) }
    }

    /// What a request gets that the store has not counted: refused where the ledger knows enough, else what
    /// `on_failure` says.
    fn uncounted(&self, wants: &[Want], now: Monotonic) -> Decision {
        let mut refusal = Refusal { standings: Vec::new(), until: now };
        let (mut uncounted, mut denied) = (None, None);
        for Want { check, .. } in wants {
            let verdict = self.ledger.last_word(&check.counter, check.cost.get(), now);
            self.add(&mut refusal, check, verdict);
            let Some(policy) = self.enforced(check) else { continue };
            let failed = Uncounted { policy: check.policy, key: Rc::clone(&check.counter.key) };
            if policy.on_failure == OnFailure::Deny {
                denied = Some(failed);
            } else {
                uncounted.get_or_insert(failed);
            }
        }
        match (refusal.standings.is_empty(), denied) {
            (false, _) => Decision::Refuse(refusal),
            (true, Some(failed)) => Decision::Unavailable(failed),
            (true, None) => Decision::Admit(Admission { uncounted, ..Admission::default() }),
        }
    }

    /// Adds what the ledger refuses to a refusal, unless the policy only counts.
    fn add(&self, refusal: &mut Refusal, check: &Check, verdict: Verdict) {
        if let Verdict::Refuse { left, quota, ends } = verdict
            && self.enforced(check).is_some()
        {
            let policy = check.policy;
            let key = Rc::clone(&check.counter.key);
            let standing = Standing { policy, key, granted: false, quota, remaining: left, resets: ends };
            refusal.standings.push(standing);
            refusal.until = refusal.until.max(ends);
        }
    }

    /// The policy of a check, unless it only counts.
    fn enforced(&self, check: &Check) -> Option<&Policy> {
        self.config.policies.get(check.policy).filter(|policy| policy.mode == Mode::Enforce)
    }

    fn batch_is_due(&self, now: Monotonic) -> bool {
        let Some(oldest) = self.gathering.front().and_then(|ticket| self.waiting.get(ticket)) else {
            return false;
        };
        if self.breaker.is_probing() {
            return false;
        }
        let left = oldest.deadline.since(now);
        self.calls.is_empty()
            || self.returned
            || self.gathering.len() >= FULL_BATCH
            || left + GATHER <= self.config.store.timeout
    }

    fn returns_are_due(&self, now: Monotonic) -> bool {
        self.returns_due && !self.returns.is_empty() && self.breaker.lets_through(now)
    }

    fn take_call(&mut self, id: CallId) -> Option<Call> {
        let place = self.calls.iter().position(|call| call.id == id)?;
        self.returned = true;
        Some(self.calls.swap_remove(place))
    }

    fn all_failed(&mut self, tickets: Vec<Ticket>, probe: bool, now: Monotonic) -> Change {
        for ticket in tickets {
            self.fail(ticket, now);
        }
        self.broke(probe, now)
    }

    fn broke(&mut self, probe: bool, now: Monotonic) -> Change {
        let change = self.breaker.failed(probe, now);
        if !self.breaker.lets_through(now) {
            for ticket in std::mem::take(&mut self.gathering) {
                self.fail(ticket, now);
            }
        }
        change
    }

    /// Decides a request that still waits as one that the store has not counted.
    fn fail(&mut self, ticket: Ticket, now: Monotonic) {
        if let Some(waiter) = self.waiting.remove(&ticket) {
            let decision = self.uncounted(&waiter.wants, now);
            self.decide(ticket, waiter, decision);
        }
    }

    fn decide(&mut self, ticket: Ticket, waiter: Waiter<W>, decision: Decision) {
        if let Waiter { who: Some(who), wants, .. } = waiter {
            self.decided.push_back(Decided { ticket, who, wants, decision });
        }
    }
}
