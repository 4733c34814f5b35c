//! Workers, their store, the network between them, and clients that come, go and are answered.

mod checks;
mod redirects;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::{Mode, OnFailure, ReserveRequest};

use super::Random;
use super::model::ModelStore;
use crate::config::{Abandoned, Config, Count, Policy, Precision};
use crate::decision::{Admission, Decision, GrantedUnits, Held, Outcome, Standing};
use crate::evaluate::{Check, Counter};
use crate::exchange::counting::ResponseEvent;
use crate::time::Monotonic;
use crate::worker::{CallId, Counted, Submitted, Ticket, Worker};

pub(super) const TIMEOUT_MS: u64 = 50;
/// A request answered with this status counts, if the policy counts by status.
pub(super) const COUNTED: u16 = 401;

/// How the world behaves.
pub(super) struct WorldSetup {
    pub(super) workers: usize,
    /// Parties that a policy counts.
    pub(super) parties: u64,
    /// The most requests in a millisecond.
    pub(super) rate: u64,
    /// The largest cost.
    pub(super) cost: u64,
    /// Chance, in percent, that a call is lost, for each direction.
    pub(super) loss: u64,
    /// Whether some messages arrive after the timeout.
    pub(super) late: bool,
    /// For this many milliseconds two workers get nearly all of the traffic, then two others. 0 if
    /// all workers get the same.
    pub(super) moves_every: u64,
    /// Chance, in percent, that the upstream redirects an admitted request.
    pub(super) redirects: u64,
}

enum WorldEvent {
    AtStore(usize, CallId, Vec<u8>),
    Reply(usize, CallId, Vec<u8>),
    Failed(usize, CallId),
    Answered(usize, Admission),
    Redirected(usize, Admission),
}

struct WorldClient {
    worker: usize,
    /// `None` if it went on, so that it cannot leave.
    ticket: Option<Ticket>,
    since: u64,
    checks: Vec<Check>,
    /// What a redirected request did before.
    redirected: Option<redirects::SecondPass>,
}

pub(super) struct World {
    setup: WorldSetup,
    pub(super) random: Random,
    pub(super) config: Arc<Config>,
    pub(super) store: ModelStore,
    workers: Vec<Worker<u64>>,
    events: BTreeMap<(u64, u64), WorldEvent>,
    clients: BTreeMap<u64, WorldClient>,
    /// By policy and party.
    counters: Vec<Vec<Counter>>,
    /// Admitted units, by counter and number of the window that granted them. `refused` has the
    /// refused ones.
    pub(super) admitted: HashMap<(Arc<str>, u64), u64>,
    pub(super) refused: HashMap<(Arc<str>, u64), u64>,
    /// Units that real costs took beyond their reservations.
    pub(super) charged: HashMap<(Arc<str>, u64), u64>,
    /// Units, by counter key, that a policy may have refused without this world seeing it: of
    /// clients that left before the decision reached them, and of those answered with 503.
    pub(super) unseen: HashMap<Arc<str>, u64>,
    /// Units that each worker admitted by itself.
    pub(super) local: HashMap<(usize, Counter), u64>,
    outcomes: BTreeMap<(usize, Outcome), u64>,
    serial: u64,
    now: u64,
}

fn unseen(units: &mut HashMap<Arc<str>, u64>, checks: &[Check]) {
    for Check { counter, cost, .. } in checks {
        *units.entry(Arc::clone(&counter.key)).or_default() += cost.get();
    }
}

impl World {
    pub(super) fn new(seed: u64, config: Config, setup: WorldSetup) -> Self {
        let config = Arc::new(config);
        let worker = |i| Worker::new(Arc::clone(&config), seed * 8 + i);
        let counter = |policy: &Policy, party| Counter {
            key: format!("d:{}:{{ip={party}}}", policy.name).into(),
            quota: policy.quota,
            window: policy.window.clone(),
        };
        let of = |policy: &Policy| (0..setup.parties).map(|party| counter(policy, party)).collect();
        let counters = config.policies.iter().map(of).collect();
        Self {
            random: Random(seed),
            store: ModelStore::default(),
            workers: (0..setup.workers as u64).map(worker).collect(),
            setup,
            config,
            events: BTreeMap::new(),
            clients: BTreeMap::new(),
            counters,
            unseen: HashMap::new(),
            admitted: HashMap::new(),
            refused: HashMap::new(),
            charged: HashMap::new(),
            local: HashMap::new(),
            outcomes: BTreeMap::new(),
            serial: 0,
            now: 1_000_000,
        }
    }

