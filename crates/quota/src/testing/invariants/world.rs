//! Drivers, their store, the network between them, and clients that come, go and are answered. The
//! world drives them as the adapters do.

mod checks;
mod redirects;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::{Mode, OnFailure, ReserveRequest, Window};

use super::Random;
use super::model::ModelStore;
use crate::config::{Abandoned, Config, Count, MissingCost, Policy, Precision};
use crate::decision::{Admission, Decision, Held, Outcome, Standing};
use crate::driver::{self, Arriving, ClientMark, Driver, HostWork, Outgoing, RequestBody};
use crate::evaluate::{Check, Counter, Evaluation};
use crate::exchange::{Arrival, Exchange, StreamState};
use crate::request::findings::IdentityFindings;
use crate::response::Upstream;
use crate::time::Monotonic;
use crate::worker::{AnsweredBy, CallEnd, CallFault, CallId, Counted};

pub(super) const TIMEOUT_MS: u64 = 50;
/// A request answered with this status counts, if the policy counts by status.
pub(super) const COUNTED: u16 = 401;

/// The header that says the real cost of a request.
pub(super) const COST: &str = "x-cost";

/// What the store replies to a fetch of dials.
const NO_DIALS: &str = r#"{"version":0,"dials":[]}"#;

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
    /// Chance, in percent, that a worker takes up another document in a millisecond.
    pub(super) swaps: u64,
    /// Whether such a document may lack policies.
    pub(super) removes: bool,
    /// Whether its quotas may be smaller.
    pub(super) new_quotas: bool,
    /// Whether its windows may be others.
    pub(super) new_windows: bool,
}

enum WorldEvent {
    AtStore(usize, CallId, Vec<u8>),
    Reply(usize, CallId, Vec<u8>),
    Failed(usize, CallId),
    /// The upstream answers this request, or redirects it.
    Answered(u64),
    Redirected(u64),
}

/// A request on its stream.
struct WorldClient {
    worker: usize,
    exchange: Exchange,
    /// What the worker has not decided yet, and since when.
    pending: Option<(u64, Vec<Check>)>,
    /// What its first pass holds after a redirect, and this one does not replace.
    earlier: Admission,
    /// Whether the stream has ended, while shadow policies still ask the store.
    is_over: bool,
}

/// What an upstream answers.
struct WorldResponse {
    status: u16,
    cost: Option<u64>,
}

impl Upstream for WorldResponse {
    fn status(&self) -> Option<u16> {
        Some(self.status)
    }

    fn header(&self, name: &str) -> Vec<Vec<u8>> {
        let cost = self.cost.filter(|_| name == COST);
        cost.map(|cost| cost.to_string().into_bytes()).into_iter().collect()
    }
}

pub(super) struct World {
    setup: WorldSetup,
    pub(super) random: Random,
    pub(super) config: Arc<Config>,
    pub(super) store: ModelStore,
    drivers: Vec<Driver<u64, u64>>,
    /// Whether each driver wants ticks.
    ticking: Vec<bool>,
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
    /// The outcomes that the drivers counted, by policy.
    tallied: BTreeMap<(usize, Outcome), u64>,
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
        let driver = |i| Driver::new(Arc::clone(&config), seed * 8 + i);
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
            drivers: (0..setup.workers as u64).map(driver).collect(),
            ticking: vec![false; setup.workers],
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
            tallied: BTreeMap::new(),
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

    /// The configured policy of a counter. Documents that workers take up have it at another index.
    fn index_of(&self, key: &str) -> usize {
        let is_of = |counter: &Counter| *counter.key == *key;
        self.counters.iter().position(|counters| counters.iter().any(is_of)).unwrap()
    }

    fn policy_of(&self, key: &str) -> &Policy {
        &self.config.policies[self.index_of(key)]
    }

    /// The same checks with the indexes of the document that the worker has, and without those of
    /// policies that it lacks.
    fn checks_of(&self, worker: usize, checks: Vec<Check>) -> Vec<Check> {
        let in_force = self.drivers[worker].config();
        let moved = |check: Check| {
            let policy = in_force.index_from(&self.config, check.policy)?;
            let Policy { quota, window, .. } = &in_force.policies[policy];
            let counter = Counter { quota: *quota, window: window.clone(), ..check.counter };
            Some(Check { policy, counter, ..check })
        };
        let mut checks: Vec<_> = checks.into_iter().filter_map(moved).collect();
        checks.sort_by_key(|check| check.policy);
        checks
    }

