//! Requests that want slots: from their arrival until they hold those of all their policies, and go
//! on to their quotas.

use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::{Mode, OnFailure};

use super::pool::{Queued, Served};
use super::{MAX_QUEUED, MAX_QUEUED_BEHIND};
use crate::config::Config;
use crate::decision::{
    Admission, Balance, Decision, HeldSlot, HeldSlots, Outcome, Refusal, Standing,
};
use crate::evaluate::Check;
use crate::time::Monotonic;
use crate::worker::decide::{standing, uncounted};
use crate::worker::known::{RuntimeOverrides, local};
use crate::worker::requests::{SlotOutcome, TakenSlots};
use crate::worker::submit::{Attempt, ShadowPolicies};
use crate::worker::telemetry::exceeded;
use crate::worker::{MAX_WAITING, Submitted, Ticket, Worker};

/// When a client may come again after its request waited in vain.
const COME_AGAIN: Duration = Duration::from_secs(1);
/// A request holds its slots however long it runs.
const WHILE_IT_RUNS: Duration = Duration::from_secs(u32::MAX as u64);

/// A request that wants slots.
#[derive(Clone, Debug)]
pub(super) struct SlotWaiter<W> {
    who: W,
    wants: Vec<SlotWant>,
    /// Its checks without slots.
    rest: Vec<Check>,
    arrived: Monotonic,
    pub(super) deadline: Monotonic,
    /// The configuration under which it arrived, if another document has replaced that since.
    pub(super) arrived_under: Option<Arc<Config>>,
}

/// The slots that a request wants of one counter.
#[derive(Clone, Debug)]
struct SlotWant {
    check: Check,
    /// Until when it waits for others to end.
    until: Monotonic,
    state: SlotState,
}

/// How far a request is with the slots of one policy.
#[derive(Clone, Copy, Debug)]
enum SlotState {
    /// Not decided. Once the store has said that there are too few: what was left.
    Open(Option<Balance>),
    /// It has held them since then. This was left.
    Taken(Monotonic, Balance),
    /// There are too few.
    Refused { balance: Balance, by_store: bool },
    /// The store did not say. The request may hold slots all the same, since then.
    Failed(Option<Monotonic>),
}

impl<W> SlotWaiter<W> {
    /// The counters whose slots it still wants.
    pub(super) fn open(&self) -> impl Iterator<Item = &Arc<str>> {
        let is_open = |want: &&SlotWant| matches!(want.state, SlotState::Open(_));
        self.wants.iter().filter(is_open).map(|want| &want.check.counter.key)
    }

    /// When the first of its open wants is decided at the latest.
    fn next_deadline(&self, timeout: Duration) -> Option<Monotonic> {
        self.wants.iter().filter_map(|want| want.deadline(self.arrived, timeout)).min()
    }
}

impl SlotWant {
    fn deadline(&self, arrived: Monotonic, timeout: Duration) -> Option<Monotonic> {
        match self.state {
            SlotState::Open(None) => Some(arrived + timeout),
            SlotState::Open(Some(_)) => Some(self.until),
            _ => None,
        }
    }

    fn refuses(&self) -> bool {
        self.check.enforced() && matches!(self.state, SlotState::Refused { .. })
    }

    fn held(&self, worker: u64) -> Option<HeldSlot> {
        let (SlotState::Taken(since, _) | SlotState::Failed(Some(since))) = self.state else {
            return None;
        };
        let Check { policy, counter, cost, .. } = &self.check;
        let key = Arc::clone(&counter.key);
        Some(HeldSlot { policy: *policy, key, units: cost.get(), since, worker })
    }

    fn standing(&self, now: Monotonic) -> Option<Standing> {
        let of = |granted, by_store, balance| Standing {
            by_store,
            counts_until: now + WHILE_IT_RUNS,
            ..standing(&self.check, granted, balance)
        };
        match self.state {
            SlotState::Taken(_, balance) => Some(of(true, false, balance)),
            SlotState::Refused { balance, by_store } => Some(of(false, by_store, balance)),
            SlotState::Open(_) | SlotState::Failed(_) => None,
        }
    }

