//! A worker with its calls and the requests that it let through: what happens to it, and what
//! follows.
//!
//! A node with the same fingerprint at the same moment behaves the same, so a search carries out
//! each of its steps once.

use std::sync::Arc;
use std::time::Duration;

use super::network::{Flight, Message};
use super::properties::Property;
use super::{COUNTED, SearchSetup, TIMEOUT_MS, Window};
use crate::config::MissingCost;
use crate::config::{Abandoned, Config, Count};
use crate::decision::{Admission, Decision, Held, Standing};
use crate::evaluate::{Check, Evaluation};
use crate::exchange::counting::ResponseEvent;
use crate::exchange::{Arrival, Exchange, StreamState, abandon};
use crate::request::findings::IdentityFindings;
use crate::time::Monotonic;
use crate::worker::{Submitted, Worker};

/// A request on its way through a worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeClient {
    kind: usize,
    since: u64,
    is_redirected: bool,
    /// Whether it arrived under the published document.
    is_published: bool,
}

/// A request that was redirected and waits.
#[derive(Clone, Debug)]
pub(super) struct NodeRedirect {
    exchange: Exchange,
    /// What its first pass counted, and still counts.
    earlier: Admission,
    /// What its second pass counts.
    checks: Vec<Check>,
}

#[derive(Clone)]
pub(super) struct ModelNode {
    pub(super) worker: Worker<NodeClient>,
    pub(super) flights: Vec<Flight>,
    /// Requests that hold units until they are answered, or until their real cost is known.
    pub(super) running: Vec<Admission>,
    pub(super) redirected: Option<NodeRedirect>,
    /// Whether its tick of this moment has come.
    pub(super) ticked: bool,
    pub(super) print: u64,
}

/// What happens to a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum NodeEvent {
    /// A request of this kind arrives.
    Arrive(usize),
    /// The client with the open ticket at this index leaves. It waits, or is decided and does not
    /// know it yet.
    Leave(usize),
    /// The running request at this index is answered, with a status that counts or not.
    Answer(usize, bool),
    /// The running request at this index turns out to cost this much.
    Settle(usize, u64),
    /// The proxy loses the running request at this index, so that nobody settles its cost.
    Vanish(usize),
    /// The upstream redirects the running request at this index: to a request of this kind, or to
    /// where no policy sees it.
    Redirect(usize, Option<usize>),
    /// The store has carried out the call at this index, and this is its reply.
    Carried(usize, Arc<str>),
    /// The reply at this index arrives.
    Deliver(usize),
    /// The host reports that the call at this index failed; the store may still carry it out.
    Fail(usize),
    Tick,
    /// The published document is taken up.
    Swap,
    /// The requests that are decided go on.
    Hear,
    /// The next moment comes.
    Pass,
}

/// What changes in the world.
#[derive(Clone, Default)]
pub(super) struct Effects {
    pub(super) admitted: Vec<(Window, u64)>,
    pub(super) uncounted: Vec<(Window, u64)>,
    pub(super) charged: Vec<(Window, u64)>,
    pub(super) wrong: Option<Property>,
}

/// One step of one node.
pub(super) struct Step<'a> {
    setup: &'a SearchSetup,
    node: ModelNode,
    /// The index of the current moment.
    moment: usize,
    effects: Effects,
}

impl ModelNode {
    pub(super) fn new(config: &Arc<Config>) -> Self {
        let worker = Worker::new(Arc::clone(config), 1);
        let (flights, running) = (Vec::new(), Vec::new());
        Self { worker, flights, running, redirected: None, ticked: true, print: 0 }
    }

    /// Whether the published document is in force.
    pub(super) fn is_swapped(&self) -> bool {
        self.worker.config().generation() > 0
    }
}

impl<'a> Step<'a> {
    pub(super) fn new(setup: &'a SearchSetup, node: ModelNode, moment: usize) -> Self {
        Self { setup, node, moment, effects: Effects::default() }
    }

