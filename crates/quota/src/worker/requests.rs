//! Requests that wait for a call, and those whose decision the caller has not taken yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quotagate_protocol::Mode;

use super::{MAX_WAITING, Ticket};
use crate::config::Config;
use crate::decision::{Admission, Balance, Decision, GrantedUnits, HeldSlots, Outcome};
use crate::evaluate::Check;
use crate::time::Monotonic;

/// The requests of a worker, from their arrival until their decision is taken.
#[derive(Clone, Debug)]
pub(super) struct PendingRequests<W> {
    waiting: BTreeMap<Ticket, Waiter<W>>,
    /// Requests that no call asks for yet, in the order of arrival. Some may no longer wait.
    gathering: VecDeque<Ticket>,
    decided: VecDeque<Decided<W>>,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(super) struct Waiter<W> {
    pub(super) who: W,
    pub(super) wants: Vec<Want>,
    pub(super) deadline: Monotonic,
    /// The configuration under which it arrived, if another document has replaced that since.
    pub(super) arrived_under: Option<Arc<Config>>,
    /// The slots that it holds already.
    pub(super) slots: Option<Box<TakenSlots>>,
}

/// A request with a decision that the caller has not taken yet.
#[derive(Clone, Debug)]
pub(super) struct Decided<W> {
    ticket: Ticket,
    pub(super) who: W,
    pub(super) wants: Vec<Want>,
    pub(super) decision: Decision,
    pub(super) arrived_under: Option<Arc<Config>>,
}

/// What a request has of its policies of slots, once all have decided.
#[derive(Clone, Debug)]
pub(super) struct TakenSlots {
    /// The ticket that its host knows.
    pub(super) ticket: Ticket,
    pub(super) admission: Admission,
    pub(super) outcomes: Vec<SlotOutcome>,
}

/// For metrics: what a policy made of a request, and whether it needed no call.
#[derive(Clone, Debug)]
pub(super) struct SlotOutcome {
    pub(super) policy: usize,
    pub(super) key: Arc<str>,
    pub(super) outcome: Outcome,
    pub(super) mode: Mode,
    pub(super) by_worker: bool,
}

/// The units that a request needs of one counter, and how far it is with that counter's policy.
#[derive(Clone, Debug)]
pub(super) struct Want {
    pub(super) check: Check,
    pub(super) stage: Stage,
    /// The index of the reservation that asks for the units in the request's call.
    pub(super) reservation: Option<usize>,
    /// Units that the request has already, and what was left after them.
    pub(super) taken: Option<(GrantedUnits, Balance)>,
    /// For metrics: the outcome with the policy, and whether it needed no call.
    pub(super) outcome: Option<(Outcome, bool)>,
}

/// How far a request is with one policy.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// Not decided. While a request is being decided: the store has not counted it.
    Open,
    /// Its units are in [`Want::taken`].
    Taken,
    /// The reservation at this index brought enough units.
    Granted(usize),
    /// Its call did not bring enough units, but a lease has them.
    Leased,
    /// Too few units are left, as the store just said or as the worker knew.
    Refused { balance: Balance, by_store: bool },
}

impl Want {
    /// The reservation that asks for it, and its cost.
    pub(super) fn asked(&self) -> Option<(usize, u64)> {
        Some((self.reservation?, self.check.cost.get()))
    }

    /// Whether a call must ask for it.
    pub(super) const fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open)
    }
}

impl From<Check> for Want {
    fn from(check: Check) -> Self {
        Self { check, stage: Stage::Open, reservation: None, taken: None, outcome: None }
    }
}

impl<W> Default for PendingRequests<W> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), gathering: VecDeque::new(), decided: VecDeque::new() }
    }
}