    fn outcome(&self, from_ledger: bool) -> Option<SlotOutcome> {
        let Check { policy, counter, mode, .. } = &self.check;
        let (outcome, by_worker) = match self.state {
            SlotState::Taken(..) => (Outcome::Admitted, from_ledger),
            SlotState::Refused { by_store, .. } => (exceeded(*mode), !by_store),
            SlotState::Failed(_) => (Outcome::StoreError, false),
            SlotState::Open(_) => return None,
        };
        let key = Arc::clone(&counter.key);
        Some(SlotOutcome { policy: *policy, key, outcome, mode: *mode, by_worker })
    }
}

impl<W> Worker<W> {
    /// Decides a request whose checks include slots, or lets it wait.
    pub(in crate::worker) fn submit_slots(
        &mut self,
        who: W,
        checks: Vec<Check>,
        now: Monotonic,
    ) -> Submitted {
        let (slots, rest): (Vec<Check>, Vec<Check>) =
            checks.into_iter().partition(|check| check.counter.is_slots());
        // A quota that is known to be spent needs no slots.
        if rest.iter().any(|check| check.enforced() && self.refuses(check, now).is_some()) {
            return self.submit_quotas(who, rest, now);
        }
        let ticket = Ticket(self.next_serial());
        let mut wants: Vec<SlotWant> =
            slots.into_iter().map(|check| self.want(check, now)).collect();
        let is_refused = wants.iter().any(SlotWant::refuses);
        let is_open = |want: &SlotWant| matches!(want.state, SlotState::Open(_));
        if is_refused || !wants.iter().any(is_open) {
            let concluded = self.conclude(ticket, &mut wants, true, now);
            for want in &wants {
                self.slots.reschedule(&want.check.counter.key, now);
            }
            return match concluded {
                Ok(taken) => self.submit_rest(who, rest, taken, now),
                Err(decision) => Submitted::Decided(decision),
            };
        }
        for want in wants.iter_mut().filter(|want| is_open(want)) {
            let Check { counter, cost, .. } = &want.check;
            let enforced = want.check.enforced();
            if let Some(pool) = self.slots.pool(&counter.key) {
                let queued = Queued {
                    ticket,
                    cost: cost.get(),
                    arrived: now,
                    until: want.until,
                    enforced,
                    limit: pool.limit,
                    own_quota: pool.own_quota,
                    asked: false,
                    answered: false,
                };
                want.state = SlotState::Open(pool.join(queued, now));
            }
        }
        for want in &wants {
            self.slots.reschedule(&want.check.counter.key, now);
        }
        let arrived_under = self.live.arrived_under();
        let timeout = self.config.store.timeout;
        let mut waiter =
            SlotWaiter { who, wants, rest, arrived: now, deadline: now, arrived_under };
        waiter.deadline = waiter.next_deadline(timeout).unwrap_or(now + timeout);
        let deadline = waiter.deadline;
        self.slots.deadlines.insert((deadline, ticket));
        self.slots.waiting.insert(ticket, waiter);
        Submitted::Waiting(ticket)
    }

    /// What the worker knows of one check on arrival. Takes slots that are idle. The caller
    /// reschedules the counter.
    fn want(&mut self, check: Check, now: Monotonic) -> SlotWant {
        let (cost, limit) = (check.cost.get(), check.counter.quota);
        let policy = check.policy(&self.config);
        let max_wait = policy.filter(|_| check.enforced()).map(|policy| policy.max_wait);
        let until = now + max_wait.unwrap_or_default();
        let own_quota = policy.is_some_and(|policy| policy.own_quota(limit));
        // Only the store knows the limit then.
        let is_overridden = self.runtime_overrides(&check) == RuntimeOverrides::Some;
        let want = |state| SlotWant { check: check.clone(), until, state };
        let may_wait = self.may_wait(now);
        let has_room = self.slots.waiting.len() < MAX_WAITING;
        let Some(pool) = self.slots.pool(&check.counter.key) else {
            return want(SlotState::Failed(None));
        };
        (pool.limit, pool.own_quota) = (limit, own_quota);
        // A request that cannot wait is refused if the counter is known to be full. Otherwise the
        // store decides, or `on_failure` if the request cannot wait for the store either.
        let has_room = has_room
            && (pool.queue.len() < MAX_QUEUED_BEHIND
                || pool.queue.len() < MAX_QUEUED && !pool.holds_up(limit, now));
        let waits = until > now && may_wait && has_room;
        let state = if pool.take_at_once(cost, limit, now) {
            SlotState::Taken(now, pool.balance(limit, now))
        } else if !is_overridden && (cost > limit || !waits && pool.is_full(cost, limit)) {
            let known = pool.balance(limit, now);
            let remaining = known.remaining.min(limit.saturating_sub(pool.live()));
            let balance = Balance { quota: limit, remaining, ..known };
            SlotState::Refused { balance, by_store: false }
        } else if !waits && pool.refuses(cost, limit, now) || !has_room && pool.holds_up(limit, now)
        {
            SlotState::Refused { balance: pool.balance(limit, now), by_store: false }
        } else if may_wait && has_room {
            SlotState::Open(None)
        } else {
            SlotState::Failed(None)
        };
        want(state)
    }