    pub(super) fn take(mut self, event: &NodeEvent) -> (ModelNode, Effects) {
        let (now, worker) = (self.now(), &mut self.node.worker);
        match *event {
            NodeEvent::Arrive(kind) => {
                let is_published = self.node.is_swapped();
                let since = self.now_ms();
                let client = NodeClient { kind, since, is_redirected: false, is_published };
                let checks = self.setup.checks(kind, is_published);
                // A request that no policy concerns passes.
                if !checks.is_empty()
                    && let Submitted::Decided(decision) =
                        self.node.worker.submit(client, checks, now)
                {
                    self.decided(client, decision, true);
                }
            }
            NodeEvent::Leave(index) => {
                let ticket = worker.open_tickets().nth(index).unwrap();
                worker.cancel(ticket, now);
            }
            NodeEvent::Answer(index, counts) => {
                let mut admission = self.node.running.remove(index);
                let status = if counts { COUNTED } else { 200 };
                let back = admission.count_response(
                    ResponseEvent::headers(status, None, None, true),
                    &self.setup.config,
                );
                let of = |Held { counter, units, .. }: &Held| {
                    ((Arc::clone(&counter.key), units.window), units.amount)
                };
                self.effects.uncounted.extend(back.iter().map(of));
                worker.refund(back, now);
                if !admission.unsettled.is_empty() {
                    self.node.running.push(admission);
                }
            }
            NodeEvent::Settle(index, cost) => {
                for held in self.node.running.remove(index).unsettled {
                    self.costs(&held, cost);
                    self.node.worker.settle(held, cost, now);
                }
            }
            NodeEvent::Vanish(index) => {
                self.node.running.remove(index);
            }
            NodeEvent::Redirect(index, to) => {
                let earlier = self.node.running.remove(index);
                match to {
                    Some(kind) => self.redirect(earlier, kind),
                    None => {
                        self.is_abandoned(&earlier);
                        abandon(Some(earlier), &mut self.node.worker, now);
                    }
                }
            }
            NodeEvent::Carried(flight, ref reply) => {
                let Flight { id, due, message } = self.node.flights.remove(flight);
                if let Message::Call(request) = message {
                    let message = Message::Reply(Arc::clone(reply));
                    self.node.flights.push(Flight { id, due, message });
                    self.node.flights.extend(self.setup.repeats.of(&request).map(Flight::stray));
                }
            }
            NodeEvent::Deliver(flight) => {
                let Flight { id, message, .. } = self.node.flights.remove(flight);
                let Message::Reply(body) = message else { unreachable!("{message:?} is no reply") };
                worker.replied(id, body.as_bytes(), now);
            }
            NodeEvent::Fail(flight) => {
                let Flight { id, message, .. } = self.node.flights.remove(flight);
                if let Message::Call(request) = message {
                    self.node.flights.push(Flight::stray(request));
                }
                worker.call_failed(id, now);
            }
            NodeEvent::Tick => {
                worker.tick(now);
                self.node.ticked = true;
            }
            NodeEvent::Swap => worker.swap((*self.setup.published).clone(), now),
            NodeEvent::Hear => self.hear(),
            NodeEvent::Pass => self.node.ticked = false,
        }
        if !matches!(event, NodeEvent::Carried(..) | NodeEvent::Pass) {
            self.settle(now);
        }
        let waits = |client: &NodeClient| client.since + TIMEOUT_MS <= self.now_ms();
        if self.node.ticked && self.node.worker.waiting().any(waits) {
            self.effects.wrong = Some(Property::NothingStuck);
        }
        self.node.print();
        (self.node, self.effects)
    }

    /// Sends the calls that are due. If clients may leave, they may also leave between a decision
    /// and its delivery.
    fn settle(&mut self, now: Monotonic) {
        while let Some(call) = self.node.worker.next_call(now) {
            self.node.flights.push(Flight::new(call, self.now_ms()));
        }
        if self.setup.departures == 0 {
            self.hear();
        }
        self.node.worker.take_tally();
    }

    fn hear(&mut self) {
        while let Some((client, decision)) = self.node.worker.next_decision() {
            if !client.is_redirected {
                self.decided(client, decision, false);
            } else if let Some(mut redirected) = self.node.redirected.take() {
                let now = self.now();
                redirected.exchange.decided(
                    decision,
                    StreamState::Open,
                    &mut self.node.worker,
                    now,
                );
                self.redirect_decided(&redirected);
            }
        }
    }