    fn time(&self) -> Monotonic {
        Monotonic::new(Duration::from_millis(self.now))
    }

    fn after(&mut self, delay: u64, event: WorldEvent) {
        self.serial += 1;
        self.events.insert((self.now + delay, self.serial), event);
    }

    fn sent(&mut self, event: WorldEvent) {
        let late = self.setup.late && self.random.percent(5);
        let delay = if late { self.random.below(200) } else { self.random.below(8) };
        self.after(delay, event);
    }

    fn checks(&mut self) -> Vec<Check> {
        let (party, cost) =
            (self.random.below(self.setup.parties), 1 + self.random.below(self.setup.cost));
        let all = 1 + self.random.below((1 << self.config.policies.len()) - 1);
        let mode = |policy: usize| self.config.policies[policy].mode;
        let check = |(policy, counters): (usize, &Vec<Counter>)| {
            let (counter, cost) =
                (counters[party as usize].clone(), NonZeroU64::new(cost).unwrap());
            (all >> policy & 1 == 1).then_some(Check { policy, counter, cost, mode: mode(policy) })
        };
        self.counters.iter().enumerate().filter_map(check).collect()
    }

    fn worker(&mut self) -> usize {
        let workers = self.setup.workers as u64;
        let turn = self.now.checked_div(self.setup.moves_every).filter(|_| !self.random.percent(2));
        turn.map_or(self.random.below(workers), |turn| (turn * 2 + self.random.below(2)) % workers)
            as usize
    }

    fn arrive(&mut self) {
        let (worker, checks, id) = (self.worker(), self.checks(), self.serial);
        self.serial += 1;
        let now = self.time();
        let since = self.now;
        let redirected = None;
        match self.workers[worker].submit(id, checks.clone(), now) {
            Submitted::Waiting(ticket) => {
                let ticket = Some(ticket);
                self.clients.insert(id, WorldClient { worker, ticket, since, checks, redirected });
            }
            Submitted::Counting(admission) => {
                let is_known = |check: &Check| {
                    admission.standings.iter().any(|known| known.policy == check.policy)
                };
                let (known, asked): (Vec<_>, Vec<_>) = checks.into_iter().partition(is_known);
                let only_counts =
                    |check: &Check| self.config.policies[check.policy].mode == Mode::Shadow;
                assert!(
                    !asked.is_empty() && asked.iter().all(only_counts),
                    "admitted before it was counted"
                );
                self.at_once(worker, &known, Decision::Admit(admission));
                let (ticket, checks) = (None, asked);
                self.clients.insert(id, WorldClient { worker, ticket, since, checks, redirected });
            }
            Submitted::Decided(decision) => self.at_once(worker, &checks, decision),
        }
        let waiting =
            |(id, client): (&u64, &WorldClient)| client.ticket.map(|ticket| (*id, ticket));
        if self.random.percent(10)
            && let Some((gone, ticket)) = self.clients.iter().find_map(waiting)
        {
            self.leave(gone, ticket);
        }
    }

    fn at_once(&mut self, worker: usize, checks: &[Check], decision: Decision) {
        if let Decision::Admit(Admission { standings, .. }) = &decision {
            for standing in standings.iter().filter(|standing| standing.granted) {
                let window_s = self.config.policies[standing.policy].window.seconds();
                let current = self.now / 1000 / u64::from(window_s);
                assert_eq!(self.window(standing), current, "spent after its window's end");
            }
        }
        self.decided(worker, checks, &decision);
        self.runs(worker, decision);
    }