impl<W> PendingRequests<W> {
    /// Whether no request waits, and all decisions are taken.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.decided.is_empty()
    }

    /// Whether another request may wait.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < MAX_WAITING
    }

    /// Lets a request wait for a call.
    pub(super) fn wait(&mut self, ticket: Ticket, waiter: Waiter<W>) {
        if self.gathering.len() >= 2 * MAX_WAITING {
            self.gathering.retain(|ticket| self.waiting.contains_key(ticket));
        }
        self.waiting.insert(ticket, waiter);
        self.gathering.push_back(ticket);
    }

    /// Another document replaces this configuration: every request that is here arrived under it,
    /// or under an earlier one.
    pub(super) fn arrived_under(&mut self, config: &Arc<Config>) {
        let waiting = self.waiting.values_mut().map(|waiter| &mut waiter.arrived_under);
        let decided = self.decided.iter_mut().map(|decided| &mut decided.arrived_under);
        for arrived_under in waiting.chain(decided) {
            arrived_under.get_or_insert_with(|| Arc::clone(config));
        }
    }

    /// Whether a request still waits.
    pub(super) fn waits(&self, ticket: Ticket) -> bool {
        self.waiting.contains_key(&ticket)
    }

    /// A request that still waits.
    pub(super) fn get(&self, ticket: Ticket) -> Option<&Waiter<W>> {
        self.waiting.get(&ticket)
    }

    /// Takes out a request that still waits, to be decided.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Waiter<W>> {
        self.waiting.remove(&ticket)
    }

    /// A request whose deadline has come. All wait equally long, so the oldest expires first.
    pub(super) fn expired(&self, now: Monotonic) -> Option<Ticket> {
        self.waiting
            .first_key_value()
            .filter(|(_, waiter)| waiter.deadline <= now)
            .map(|(ticket, _)| *ticket)
    }

    /// How many requests gather. Some may no longer wait.
    pub(super) fn gathered(&self) -> usize {
        self.gathering.len()
    }

    /// The first request that gathers and still waits.
    pub(super) fn first_gathered(&mut self) -> Option<(Ticket, &mut Waiter<W>)> {
        while self.gathering.front().is_some_and(|ticket| !self.waiting.contains_key(ticket)) {
            self.gathering.pop_front();
        }
        let ticket = *self.gathering.front()?;
        Some((ticket, self.waiting.get_mut(&ticket)?))
    }

    /// The first request that gathers is in a call now.
    pub(super) fn first_has_left(&mut self) {
        self.gathering.pop_front();
    }

    /// Takes all requests that gather. Some may no longer wait.
    pub(super) fn take_gathering(&mut self) -> VecDeque<Ticket> {
        std::mem::take(&mut self.gathering)
    }

    /// Keeps a decision until the caller takes it.
    pub(super) fn decide(&mut self, ticket: Ticket, waiter: Waiter<W>, decision: Decision) {
        let Waiter { who, wants, arrived_under, .. } = waiter;
        self.decided.push_back(Decided { ticket, who, wants, decision, arrived_under });
    }

    /// The same for a request whose counts are made.
    pub(super) fn decide_counted(&mut self, ticket: Ticket, who: W, decision: Decision) {
        let (wants, arrived_under) = (Vec::new(), None);
        self.decided.push_back(Decided { ticket, who, wants, decision, arrived_under });
    }

    /// Whether decisions are left to be taken.
    pub(super) fn has_decisions(&self) -> bool {
        !self.decided.is_empty()
    }

    /// Takes the next decision.
    pub(super) fn next_decision(&mut self) -> Option<Decided<W>> {
        self.decided.pop_front()
    }

    /// The request holds slots while it waits for a call.
    pub(super) fn holds_slots(&mut self, ticket: Ticket, slots: TakenSlots) {
        if let Some(waiter) = self.waiting.get_mut(&ticket) {
            waiter.slots = Some(Box::new(slots));
        }
    }

    /// Forgets a request. Returns what it wanted, and may have taken, and its admission: that of a
    /// request which still waits has its slots alone.
    pub(super) fn cancel(&mut self, ticket: Ticket) -> (Vec<Want>, Admission) {
        if let Some(waiter) = self.waiting.remove(&ticket) {
            let slots = waiter.slots.map_or_else(HeldSlots::default, |taken| taken.admission.slots);
            return (waiter.wants, Admission { slots, ..Admission::default() });
        }
        let index = self.decided.iter().position(|decided| decided.ticket == ticket);
        match index.and_then(|index| self.decided.remove(index)) {
            Some(Decided { wants, decision: Decision::Admit(admission), .. }) => (wants, admission),
            Some(decided) => (decided.wants, Admission::default()),
            None => (Vec::new(), Admission::default()),
        }
    }

    /// The requests that wait, in the order of arrival.
    #[cfg(test)]
    pub(super) const fn waiting(&self) -> &BTreeMap<Ticket, Waiter<W>> {
        &self.waiting
    }

    /// The tickets of requests whose decision is not taken, in the order of decision.
    #[cfg(test)]
    pub(super) fn decided(&self) -> impl Iterator<Item = Ticket> {
        self.decided.iter().map(|decided| decided.ticket)
    }
}