    /// The store answered for requests that wait for slots of this counter, or a request freed
    /// some.
    pub(super) fn served(&mut self, key: &Arc<str>, served: Vec<(Ticket, Served)>, now: Monotonic) {
        for (ticket, served) in served {
            let waiter = self.slots.waiting.get_mut(&ticket);
            let want = waiter.and_then(|waiter| {
                let is_it = |want: &&mut SlotWant| {
                    want.check.counter.key == *key && matches!(want.state, SlotState::Open(_))
                };
                waiter.wants.iter_mut().find(is_it)
            });
            let Some(want) = want else { continue };
            want.state = match served {
                Served::Taken(balance) => SlotState::Taken(now, balance),
                Served::Waits(balance) => SlotState::Open(Some(balance)),
                Served::Refused { balance, by_store } => SlotState::Refused { balance, by_store },
                Served::Failed => SlotState::Failed(None),
            };
            self.advance(ticket, now);
        }
        self.serve_freed(now);
    }

    /// Goes on with a request after something was decided for it.
    fn advance(&mut self, ticket: Ticket, now: Monotonic) {
        let timeout = self.config.store.timeout;
        let Some(waiter) = self.slots.waiting.get_mut(&ticket) else { return };
        if !waiter.wants.iter().any(SlotWant::refuses)
            && let Some(deadline) = waiter.next_deadline(timeout)
        {
            self.slots.deadlines.remove(&(waiter.deadline, ticket));
            waiter.deadline = deadline;
            self.slots.deadlines.insert((deadline, ticket));
            return;
        }
        let Some(waiter) = self.slots.take_waiter(ticket, now) else { return };
        let SlotWaiter { who, mut wants, rest, arrived_under, .. } = waiter;
        self.under(arrived_under.as_ref(), |worker| {
            let decision = match worker.conclude(ticket, &mut wants, false, now) {
                Err(decision) => decision,
                Ok(taken) => match worker.attempt(rest, ShadowPolicies::Awaited, now) {
                    Attempt::Decided(decision) => worker.decided_with(taken, decision, now).1,
                    Attempt::Passes(admission, _) => {
                        worker.decided_with(taken, Decision::Admit(admission), now).1
                    }
                    Attempt::Waits(wants) => {
                        let inner = worker.wait_for_call(who, wants, now);
                        worker.slots.moved.insert(ticket, inner);
                        worker.requests.holds_slots(inner, taken);
                        return;
                    }
                },
            };
            worker.requests.decide_counted(ticket, who, decision);
        });
    }

    /// A request that holds its slots without having waited goes on to its quotas.
    fn submit_rest(
        &mut self,
        who: W,
        rest: Vec<Check>,
        taken: TakenSlots,
        now: Monotonic,
    ) -> Submitted {
        match self.submit_quotas(who, rest, now) {
            Submitted::Decided(decision) => {
                Submitted::Decided(self.decided_with(taken, decision, now).1)
            }
            Submitted::Counting(admission) => {
                match self.decided_with(taken, Decision::Admit(admission), now).1 {
                    Decision::Admit(admission) => Submitted::Counting(admission),
                    decision => Submitted::Decided(decision),
                }
            }
            Submitted::Waiting(inner) => {
                let ticket = taken.ticket;
                self.slots.moved.insert(ticket, inner);
                self.requests.holds_slots(inner, taken);
                Submitted::Waiting(ticket)
            }
        }
    }