    fn leave(&mut self, client: u64, ticket: Ticket) {
        let Some(WorldClient { worker, checks, .. }) = self.clients.remove(&client) else { return };
        let now = self.time();
        let worker = &mut self.workers[worker];
        if !worker.waits(ticket) {
            unseen(&mut self.unseen, &checks);
        }
        worker.cancel(ticket, now);
    }

    /// The window that a standing is of: it ends at most a reply's delay, less than its length,
    /// before the reset time that the worker knows.
    fn window(&self, standing: &Standing) -> u64 {
        let window_s = self.config.policies[standing.policy].window.seconds();
        standing.balance.resets.since(Monotonic::default()).as_secs() / u64::from(window_s) - 1
    }

    fn decided(&mut self, worker: usize, checks: &[Check], decision: &Decision) {
        let (standings, admitted) = match decision {
            Decision::Admit(admission) => (&admission.standings, true),
            Decision::Refuse(refusal) => (&refusal.standings, false),
            Decision::Unavailable(_) => return unseen(&mut self.unseen, checks),
        };
        assert!(standings.is_sorted_by_key(|standing| standing.policy));
        for check in checks {
            let policy = &self.config.policies[check.policy];
            let standing = standings.iter().find(|standing| standing.policy == check.policy);
            let Some(standing) = standing else {
                let fails_closed =
                    policy.mode == Mode::Enforce && policy.on_failure == OnFailure::Deny;
                assert!(
                    !admitted || !fails_closed,
                    "admitted by {} without being counted",
                    policy.name
                );
                if admitted && policy.mode == Mode::Enforce && policy.on_failure == OnFailure::Local
                {
                    *self.local.entry((worker, check.counter.clone())).or_default() +=
                        check.cost.get();
                }
                continue;
            };
            let counter = (Arc::clone(&check.counter.key), self.window(standing));
            let outcome = match (standing.granted, policy.mode) {
                (true, _) => {
                    if admitted {
                        let units = self.admitted.entry(counter.clone()).or_default();
                        *units += check.cost.get();
                        assert!(*units <= policy.quota, "invariant 1: {units} of {counter:?}");
                    }
                    admitted.then_some(Outcome::Admitted)
                }
                (false, mode) => {
                    assert!(
                        !admitted || mode == Mode::Shadow,
                        "admitted although {} refuses",
                        policy.name
                    );
                    *self.refused.entry(counter).or_default() += check.cost.get();
                    Some(if mode == Mode::Shadow {
                        Outcome::ShadowRefused
                    } else {
                        Outcome::Refused
                    })
                }
            };
            if let Some(outcome) = outcome {
                *self.outcomes.entry((check.policy, outcome)).or_default() += 1;
            }
        }
    }

    /// The upstream answers an admitted request, or redirects it.
    fn runs(&mut self, worker: usize, decision: Decision) {
        let Decision::Admit(admission) = decision else { return };
        if self.random.percent(self.setup.redirects) {
            let delay = self.random.below(100);
            self.after(delay, WorldEvent::Redirected(worker, admission));
        } else if !admission.held.is_empty() || !admission.unsettled.is_empty() {
            let delay = self.random.below(100);
            self.after(delay, WorldEvent::Answered(worker, admission));
        }
    }

    fn happen(&mut self, event: WorldEvent) {
        let now = self.time();
        match event {
            WorldEvent::AtStore(worker, call, body) => {
                let request: ReserveRequest = serde_json::from_slice(&body).unwrap();
                let reply = serde_json::to_vec(&self.store.carry_out(&request, self.now)).unwrap();
                let lost = self.random.percent(self.setup.loss);
                self.sent(if lost {
                    WorldEvent::Failed(worker, call)
                } else {
                    WorldEvent::Reply(worker, call, reply)
                });
            }
            WorldEvent::Reply(worker, call, body) => {
                self.workers[worker].replied(call, &body, now);
            }
            WorldEvent::Failed(worker, call) => self.workers[worker].call_failed(call, now),
            WorldEvent::Answered(worker, mut admission) => {
                let status = self.random.of(&[Some(COUNTED), Some(200), Some(200), None]);
                let head = |status| ResponseEvent::headers(status, None, None, true);
                let by_answer = !admission.held.is_empty();
                let counts = match status {
                    Some(status) => status == COUNTED,
                    None => self.counts_abandoned(),
                };
                let held = admission
                    .count_response(status.map_or(ResponseEvent::Abandoned, head), &self.config);
                assert_eq!(held.is_empty(), !by_answer || counts);
                for Held { counter, units, .. } in &held {
                    self.uncount(counter, *units, units.amount);
                }
                self.workers[worker].refund(held, now);
                for held in admission.unsettled {
                    self.settle_cost(worker, held, now);
                }
            }
            WorldEvent::Redirected(worker, admission) => self.redirect(worker, admission),
        }
    }

