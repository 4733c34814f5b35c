//! When a call leaves, and how its end decides requests.

use std::time::Duration;

use quotagate_protocol::{Grant, ReserveReply};

use super::Call;
use super::allocation::{Allocation, GrantShare};
use super::batch::{Batch, MAX_ADJUSTMENTS, MAX_CHARGES, Reserved};
use super::breaker::BreakerChange;
use super::faults::{CallFault, CallOutcome, Misread};
use crate::decision::{Decision, GrantedUnits};
use crate::evaluate::Counter;
use crate::time::Monotonic;
use crate::worker::requests::{Stage, Waiter, Want};
use crate::worker::{
    CallId, FULL_BATCH, GATHER, MAX_BATCH, MAX_IN_FLIGHT, OutgoingCall, Ticket, Worker,
};

/// How long after its timeout the worker gives up a call that the host never reported.
pub(crate) const LOST_AFTER: Duration = Duration::from_secs(1);
/// Envoy treats a shorter timeout as no timeout.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);

impl<W> Worker<W> {
    /// Whether [`next_call`](Self::next_call) may return a call.
    pub(crate) fn call_is_due(&mut self, now: Monotonic) -> bool {
        self.calls.under_way.len() < MAX_IN_FLIGHT
            && (self.batch_is_due(now)
                || self.adjustments_are_due(now)
                || self.slots_are_due(now)
                || self.refills_are_due(now))
    }

    /// The next call that is due. Repeat until it returns `None`.
    pub fn next_call(&mut self, now: Monotonic) -> Option<OutgoingCall> {
        if !self.call_is_due(now) {
            return None;
        }
        let charges = self.calls.charges.take(MAX_CHARGES, now);
        let refunds = self.calls.refunds.take(MAX_ADJUSTMENTS - charges.len(), now);
        let adjustments = refunds.len() + charges.len();
        self.calls.adjustments_due &= self.calls.has_adjustments();
        let mut batch = Batch::default();
        let mut tickets = Vec::with_capacity(self.requests.gathered());
        let mut until = now + SHORTEST_TIMEOUT;
        while tickets.len() < MAX_BATCH
            && let Some((ticket, waiter)) = self.requests.first_gathered()
            && let config = waiter.arrived_under.as_ref().unwrap_or(&self.config)
            && batch.join(&mut waiter.wants, config, adjustments)
        {
            until = until.max(waiter.deadline);
            tickets.push(ticket);
            self.requests.first_has_left();
        }
        if !tickets.is_empty() {
            self.calls.last_was_shared = tickets.len() > 1;
        }
        batch.prefetch(&mut self.leases, adjustments, now);
        if self.slots_may_join(now) {
            self.say_slots(&mut batch, adjustments, now);
            until = until.max(now + self.config.store.timeout);
        }
        self.calls.refills_due &= self.leases.needs_refill();
        if tickets.is_empty() {
            if adjustments == 0 && batch.is_empty() {
                return None;
            }
            until = until.max(now + self.config.store.timeout);
        }
        let probe = !batch.is_empty() && self.calls.breaker.calling(now);
        let timeout = until.since(now);
        let request = batch.request(refunds, charges, timeout);
        let id = CallId(self.next_serial());
        self.calls.under_way.push(Call {
            id,
            tickets,
            batch,
            probe,
            sent: now,
            lost_at: until + LOST_AFTER,
        });
        Some(OutgoingCall { id, request, timeout })
    }

    /// The store carried out a call and answered, perhaps with something that is no reply.
    pub(crate) fn call_replied(
        &mut self,
        id: CallId,
        reply: Result<ReserveReply, Misread>,
        now: Monotonic,
    ) {
        let Some(mut call) = self.calls.take(id) else { return };
        let checked =
            reply.and_then(|ReserveReply { dials, grants }| Ok((dials, call.batch.check(grants)?)));
        let mut grants = match checked {
            Ok((dials, grants)) => {
                self.overrides.hear(dials, now);
                grants
            }
            Err(misread) => return self.all_failed(call, &CallFault::Malformed(misread), now),
        };
        self.telemetry.count_call(CallOutcome::Ok);
        if call.batch.is_empty() {
            return;
        }
        let slots = call.batch.take_slots();
        let of_slots = grants.split_off(call.batch.reserved().len());
        let grants = self.usable(&call.batch, grants, now);
        let mut allocation = Allocation::new(call.batch.into_reserved(), grants, call.sent, now);
        for waiter in call.tickets.iter().filter_map(|ticket| self.requests.get(*ticket)) {
            for (reservation, cost) in waiter.wants.iter().filter_map(Want::asked) {
                allocation.expect(reservation, cost);
            }
        }
        for ticket in call.tickets {
            let Some(mut waiter) = self.requests.take(ticket) else { continue };
            for (reservation, cost) in waiter.wants.iter().filter_map(Want::asked) {
                allocation.decide(reservation, cost);
            }
            let Waiter { wants, arrived_under, .. } = &mut waiter;
            let decision = self.under(arrived_under.as_ref(), |worker| {
                worker.decide(wants, Some(&mut allocation), now)
            });
            self.decided(ticket, waiter, decision, now);
        }
        let mut refunds = Vec::new();
        for share in allocation.close() {
            refunds.extend(self.close(share, now));
        }
        // Last, since the balance of another reservation of the same counter leaves refunds out.
        for (counter, units) in refunds {
            self.send_back(&counter, units, now);
        }
        // Failed reservations say nothing about the others: a part of the store may be down.
        let change = self.calls.breaker.succeeded(now);
        self.telemetry.notices.changed(change, now);
        // After that, since requests with slots go on to their quotas, which a call may serve now.
        self.slots_answered(slots, of_slots, now);
    }