    /// A request that was admitted `earlier` arrives again, as one of this kind.
    fn redirect(&mut self, mut earlier: Admission, kind: usize) {
        let (now, mut checks) = (self.now(), self.setup.checks(kind, false));
        let evaluation = Evaluation {
            checks: Ok(checks.clone()),
            missing: vec![],
            findings: IdentityFindings::default(),
        };
        let (mut exchange, given) = (Exchange::default(), earlier.clone());
        checks.retain(|check| {
            let stands = |standing: &Standing| {
                standing.counter.key == check.counter.key
                    && standing.cost == check.cost
                    && now < standing.balance.resets
            };
            !earlier.standings.iter().any(stands)
        });
        let counts_again = |policy| checks.iter().any(|check| check.policy == policy);
        let mut replaced = earlier.clone();
        replaced.held.retain(|held| counts_again(held.policy));
        replaced.unsettled.retain(|held| counts_again(held.policy));
        self.is_abandoned(&replaced);
        earlier.held.retain(|held| !counts_again(held.policy));
        earlier.unsettled.retain(|held| !counts_again(held.policy));
        let since = self.now_ms();
        let client = NodeClient { kind, since, is_redirected: true, is_published: false };
        let arrival = exchange.arrive(client, evaluation, Some(given), &mut self.node.worker, now);
        let redirected = NodeRedirect { exchange, earlier, checks };
        if arrival == Arrival::Waiting {
            self.node.redirected = Some(redirected);
        } else {
            self.redirect_decided(&redirected);
        }
    }

    fn redirect_decided(&mut self, NodeRedirect { exchange, earlier, checks }: &NodeRedirect) {
        let Some(admission) = exchange.admission() else { return self.is_abandoned(earlier) };
        for check in checks {
            let standing = admission.standings.iter().find(|it| it.policy == check.policy);
            let Some(standing) = standing else {
                self.effects.wrong = Some(Property::NothingUncounted);
                continue;
            };
            let window = (Arc::clone(&standing.counter.key), self.window(standing));
            self.effects.admitted.push((window, check.cost.get()));
        }
        self.node.running.push(admission.clone());
    }

    /// A request reached the upstream, and nobody sees an answer: it costs what its policies say.
    fn is_abandoned(&mut self, admission: &Admission) {
        for held in admission.held.iter().chain(&admission.unsettled) {
            let policy = &self.setup.config.policies[held.policy];
            let settle = policy.settle.as_deref().map(|settle| settle.missing);
            match (&policy.count, settle) {
                (Count::Responses(answers), _)
                    if answers.abandoned == Abandoned::Refund && admission.held.contains(held) =>
                {
                    self.costs(held, 0);
                }
                (_, Some(MissingCost::Units(cost))) => self.costs(held, cost),
                (_, Some(MissingCost::Reserved) | None) => {}
            }
        }
    }

    /// Held units turn out to be so many.
    fn costs(&mut self, held: &Held, cost: u64) {
        let window = (Arc::clone(&held.counter.key), held.units.window);
        match cost.checked_sub(held.units.amount) {
            Some(more) => self.effects.charged.push((window, more)),
            None => self.effects.uncounted.push((window, held.units.amount - cost)),
        }
    }

    fn decided(&mut self, client: NodeClient, decision: Decision, at_once: bool) {
        let Decision::Admit(admission) = decision else { return };
        let checks = self.setup.checks(client.kind, client.is_published);
        if admission.uncounted.is_some() || admission.standings.len() != checks.len() {
            self.effects.wrong = Some(Property::NothingUncounted);
        }
        for (check, standing) in checks.iter().zip(&admission.standings) {
            let window = self.window(standing);
            if at_once && window != self.setup.current(self.moment, standing.policy) {
                self.effects.wrong = Some(Property::InItsWindow);
            }
            self.effects
                .admitted
                .push(((Arc::clone(&standing.counter.key), window), check.cost.get()));
        }
        let holds = !admission.held.is_empty() || !admission.unsettled.is_empty();
        if holds || self.setup.redirects > 0 {
            self.node.running.push(admission);
        }
    }

    /// The window of a standing. It ends before the reset time that the worker knows, by at most
    /// the delay of a reply, which is less than the window's length.
    fn window(&self, standing: &Standing) -> u64 {
        let length = u64::from(self.setup.config.policies[standing.policy].window.seconds());
        standing.balance.resets.since(Monotonic::default()).as_secs() / length - 1
    }

    fn now_ms(&self) -> u64 {
        self.setup.moments[self.moment]
    }

    fn now(&self) -> Monotonic {
        Monotonic::new(Duration::from_millis(self.now_ms()))
    }
}
