//! When a call leaves, and what follows from its end.

use std::time::Duration;

use crate::decision::{Decision, Outcome};
use crate::evaluate::Counter;
use crate::protocol::Grant;
use crate::time::Monotonic;
use crate::worker::call::allocation::{Pool, Pools};
use crate::worker::call::batch::{Batch, MAX_CALL_REFUNDS, Reserved, State, Want};
use crate::worker::call::breaker::Change;
use crate::worker::call::faults::{CallEnd, CallFault, CallOutcome};
use crate::worker::lease::pool::Units;
use crate::worker::{
    CallId, Decided, FULL_BATCH, GATHER, MAX_BATCH, MAX_IN_FLIGHT, OutgoingCall, Ticket, Waiter, Worker,
};

/// How long after its timeout a call is given up that the host never reported.
pub(crate) const LOST_AFTER: Duration = Duration::from_secs(1);
/// The host takes a timeout below this for none at all.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);

/// A call under way.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    id: CallId,
    /// In the order in which their requests arrived.
    tickets: Vec<Ticket>,
    batch: Batch,
    /// Whether the breaker let it through to try a store that was given up.
    probe: bool,
    sent: Monotonic,
    lost_at: Monotonic,
}

impl<W> Worker<W> {
    /// The next call that is due: ask until there is none. A call that cannot be sent has failed.
    pub fn next_call(&mut self, now: Monotonic) -> Option<OutgoingCall> {
        while self.gathering.front().is_some_and(|ticket| !self.waiting.contains_key(ticket)) {
            self.gathering.pop_front();
        }
        let is_due = self.batch_is_due(now) || self.refunds_are_due(now) || self.refills_are_due(now);
        if self.calls.len() >= MAX_IN_FLIGHT || !is_due {
            return None;
        }
        let refunds = self.refunds.take(MAX_CALL_REFUNDS, now);
        self.refunds_due &= !self.refunds.is_empty();
        let mut batch = Batch::default();
        let mut tickets = Vec::with_capacity(self.gathering.len());
        let mut until = now + SHORTEST_TIMEOUT;
        while let Some(&ticket) = self.gathering.front().filter(|_| tickets.len() < MAX_BATCH) {
            if let Some(waiter) = self.waiting.get_mut(&ticket) {
                if !batch.join(&mut waiter.wants, &self.config, refunds.len()) {
                    break;
                }
                until = until.max(waiter.deadline);
                tickets.push(ticket);
            }
            self.gathering.pop_front();
        }
        batch.ask_ahead(&mut self.leases, refunds.len(), now);
        self.refills_due &= self.leases.wants_refill();
        if tickets.is_empty() {
            if refunds.is_empty() && batch.is_empty() {
                return None;
            }
            until = now + self.config.store.timeout.max(SHORTEST_TIMEOUT);
        }
        let probe = !batch.is_empty() && self.breaker.calling(now);
        let timeout = until.since(now);
        let body = batch.body(&refunds, timeout);
        self.serial += 1;
        let id = CallId(self.serial);
        self.calls.push(Call { id, tickets, batch, probe, sent: now, lost_at: until + LOST_AFTER });
        Some(OutgoingCall { id, body, timeout })
    }

    /// A call or a fetch has ended, however that was.
    pub fn call_ended(&mut self, id: CallId, end: &CallEnd, now: Monotonic) -> Change {
        match end.body() {
            Ok(body) if self.fetch_ended(id, &Ok(body), now) => Change::None,
            Ok(body) => self.replied(id, body, now),
            Err(fault) => self.failed(id, &fault, now),
        }
    }

    /// The host would not send a call or a fetch.
    pub fn call_not_sent(&mut self, id: CallId, fault: &CallFault<'_>, now: Monotonic) -> Change {
        self.failed(id, fault, now)
    }

    /// A call was not answered in time, or nothing was heard of it.
    pub fn call_failed(&mut self, id: CallId, now: Monotonic) -> Change {
        self.failed(id, &CallFault::TimedOut, now)
    }

    /// The store answered a call with 200 and this body.
    pub fn replied(&mut self, id: CallId, body: &[u8], now: Monotonic) -> Change {
        let Some(call) = self.take_call(id) else { return Change::None };
        let grants = match call.batch.read(body) {
            Ok((dials, grants)) => {
                self.dials.hear(dials, now);
                grants
            }
            Err(misread) => return self.all_failed(call, &CallFault::Malformed(misread), now),
        };
        self.tally.count_call(CallOutcome::Ok);
        if call.batch.is_empty() {
            return Change::None;
        }
        let grants = self.usable(&call.batch, grants, now);
        let mut pools = Pools::new(call.batch.into_reserved(), grants, call.sent, now);
        for waiter in call.tickets.iter().filter_map(|ticket| self.waiting.get(ticket)) {
            for (slot, cost) in waiter.wants.iter().filter_map(Want::asked) {
                pools.expects(slot, cost);
            }
        }
        for ticket in call.tickets {
            let Some(mut waiter) = self.waiting.remove(&ticket) else { continue };
            for (slot, cost) in waiter.wants.iter().filter_map(Want::asked) {
                pools.decides(slot, cost);
            }
            let decision = self.settle(&mut waiter.wants, Some(&mut pools), now);
            self.decide(ticket, waiter, decision);
        }
        let mut back = Vec::new();
        for pool in pools.into_pools() {
            back.extend(self.close(pool, now));
        }
        // What goes back of one reservation is not among what the next one of its counter left.
        for (counter, units) in back {
            self.ledger.given_back(&counter, units.window, units.units, now);
            self.refunds.add(&counter, units);
        }
        // Reservations that failed say nothing of the others: a part of the store may be down.
        let change = self.breaker.succeeded();
        self.notices.changed(change, now);
        change
    }