    fn uncount(&mut self, counter: &Counter, of: GrantedUnits, units: u64) {
        *self.admitted.get_mut(&(Arc::clone(&counter.key), of.window)).unwrap() -= units;
    }

    /// A request turns out to cost less than it reserved, or more; or nobody ever says.
    fn settle_cost(&mut self, worker: usize, held: Held, now: Monotonic) {
        if self.random.percent(10) {
            return;
        }
        let cost = self.random.below(2 * self.setup.cost + 1);
        self.costs(&held, cost);
        self.workers[worker].settle(held, cost, now);
    }

    /// Held units turn out to be so many.
    fn costs(&mut self, held: &Held, cost: u64) {
        let reserved = held.units.amount;
        match cost.checked_sub(reserved) {
            Some(more) => {
                let counter = (Arc::clone(&held.counter.key), held.units.window);
                *self.charged.entry(counter).or_default() += more;
            }
            None => self.uncount(&held.counter, held.units, reserved - cost),
        }
    }

    fn settle(&mut self, worker: usize) {
        let now = self.time();
        while let Some(call) = self.workers[worker].next_call(now) {
            if self.random.percent(self.setup.loss) {
                self.sent(WorldEvent::Failed(worker, call.id));
            } else {
                self.sent(WorldEvent::AtStore(worker, call.id, call.body()));
            }
        }
        while let Some((id, decision)) = self.workers[worker].next_decision() {
            let WorldClient { since, checks, redirected, .. } =
                self.clients.remove(&id).expect("a request is decided once, and not after it left");
            assert!(
                self.now <= since + TIMEOUT_MS + 10,
                "invariant 2: decided after {} ms",
                self.now - since
            );
            self.decided(worker, &checks, &decision);
            match redirected {
                None => self.runs(worker, decision),
                Some(redirected) => self.redirect_decided(worker, redirected, decision),
            }
        }
    }

    /// A millisecond passes.
    fn step(&mut self) {
        self.now += 1;
        while self.events.first_key_value().is_some_and(|((at, _), _)| *at <= self.now) {
            let (_, event) = self.events.pop_first().unwrap();
            self.happen(event);
        }
        for _ in 0..self.random.below(self.setup.rate + 1) {
            self.arrive();
        }
        for worker in 0..self.workers.len() {
            if self.now % 10 == worker as u64 % 10 {
                let now = self.time();
                self.workers[worker].tick(now);
            }
            self.settle(worker);
        }
        for WorldClient { since, .. } in self.clients.values() {
            assert!(
                self.now <= since + TIMEOUT_MS + 10,
                "invariant 2: stuck for {} ms",
                self.now - since
            );
        }
        self.leases_are_bounded();
    }

    pub(super) fn run(mut self, ms: u64) -> Self {
        for _ in 0..ms {
            self.step();
        }
        self
    }

    /// All clients that can leave do so, and nearly a second passes without new ones.
    pub(super) fn drain(mut self) -> Self {
        let waiting =
            |(id, client): (&u64, &WorldClient)| client.ticket.map(|ticket| (*id, ticket));
        let leaving: Vec<_> = self.clients.iter().filter_map(waiting).collect();
        for (client, ticket) in leaving {
            self.leave(client, ticket);
        }
        (self.setup.rate, self.setup.redirects) = (0, 0);
        self.run(900)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.clients.is_empty() && self.workers.iter().all(Worker::is_idle)
    }
}