    /// All policies of slots have decided, or one refuses. `at_once`: no request was made to the
    /// store.
    ///
    /// # Errors
    /// The decision, if the request is not admitted. It holds no slots then.
    #[allow(clippy::result_large_err, reason = "The caller takes it apart at once")]
    fn conclude(
        &mut self,
        ticket: Ticket,
        wants: &mut [SlotWant],
        at_once: bool,
        now: Monotonic,
    ) -> Result<TakenSlots, Decision> {
        let mut failed = None;
        if !wants.iter().any(SlotWant::refuses) {
            for want in wants.iter().filter(|it| matches!(it.state, SlotState::Failed(_))) {
                let Some(policy) = want.check.awaited_policy(&self.config) else { continue };
                if policy.on_failure == OnFailure::Deny {
                    let failed = uncounted(&want.check);
                    self.free_refused(wants, at_once, now);
                    return Err(Decision::Unavailable(failed));
                }
                failed.get_or_insert_with(|| uncounted(&want.check));
            }
            for want in wants.iter_mut() {
                if let (SlotState::Failed(_), Some(policy)) =
                    (want.state, want.check.awaited_policy(&self.config))
                {
                    let share = (policy.on_failure == OnFailure::Local).then(|| {
                        local::share(want.check.counter.quota, self.config.store.local_share)
                    });
                    want.state = self.without_store(&want.check, share, now);
                }
            }
        }
        if wants.iter().any(SlotWant::refuses) {
            let standings: Vec<Standing> =
                wants.iter().filter_map(|want| want.standing(now)).collect();
            let waits = |want: &&SlotWant| {
                let policy = want.check.policy(&self.config);
                let may_wait = policy.is_some_and(|policy| !policy.max_wait.is_zero());
                want.refuses() && may_wait && want.until <= now
            };
            let until = if wants.iter().any(|want| waits(&want)) { now + COME_AGAIN } else { now };
            self.free_refused(wants, at_once, now);
            return Err(Decision::Refuse(Refusal { standings, until }));
        }
        let slots = self.held_of(wants);
        let mut admission =
            Admission { uncounted: failed.map(Box::new), slots, ..Admission::default() };
        for want in wants.iter() {
            admission.standings.extend(want.standing(now));
            if matches!(want.state, SlotState::Failed(_)) && !want.check.mode.is_awaited() {
                admission.pending.push(uncounted(&want.check));
            }
        }
        let outcomes = wants.iter().filter_map(|want| want.outcome(at_once)).collect();
        Ok(TakenSlots { ticket, admission, outcomes })
    }

    /// The store did not say whether slots are free. `share`: as many as this worker may give by
    /// itself; without it, the whole limit, as far as the worker knows it.
    fn without_store(&mut self, check: &Check, share: Option<u64>, now: Monotonic) -> SlotState {
        let (key, cost, quota) = (&check.counter.key, check.cost.get(), check.counter.quota);
        // Only the store knows the limit if an operator has overridden it.
        let is_overridden = self.runtime_overrides(check) == RuntimeOverrides::Some;
        let most = share.or((!is_overridden).then_some(quota));
        let Some(pool) = self.slots.pool(key) else { return SlotState::Failed(None) };
        let state = match most {
            Some(most) if pool.is_full(cost, most) => {
                let remaining = most.saturating_sub(pool.live());
                let balance = Balance { quota, remaining, resets: now, window_s: 0 };
                SlotState::Refused { balance, by_store: false }
            }
            _ => {
                pool.hold(cost, now);
                SlotState::Failed(Some(now))
            }
        };
        self.slots.reschedule(key, now);
        state
    }

    /// A request is not admitted: counts it, and frees what it holds.
    fn free_refused(&mut self, wants: &[SlotWant], at_once: bool, now: Monotonic) {
        let outcomes: Vec<SlotOutcome> =
            wants.iter().filter_map(|want| want.outcome(at_once)).collect();
        self.count_slots(&outcomes, false);
        self.free(self.held_of(wants), now);
    }

    /// What these wants hold.
    fn held_of(&self, wants: &[SlotWant]) -> HeldSlots {
        let mut slots = HeldSlots::default();
        wants.iter().filter_map(|want| want.held(self.slots.life)).for_each(|it| slots.push(it));
        slots
    }