    /// A call failed as a whole.
    pub(crate) fn one_failed(&mut self, id: CallId, fault: &CallFault<'_>, now: Monotonic) {
        if let Some(call) = self.calls.take(id) {
            self.all_failed(call, fault, now);
        }
    }

    /// Time has passed: decides requests whose deadline has come, and gives up calls that the host
    /// forgot.
    pub(crate) fn tick_calls(&mut self, now: Monotonic) {
        while let Some(ticket) = self.requests.expired(now) {
            self.fail(ticket, now);
        }
        for id in self.calls.lost(now) {
            self.one_failed(id, &CallFault::TimedOut, now);
        }
    }

    fn batch_is_due(&mut self, now: Monotonic) -> bool {
        let Some(deadline) = self.requests.first_gathered().map(|(_, waiter)| waiter.deadline)
        else {
            return false;
        };
        if self.calls.breaker.is_probing() {
            return false;
        }
        let timeout = self.config.store.timeout;
        let waited = timeout.saturating_sub(deadline.since(now));
        !self.requests_wait_for_call()
            || self.requests.gathered() >= FULL_BATCH
            || waited >= GATHER.min(timeout / 4)
    }

    /// Whether a request waits for a call that is under way. A call may also have refunds and
    /// refills alone, or only requests that gave up.
    pub(crate) fn requests_wait_for_call(&self) -> bool {
        let is_waited_for =
            |call: &Call| call.tickets.iter().rev().any(|ticket| self.requests.waits(*ticket));
        self.calls.under_way.iter().any(is_waited_for)
    }

    fn adjustments_are_due(&self, now: Monotonic) -> bool {
        let calls = &self.calls;
        calls.adjustments_due && calls.has_adjustments() && calls.breaker.lets_through(now)
    }

    fn refills_are_due(&self, now: Monotonic) -> bool {
        self.calls.refills_due && self.leases.needs_refill() && self.calls.breaker.lets_through(now)
    }

    /// Ends one reservation of a call: the ledger learns what is left, and leases keep what no
    /// request took. Returns the units to refund.
    fn close(&mut self, share: GrantShare, now: Monotonic) -> Option<(Counter, GrantedUnits)> {
        let rest = share.rest();
        let GrantShare { reserved: Reserved { counter, spare, .. }, left, .. } = share;
        let Some(left) = left else {
            self.leases.failed(&counter, spare);
            return None;
        };
        let units = left.units.of(rest);
        let back = self.leases.arrived(&counter, spare, units, left.balance, now);
        self.known.learn(&counter, units.window, left.balance, left.short, now);
        (back > 0).then_some((counter, units.of(back)))
    }

    /// The grants of a reply. Reservations that failed are counted and logged.
    fn usable(
        &mut self,
        batch: &Batch,
        grants: Vec<Result<Grant, String>>,
        now: Monotonic,
    ) -> Vec<Option<Grant>> {
        let secret = self.config.store.reach.token();
        let telemetry = &mut self.telemetry;
        let each = |(grant, reserved): (Result<Grant, String>, &Reserved)| {
            grant
                .inspect_err(|why| {
                    telemetry.count_call(CallOutcome::ItemFailed);
                    telemetry.notices.item_failed(&reserved.counter.key, why, secret, now);
                })
                .ok()
        };
        grants.into_iter().zip(batch.reserved()).map(each).collect()
    }

    fn all_failed(&mut self, mut call: Call, fault: &CallFault<'_>, now: Monotonic) {
        self.telemetry.count_call(fault.outcome());
        self.telemetry.notices.call_failed(fault, self.config.store.reach.token(), now);
        // A failed call without reservations says nothing about them.
        if call.batch.is_empty() {
            return;
        }
        let slots = call.batch.take_slots();
        for reserved in call.batch.into_reserved() {
            self.leases.failed(&reserved.counter, reserved.spare);
        }
        for ticket in call.tickets {
            self.fail(ticket, now);
        }
        let change = self.calls.breaker.failed(call.probe, now);
        if change == BreakerChange::Opened {
            self.telemetry.count_call(CallOutcome::Suspended);
        }
        self.telemetry.notices.changed(change, now);
        self.slots_failed(slots, now);
        if !self.calls.breaker.lets_through(now) {
            self.fail_slots(now);
            for ticket in self.requests.take_gathering() {
                self.fail(ticket, now);
            }
        }
    }

    /// Decides a request that still waits as one that the store has not counted.
    fn fail(&mut self, ticket: Ticket, now: Monotonic) {
        let Some(mut waiter) = self.requests.take(ticket) else { return };
        let Waiter { wants, arrived_under, .. } = &mut waiter;
        let decision = self.under(arrived_under.as_ref(), |worker| worker.decide(wants, None, now));
        // If its call is still under way, a refusal counts when the reply arrives.
        if let Some(batch) = self.calls.batch_of(ticket) {
            for want in &waiter.wants {
                if let (Some((reservation, cost)), Stage::Refused { .. }) =
                    (want.asked(), want.stage)
                {
                    batch.count(reservation, cost);
                }
            }
        }
        self.decided(ticket, waiter, decision, now);
    }

    /// A request that waited for a call is decided.
    #[inline]
    fn decided(
        &mut self,
        ticket: Ticket,
        mut waiter: Waiter<W>,
        decision: Decision,
        now: Monotonic,
    ) {
        let (ticket, decision) = match waiter.slots.take() {
            Some(taken) => {
                let under = waiter.arrived_under.clone();
                self.under(under.as_ref(), |worker| worker.decided_with(*taken, decision, now))
            }
            None => (ticket, decision),
        };
        self.requests.decide(ticket, waiter, decision);
        self.serve_freed(now);
    }
}