    /// Time has passed: to be called every 10 ms or so while [`Worker::is_idle`] is false. Decides requests
    /// whose time is over and makes refunds and refills due; calls may be due afterwards.
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
        self.local.expire(now);
        let (ledger, refunds) = (&mut self.ledger, &mut self.refunds);
        self.leases.tick(now, |counter, units| {
            ledger.given_back(counter, units.window, units.units, now);
            refunds.add(counter, units);
        });
        self.refunds_due = !self.refunds.is_empty();
        self.refills_due = self.leases.refill_is_due(now);
        self.notices.tick(now);
        self.tick_dials(now);
        change
    }

    fn batch_is_due(&self, now: Monotonic) -> bool {
        let Some(oldest) = self.gathering.front().and_then(|ticket| self.waiting.get(ticket)) else {
            return false;
        };
        if self.breaker.is_probing() {
            return false;
        }
        let timeout = self.config.store.timeout;
        let waited = timeout.saturating_sub(oldest.deadline.since(now));
        let is_waited_for =
            |call: &Call| call.tickets.iter().rev().any(|ticket| self.waiting.contains_key(ticket));
        !self.calls.iter().any(is_waited_for)
            || self.gathering.len() >= FULL_BATCH
            || waited >= GATHER.min(timeout / 4)
    }

    fn refunds_are_due(&self, now: Monotonic) -> bool {
        self.refunds_due && !self.refunds.is_empty() && self.breaker.lets_through(now)
    }

    fn refills_are_due(&self, now: Monotonic) -> bool {
        self.refills_due && self.leases.wants_refill() && self.breaker.lets_through(now)
    }

    fn take_call(&mut self, id: CallId) -> Option<Call> {
        let place = self.calls.iter().position(|call| call.id == id)?;
        Some(self.calls.swap_remove(place))
    }

    /// Ends one reservation of a call: the ledger learns what is left, and what no request took is held ahead, or
    /// told if it goes back.
    fn close(&mut self, pool: Pool, now: Monotonic) -> Option<(Counter, Units)> {
        let rest = pool.rest();
        let Pool { reserved, granted, .. } = pool;
        let counter = reserved.counter;
        let Some(granted) = granted else {
            self.leases.failed(&counter, reserved.spare);
            return None;
        };
        let heard = granted.heard;
        self.clock.hear(counter.window, heard.window, heard.ends);
        let units = Units { units: rest, window: heard.window, until: granted.until, ends: heard.ends };
        let back = self.leases.arrived(&counter, reserved.spare, heard, units, now);
        self.ledger.learn(&counter, heard, granted.short, now);
        (back > 0).then_some((counter, Units { units: back, ..units }))
    }

    /// The grants of a reply; those reservations that failed are counted and told.
    fn usable(
        &mut self,
        batch: &Batch,
        grants: Vec<Result<Grant, String>>,
        now: Monotonic,
    ) -> Vec<Option<Grant>> {
        let secret = self.config.store.token.as_deref();
        let (tally, notices) = (&mut self.tally, &mut self.notices);
        let each = |(grant, reserved): (Result<Grant, String>, &Reserved)| {
            grant
                .inspect_err(|why| {
                    tally.count_call(CallOutcome::ItemFailed);
                    notices.item_failed(&reserved.counter.key, why, secret, now);
                })
                .ok()
        };
        grants.into_iter().zip(batch.reserved()).map(each).collect()
    }

    fn failed(&mut self, id: CallId, fault: &CallFault<'_>, now: Monotonic) -> Change {
        if self.fetch_ended(id, &Err(fault.clone()), now) {
            return Change::None;
        }
        let Some(call) = self.take_call(id) else { return Change::None };
        self.all_failed(call, fault, now)
    }

    fn all_failed(&mut self, call: Call, fault: &CallFault<'_>, now: Monotonic) -> Change {
        self.tally.count_call(fault.outcome());
        self.notices.call_failed(fault, self.config.store.token.as_deref(), now);
        // Of one that only carried refunds nobody waits for anything.
        if call.batch.is_empty() {
            return Change::None;
        }
        for reserved in call.batch.into_reserved() {
            self.leases.failed(&reserved.counter, reserved.spare);
        }
        for ticket in call.tickets {
            self.fail(ticket, now);
        }
        self.broke(call.probe, now)
    }

    fn broke(&mut self, probe: bool, now: Monotonic) -> Change {
        let change = self.breaker.failed(probe, now);
        if change == Change::Opened {
            self.tally.count_call(CallOutcome::Suspended);
        }
        self.notices.changed(change, now);
        if !self.breaker.lets_through(now) {
            for ticket in std::mem::take(&mut self.gathering) {
                self.fail(ticket, now);
            }
        }
        change
    }

    /// Decides a request that still waits as one that the store has not counted.
    fn fail(&mut self, ticket: Ticket, now: Monotonic) {
        let Some(mut waiter) = self.waiting.remove(&ticket) else { return };
        let decision = self.settle(&mut waiter.wants, None, now);
        // Where its call is still under way, what it was refused for counts when the reply arrives.
        if let Some(call) = self.calls.iter_mut().find(|call| call.tickets.binary_search(&ticket).is_ok()) {
            for want in &waiter.wants {
                if let (State::Asked(slot), Some((Outcome::Refused | Outcome::ShadowRefused, _))) =
                    (want.state, want.outcome)
                {
                    call.batch.counts(slot, want.check.cost.get());
                }
            }
        }
        self.decide(ticket, waiter, decision);
    }

    fn decide(&mut self, ticket: Ticket, waiter: Waiter<W>, decision: Decision) {
        let Waiter { who, wants, .. } = waiter;
        self.decided.push_back(Decided { ticket, who, wants, decision });
    }
}