    /// A worker takes up a document with the same policies in another order, and perhaps without
    /// some of them, or with other quotas and windows.
    fn swap(&mut self, worker: usize) {
        let mut config = (*self.config).clone();
        for index in (1..config.policies.len()).rev() {
            config.policies.swap(index, self.random.below(index as u64 + 1) as usize);
        }
        while self.setup.removes && self.random.percent(30) {
            config.policies.pop();
        }
        for policy in &mut config.policies {
            if self.setup.new_quotas && self.random.percent(50) {
                policy.quota = 1 + self.random.below(policy.quota);
            }
            if self.setup.new_windows && self.random.percent(30) {
                policy.window = Window::new(self.random.of(&[1, 2, 31_622_400]), 0).unwrap();
            }
        }
        self.take_tallies();
        let now = self.time();
        self.drivers[worker].worker_mut().swap(config, now);
    }

    fn arrive(&mut self) {
        let (worker, checks) = (self.worker(), self.checks());
        let checks = self.checks_of(worker, checks);
        if checks.is_empty() {
            return;
        }
        self.pass(worker, checks, None, Admission::default());
        let waits = |(id, client): (&u64, &WorldClient)| client.waits().then_some(*id);
        if self.random.percent(10)
            && let Some(gone) = self.clients.iter().find_map(waits)
        {
            self.leave(gone);
        }
    }

    /// A pass of a request begins. Of a redirected one, `given` is the admission of the pass
    /// before, and `earlier` what this one does not replace of it; `checks` are those that count.
    fn pass(
        &mut self,
        worker: usize,
        checks: Vec<Check>,
        given: Option<(Admission, Vec<Check>)>,
        earlier: Admission,
    ) {
        let (now, since, id) = (self.time(), self.now, self.serial);
        self.serial += 1;
        let is_first = given.is_none();
        let (given, all) = given.map_or((None, checks.clone()), |(given, all)| (Some(given), all));
        let evaluation =
            Evaluation { checks: Ok(all), missing: vec![], findings: IdentityFindings::default() };
        let (body, mark) = (RequestBody::Absent, ClientMark::Harmless);
        let driver = &mut self.drivers[worker];
        driver.observe_traffic(now);
        let mut exchange = Exchange::default();
        let stream = driver::Stream { id, who: &id, exchange: &mut exchange };
        let arrival =
            driver.arrive(stream, Arriving { evaluation, earlier: given, body, mark }, now);
        let mut client = WorldClient { worker, exchange, pending: None, earlier, is_over: false };
        match arrival {
            Arrival::Waiting => {
                client.pending = Some((since, checks));
                self.clients.insert(id, client);
            }
            Arrival::Decided | Arrival::Counting => {
                let decision = client.exchange.decision().unwrap().clone();
                let is_pending = |check: &Check| match &decision {
                    Decision::Admit(admission) if arrival == Arrival::Counting => {
                        admission.pending.iter().any(|it| it.policy == check.policy)
                    }
                    _ => false,
                };
                let (asked, known): (Vec<_>, Vec<_>) = checks.into_iter().partition(is_pending);
                let only_counts =
                    |check: &Check| self.policy_of(&check.counter.key).mode == Mode::Shadow;
                assert!(asked.iter().all(only_counts), "admitted before it was counted");
                if is_first {
                    assert!(arrival == Arrival::Decided || !asked.is_empty(), "counts nothing");
                    self.is_spent_in_its_window(&decision);
                }
                self.decided(worker, &known, &decision);
                if !asked.is_empty() {
                    client.pending = Some((since, asked));
                }
                self.goes_on(id, client);
            }
            other => unreachable!("{other:?}"),
        }
    }

    fn is_spent_in_its_window(&self, decision: &Decision) {
        let Decision::Admit(Admission { standings, .. }) = decision else { return };
        for standing in standings.iter().filter(|standing| standing.granted) {
            let current = self.now / 1000 / u64::from(standing.counter.window.seconds());
            assert_eq!(self.window(standing), current, "spent after its window's end");
        }
    }