    /// A request with slots was decided by its quotas. Returns the ticket that its host knows, and
    /// the decision.
    pub(in crate::worker) fn decided_with(
        &mut self,
        taken: TakenSlots,
        decision: Decision,
        now: Monotonic,
    ) -> (Ticket, Decision) {
        let TakenSlots { ticket, admission, outcomes } = taken;
        self.slots.moved.remove(&ticket);
        self.count_slots(&outcomes, matches!(decision, Decision::Admit(_)));
        let decision = match decision {
            Decision::Admit(mut admitted) => {
                admitted.join(admission);
                Decision::Admit(admitted)
            }
            Decision::Refuse(mut refusal) => {
                refusal.standings.extend(admission.standings);
                refusal.standings.sort_by_key(|standing| standing.policy);
                self.free(admission.slots, now);
                Decision::Refuse(refusal)
            }
            Decision::Unavailable(failed) => {
                self.free(admission.slots, now);
                Decision::Unavailable(failed)
            }
        };
        (ticket, decision)
    }

    fn count_slots(&mut self, outcomes: &[SlotOutcome], admitted: bool) {
        for SlotOutcome { policy, key, outcome, mode, by_worker } in outcomes {
            // A request that another policy refuses is neither admitted nor marked.
            if admitted || !matches!(outcome, Outcome::Admitted | Outcome::Marked) {
                debug_assert!(*outcome != Outcome::Marked || *mode == Mode::Mark);
                self.telemetry.count_decided(*policy, *outcome, key, *by_worker);
            }
        }
    }

    /// The client of a request left. Returns its ticket, unless it wanted slots.
    pub(in crate::worker) fn cancel_slots(
        &mut self,
        ticket: Ticket,
        now: Monotonic,
    ) -> Option<Ticket> {
        if self.slots.waiting.is_empty() && self.slots.moved.is_empty() {
            return Some(ticket);
        }
        let Some(waiter) = self.slots.take_waiter(ticket, now) else {
            return Some(self.slots.moved.remove(&ticket).unwrap_or(ticket));
        };
        self.free(self.held_of(&waiter.wants), now);
        self.serve_freed(now);
        None
    }

    /// Time has passed: decides requests whose deadline has come.
    pub(in crate::worker) fn tick_slots(&mut self, now: Monotonic) {
        if self.slots.is_empty() {
            return;
        }
        while let Some((deadline, ticket)) = self.slots.deadlines.first().copied()
            && deadline <= now
        {
            self.expire(ticket, false, now);
        }
        if self.slots.sweep_at <= now {
            self.slots.sweep_at = now + Duration::from_secs(1);
            let due = self.slots.agenda.iter().take_while(|(due, _)| *due <= now);
            let due: Vec<Arc<str>> = due.map(|(_, key)| Arc::clone(key)).collect();
            for key in due {
                self.slots.reschedule(&key, now);
            }
        }
    }

    /// The store is given up: decides all requests that want slots.
    pub(in crate::worker) fn fail_slots(&mut self, now: Monotonic) {
        while let Some(ticket) = self.slots.waiting.keys().next().copied() {
            self.expire(ticket, true, now);
        }
    }

    /// A request does not wait any longer for slots whose deadline has come, or for none at all.
    fn expire(&mut self, ticket: Ticket, all: bool, now: Monotonic) {
        let timeout = self.config.store.timeout;
        let Some(waiter) = self.slots.waiting.get_mut(&ticket) else {
            self.slots.deadlines.retain(|(_, of)| *of != ticket);
            return;
        };
        for want in &mut waiter.wants {
            let Some(deadline) = want.deadline(waiter.arrived, timeout) else { continue };
            if !all && deadline > now {
                continue;
            }
            want.state = match want.state {
                // The store does not count it as refused, since it waited.
                SlotState::Open(Some(balance)) if !all => {
                    SlotState::Refused { balance, by_store: false }
                }
                _ => SlotState::Failed(None),
            };
            let key = Arc::clone(&want.check.counter.key);
            if let Some(pool) = self.slots.pools.get_mut(&key) {
                pool.leaves(ticket);
            }
            self.slots.freed.push_back(key);
        }
        self.advance(ticket, now);
        self.serve_freed(now);
    }
}