    /// The client of a request that waits leaves.
    fn leave(&mut self, id: u64) {
        let Some(mut client) = self.clients.remove(&id) else { return };
        let (now, driver) = (self.time(), &mut self.drivers[client.worker]);
        let is_decided = !driver.worker().waiting().any(|who| *who == id);
        driver.end(&id, &mut client.exchange, &(), now);
        if let Some((_, checks)) = client.pending.filter(|_| is_decided) {
            unseen(&mut self.unseen, &checks);
        }
        self.is_abandoned(&client.earlier);
    }

    /// The window that a standing is of: it ends at most a reply's delay, less than its length,
    /// before the reset time that the worker knows.
    fn window(&self, standing: &Standing) -> u64 {
        let window_s = u64::from(standing.counter.window.seconds());
        standing.balance.resets.since(Monotonic::default()).as_secs() / window_s - 1
    }

    fn decided(&mut self, worker: usize, checks: &[Check], decision: &Decision) {
        let (standings, admitted) = match decision {
            Decision::Admit(admission) => (&admission.standings, true),
            Decision::Refuse(refusal) => (&refusal.standings, false),
            Decision::Unavailable(_) => return unseen(&mut self.unseen, checks),
        };
        assert!(standings.is_sorted_by_key(|standing| standing.policy));
        for check in checks {
            let index = self.index_of(&check.counter.key);
            let policy = &self.config.policies[index];
            let standing =
                standings.iter().find(|standing| standing.counter.key == check.counter.key);
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
                *self.outcomes.entry((index, outcome)).or_default() += 1;
            }
        }
    }

    /// A request is decided: the upstream answers it, or redirects it.
    fn goes_on(&mut self, id: u64, client: WorldClient) {
        let Some(admission) = client.exchange.admission() else {
            return self.is_abandoned(&client.earlier);
        };
        let holds = !admission.held.is_empty() || !admission.unsettled.is_empty();
        let (redirects, delay) =
            (self.random.percent(self.setup.redirects), self.random.below(100));
        if redirects {
            self.after(delay, WorldEvent::Redirected(id));
        } else if holds || client.pending.is_some() {
            self.after(delay, WorldEvent::Answered(id));
        } else {
            return;
        }
        self.clients.insert(id, client);
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
                let size = body.len();
                let end = CallEnd::Answered { status: 200, by: AnsweredBy::Store, body, size };
                self.drivers[worker].call_ended(call, &end, now);
            }
            WorldEvent::Failed(worker, call) => {
                self.drivers[worker].call_not_sent(call, &CallFault::TimedOut, now);
            }
            WorldEvent::Answered(id) => self.answered(id, now),
            WorldEvent::Redirected(id) => self.redirect(id, now),
        }
    }

    /// The upstream answers a request, or the stream breaks off.
    fn answered(&mut self, id: u64, now: Monotonic) {
        let mut client = self.clients.remove(&id).unwrap();
        let admission = client.exchange.admission().unwrap().clone();
        let status = self.random.of(&[Some(COUNTED), Some(200), Some(200), None]);
        let driver = &mut self.drivers[client.worker];
        if let Some(status) = status {
            let said = self.random.below(2 * self.setup.cost + 1);
            let cost = (!self.random.percent(20)).then_some(said);
            let response = WorldResponse { status, cost };
            client.exchange.response_begins();
            let refunded = driver.response_headers(&mut client.exchange, &response, true, now);
            assert_eq!(refunded, status != COUNTED && !admission.held.is_empty());
            assert!(client.exchange.is_settled(), "{:?}", client.exchange);
            driver.end(&id, &mut client.exchange, &response, now);
            for held in &admission.held {
                if status != COUNTED {
                    self.costs(held, 0);
                }
            }
            let counted = admission.held.iter().filter(|_| status == COUNTED);
            for held in counted.chain(&admission.unsettled) {
                if let Some(missing) = self.missing(held) {
                    self.costs(held, cost.unwrap_or(missing.cost(held.units.amount)));
                }
            }
        } else {
            driver.end(&id, &mut client.exchange, &(), now);
            self.is_abandoned(&admission);
        }
        self.stream_is_over(id, client);
    }

    /// The stream of a request has ended. Shadow policies may still ask the store about it.
    fn stream_is_over(&mut self, id: u64, client: WorldClient) {
        if client.pending.is_some() {
            self.clients.insert(id, WorldClient { is_over: true, ..client });
        }
    }

    /// What a request costs by the policy of these units if nobody says it. `None`: the policy does
    /// not settle.
    fn missing(&self, held: &Held) -> Option<MissingCost> {
        Some(self.policy_of(&held.counter.key).settle.as_deref()?.missing)
    }

    /// Held units turn out to be so many.
    fn costs(&mut self, held: &Held, cost: u64) {
        let counter = (Arc::clone(&held.counter.key), held.units.window);
        match cost.checked_sub(held.units.amount) {
            Some(more) => *self.charged.entry(counter).or_default() += more,
            None => *self.admitted.get_mut(&counter).unwrap() -= held.units.amount - cost,
        }
    }

    /// Sends the calls that are due, and takes the decisions to their requests.
    fn settle(&mut self, worker: usize) {
        let now = self.time();
        while let Some(message) = self.drivers[worker].next_send(now) {
            let lost = self.random.percent(self.setup.loss);
            self.sent(match message {
                Outgoing::Call(call) if lost => WorldEvent::Failed(worker, call.id),
                Outgoing::Call(call) => WorldEvent::AtStore(worker, call.id, call.body()),
                Outgoing::Fetch(fetch) if lost => WorldEvent::Failed(worker, fetch.id),
                Outgoing::Fetch(fetch) => {
                    WorldEvent::Reply(worker, fetch.id, NO_DIALS.as_bytes().to_vec())
                }
            });
        }
        while let Some((id, decision)) = self.drivers[worker].next_decision() {
            let mut client =
                self.clients.remove(&id).expect("a request is decided once, and not after it left");
            let waited = client.waits();
            let (since, checks) = client.pending.take().expect("it is decided once");
            assert!(
                self.now <= since + TIMEOUT_MS + 10,
                "invariant 2: decided after {} ms",
                self.now - since
            );
            self.decided(worker, &checks, &decision);
            let state = if client.is_over { StreamState::Gone } else { StreamState::Open };
            let resumes = self.drivers[worker].decided(&mut client.exchange, decision, state, now);
            assert_eq!(resumes, waited, "a stream that waits is resumed or answered");
            if waited {
                self.goes_on(id, client);
            } else if !client.is_over {
                self.clients.insert(id, client);
            }
        }
        self.ticking[worker] |= self.drivers[worker].begins_ticks(HostWork::None);
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
        for worker in 0..self.drivers.len() {
            if self.setup.swaps > 0 && self.random.percent(self.setup.swaps) {
                self.swap(worker);
            }
            if self.ticking[worker] && self.now % 10 == worker as u64 % 10 {
                let (now, driver) = (self.time(), &mut self.drivers[worker]);
                driver.tick(now);
                self.ticking[worker] = driver.needs_next_tick(HostWork::None);
                self.take_tallies();
            }
            self.settle(worker);
        }
        for (since, _) in self.clients.values().filter_map(|client| client.pending.as_ref()) {
            assert!(
                self.now <= since + TIMEOUT_MS + 10,
                "invariant 2: stuck for {} ms",
                self.now - since
            );
        }
        self.leases_are_bounded();
    }

    pub(super) fn take_tallies(&mut self) {
        for driver in &mut self.drivers {
            let in_force = Arc::clone(driver.config());
            for (counted, n) in driver.take_tally() {
                let Counted::Requests(policy, outcome) = counted else { continue };
                let policy = self.config.index_from(&in_force, policy).unwrap();
                *self.tallied.entry((policy, outcome)).or_default() += n;
            }
        }
    }

    pub(super) fn run(mut self, ms: u64) -> Self {
        for _ in 0..ms {
            self.step();
        }
        self
    }

    /// All clients that wait leave, and so much time passes without new ones that the drivers have
    /// nothing left to report.
    pub(super) fn drain(mut self) -> Self {
        let waits = |(id, client): (&u64, &WorldClient)| client.waits().then_some(*id);
        for client in self.clients.iter().filter_map(waits).collect::<Vec<_>>() {
            self.leave(client);
        }
        (self.setup.rate, self.setup.redirects, self.setup.swaps) = (0, 0, 0);
        self.run(6_000)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.clients.is_empty() && self.drivers.iter().all(|driver| driver.worker().is_idle())
    }
}

impl WorldClient {
    fn waits(&self) -> bool {
        self.exchange.is_waiting()
    }
}
