//! All histories of two workers that share the slots of one counter: every order of arrivals, ends
//! and messages, with messages and answers lost or late, workers that stand still, and crashes.

use std::collections::{BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::store::ModelStore;
use super::*;
use crate::decision::HeldSlots;

const KEY: &str = "d:a:{x}";
/// When something may happen, in milliseconds.
const ONE: &[u64] = &[1_000];
/// A message is lost, and the next one is due.
const SHORT: &[u64] = &[1_000, 1_060, 1_400];
/// Heartbeats are due. A worker that does not notice any of these lets its field expire.
const LONG: &[u64] = &[1_000, 4_200, 7_400, 10_600];
/// An answer comes so late that the field has expired.
const LATE: &[u64] = &[1_000, 10_600];
/// The most states of a search.
const MOST: usize = 60_000;

/// What may happen in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Budget {
    requests: u8,
    /// Messages or answers that are lost or late.
    faults: u8,
    crashes: u8,
    /// Ticks of a worker that do not come.
    pauses: u8,
    departures: u8,
    /// Messages and answers arrive at once, before anything else happens.
    is_prompt: bool,
}

#[derive(Clone, Debug)]
struct Flight {
    id: CallId,
    request: ReserveRequest,
    reply: Option<ReserveReply>,
    /// Whether the worker has given it up.
    is_given_up: bool,
}

#[derive(Clone, Debug)]
struct Node {
    worker: Worker<u8>,
    /// With which its name in the store ends.
    seed: u64,
    flights: Vec<Flight>,
    waiting: Vec<(u8, Ticket)>,
    /// The slots of each request that runs, and whether they are debt.
    running: Vec<(HeldSlots, bool)>,
}

#[derive(Clone, Debug)]
struct World {
    moments: &'static [u64],
    moment: usize,
    budget: Budget,
    has_begun: bool,
    store: ModelStore,
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive(usize),
    End(usize, usize),
    Leave(usize),
    /// A message reaches the store.
    Deliver(usize, usize),
    /// Its answer reaches the worker.
    Answer(usize, usize),
    /// The worker hears of no answer. The message may reach the store later.
    GiveUp(usize, usize),
    Crash(usize),
    /// The next moment comes, and these workers do not notice.
    Pass {
        asleep: [bool; 2],
    },
}

impl World {
    fn new(config: &Arc<Config>, moments: &'static [u64], budget: Budget) -> Self {
        let nodes = (1..=2).map(|seed| Node::new(config, seed)).collect();
        Self { moments, moment: 0, budget, has_begun: false, store: ModelStore::default(), nodes }
    }

    fn now(&self) -> u64 {
        self.moments[self.moment]
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.budget.is_prompt {
            let under_way = self.nodes.iter().position(|node| !node.flights.is_empty());
            if let Some(i) = under_way {
                let is_answered = self.nodes[i].flights[0].reply.is_some();
                return vec![if is_answered { Step::Answer(i, 0) } else { Step::Deliver(i, 0) }];
            }
        }
        for (i, node) in self.nodes.iter().enumerate() {
            // Workers are interchangeable: the first request arrives at the first one.
            if self.budget.requests > 0 && (i == 0 || self.has_begun) {
                steps.push(Step::Arrive(i));
            }
            if !node.running.is_empty() {
                steps.extend((0..node.running.len()).map(|which| Step::End(i, which)));
            }
            if self.budget.departures > 0 && !node.waiting.is_empty() {
                steps.push(Step::Leave(i));
            }
            for (j, flight) in node.flights.iter().enumerate() {
                steps.push(match flight.reply {
                    None => Step::Deliver(i, j),
                    Some(_) => Step::Answer(i, j),
                });
                if self.budget.faults > 0 && !flight.is_given_up {
                    steps.push(Step::GiveUp(i, j));
                }
            }
            if self.budget.crashes > 0 {
                steps.push(Step::Crash(i));
            }
        }
        if self.moment + 1 < self.moments.len() {
            for asleep in [[false, false], [true, false], [false, true]] {
                if self.budget.pauses > 0 || asleep == [false; 2] {
                    steps.push(Step::Pass { asleep });
                }
            }
        }
        steps
    }

    fn take(&mut self, step: Step, config: &Arc<Config>) {
        let now = at(self.now());
        match step {
            Step::Arrive(i) => {
                self.budget.requests -= 1;
                self.has_begun = true;
                let who = self.budget.requests;
                self.nodes[i].arrive(who, config, now);
            }
            Step::End(i, which) => {
                let (slots, _) = self.nodes[i].running.remove(which);
                self.nodes[i].worker.free(slots, now);
            }
            Step::Leave(i) => {
                self.budget.departures -= 1;
                let (_, ticket) = self.nodes[i].waiting.remove(0);
                self.nodes[i].worker.cancel(ticket, now);
            }
            Step::Deliver(i, j) => {
                let flight = &mut self.nodes[i].flights[j];
                let grants = flight.request.reservations.iter();
                let ms = self.moments[self.moment];
                let grants = grants.map(|one| Ok(self.store.reserve(one, ms))).collect();
                flight.reply = Some(ReserveReply { dials: 0, grants });
                if flight.is_given_up {
                    self.nodes[i].flights.remove(j);
                }
            }
            Step::Answer(i, j) => {
                let Flight { id, reply, .. } = self.nodes[i].flights.remove(j);
                self.nodes[i].worker.carried_out(id, reply.unwrap(), now);
            }
            Step::GiveUp(i, j) => {
                self.budget.faults -= 1;
                let flight = &mut self.nodes[i].flights[j];
                flight.is_given_up = true;
                let (id, is_lost) = (flight.id, flight.reply.is_some());
                if is_lost {
                    self.nodes[i].flights.remove(j);
                }
                self.nodes[i].worker.call_failed(id, now);
            }
            Step::Crash(i) => {
                self.budget.crashes -= 1;
                let seed = self.nodes[i].seed + 2;
                self.nodes[i] = Node::new(config, seed);
            }
            Step::Pass { asleep } => {
                self.budget.pauses -= u8::from(asleep != [false; 2]);
                self.moment += 1;
                self.note_debt();
                let now = at(self.now());
                for (node, asleep) in self.nodes.iter_mut().zip(asleep) {
                    if !asleep {
                        node.worker.tick(now);
                    }
                }
            }
        }
        let now = at(self.now());
        self.nodes.iter_mut().for_each(|node| node.pump(now));
    }

    /// What runs while its worker has no field is debt from then on.
    fn note_debt(&mut self) {
        let now = self.now();
        for node in &mut self.nodes {
            if self.store.held_by(KEY, &node.name_ends(), now).is_none() {
                node.running.iter_mut().for_each(|(_, is_debt)| *is_debt = true);
            }
        }
    }

    fn check(&self, limit: u64) -> Result<(), String> {
        let now = self.now();
        let counted: usize =
            self.nodes.iter().flat_map(|node| &node.running).filter(|(_, debt)| !debt).count();
        if counted as u64 > limit {
            return Err(format!("{counted} run at once"));
        }
        for node in &self.nodes {
            let live = node.running.len() as u64;
            match self.store.held_by(KEY, &node.name_ends(), now) {
                Some(held) if live > held => {
                    return Err(format!("{live} run, and the store knows of {held}"));
                }
                None if node.running.iter().any(|(_, is_debt)| !is_debt) => {
                    return Err("a request was admitted without the store".to_owned());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Everything ends. Returns whether nothing is left.
    fn ends_clean(mut self) -> bool {
        let mut now = self.now();
        for round in 0..60 {
            for node in &mut self.nodes {
                for flight in std::mem::take(&mut node.flights) {
                    let grants = flight.request.reservations.iter();
                    let grants = grants.map(|one| Ok(self.store.reserve(one, now))).collect();
                    let reply = flight.reply.unwrap_or(ReserveReply { dials: 0, grants });
                    if !flight.is_given_up {
                        node.worker.carried_out(flight.id, reply, at(now));
                    }
                }
                for (slots, _) in std::mem::take(&mut node.running) {
                    node.worker.free(slots, at(now));
                }
                if round % 2 == 0 {
                    node.worker.tick(at(now));
                }
                node.pump(at(now));
            }
            now += 250;
            // Fields that nobody renews expire. Workers that live must not need that.
            let holds = |node: &Node| self.store.held_by(KEY, &node.name_ends(), now);
            if round == 8 && self.nodes.iter().any(|node| holds(node).unwrap_or_default() > 0) {
                return false;
            }
        }
        self.store.held(KEY, now) == 0
            && self.nodes.iter().all(|node| {
                node.worker.slots.is_empty() && node.waiting.is_empty() && node.running.is_empty()
            })
    }

    /// Serial numbers count by their order alone.
    fn fingerprint(&self) -> u64 {
        const NAMES: [&str; 4] = ["Ticket(", "CallId(", "serial: ", "asked: "];
        let state = |node: &Node| {
            let Node { worker, flights, waiting, running, .. } = node;
            format!("{:?}", (&worker.slots, &worker.calls, flights, waiting, running))
        };
        let nodes: Vec<String> = self.nodes.iter().map(state).collect();
        let text = format!("{nodes:?}{:?}{:?}{}", self.store, self.budget, self.moment);
        let digits = |from: usize| {
            let rest = &text[from..];
            &rest[..rest.bytes().take_while(u8::is_ascii_digit).count()]
        };
        let ends = |name: &str| {
            text.match_indices(name).map(|(from, _)| from + name.len()).collect::<Vec<_>>()
        };
        let positions: BTreeSet<usize> = NAMES.iter().flat_map(|name| ends(name)).collect();
        let number = |from: usize| digits(from).parse::<u64>().unwrap_or(0);
        let mut numbers: Vec<u64> = positions.iter().map(|from| number(*from)).collect();
        numbers.push(0);
        numbers.sort_unstable();
        numbers.dedup();
        let mut hasher = DefaultHasher::new();
        let mut at = 0;
        for from in positions {
            text[at..from].hash(&mut hasher);
            numbers.binary_search(&number(from)).hash(&mut hasher);
            at = from + digits(from).len();
        }
        text[at..].hash(&mut hasher);
        hasher.finish()
    }
}

impl Node {
    fn new(config: &Arc<Config>, seed: u64) -> Self {
        let worker = Worker::new(Arc::clone(config), seed);
        Self { worker, seed, flights: Vec::new(), waiting: Vec::new(), running: Vec::new() }
    }

    fn name_ends(&self) -> String {
        format!(".{:x}", self.seed)
    }

    fn arrive(&mut self, who: u8, config: &Config, now: Monotonic) {
        match self.worker.submit(who, checks_of(config, &[0], "x", 1), now) {
            Submitted::Waiting(ticket) => self.waiting.push((who, ticket)),
            Submitted::Decided(decision) => self.decided(decision),
            Submitted::Counting(_) => panic!("no shadow policy"),
        }
    }

    fn decided(&mut self, decision: Decision) {
        if let Decision::Admit(admission) = decision {
            self.running.push((admission.slots, false));
        }
    }

    /// What is decided is carried out, and calls leave.
    fn pump(&mut self, now: Monotonic) {
        while let Some((who, decision)) = self.worker.next_decision() {
            self.waiting.retain(|(waiting, _)| *waiting != who);
            self.decided(decision);
        }
        while let Some(OutgoingCall { id, request, .. }) = self.worker.next_call(now) {
            self.flights.push(Flight { id, request, reply: None, is_given_up: false });
        }
    }
}

/// Searches all histories, depth first.
fn search(limit: u64, max_wait: &str, moments: &'static [u64], budget: Budget) -> usize {
    let text = format!(
        r#"{{"domain":"d","store":{{"cluster":"c","timeout":"50ms","on_failure":"deny"}},"policies":[
            {{"name":"a","partition_by":[],"in_flight":{limit},"max_wait":"{max_wait}"}}]}}"#
    );
    let config = Arc::new(Config::parse(text.as_bytes()).unwrap());
    let begun = std::time::Instant::now();
    let mut seen = HashSet::new();
    let mut open = vec![(World::new(&config, moments, budget), Vec::new())];
    while let Some((world, way)) = open.pop() {
        for step in world.steps() {
            let mut next = world.clone();
            next.take(step, &config);
            let way = [&way[..], &[step]].concat();
            if let Err(why) = next.check(limit) {
                panic!("{why} after {way:?}");
            }
            if seen.insert(next.fingerprint()) {
                assert!(seen.len() < MOST, "the world is too large to search");
                let is_quiet = next.nodes.iter().all(|node| node.flights.is_empty());
                if is_quiet && next.moment + 1 == moments.len() {
                    assert!(next.clone().ends_clean(), "a slot leaks after {way:?}");
                }
                open.push((next, way));
            }
        }
    }
    println!("limit {limit}, waits {max_wait}: {} states, {:?}", seen.len(), begun.elapsed());
    seen.len()
}

#[test]
fn all_histories_of_two_workers_keep_the_limit_and_leak_nothing() {
    let none =
        Budget { requests: 2, faults: 0, crashes: 0, pauses: 0, departures: 0, is_prompt: false };
    for (limit, max_wait, moments, budget) in [
        (1, "0ms", LATE, Budget { pauses: 1, ..none }),
        (1, "0ms", SHORT, Budget { faults: 1, ..none }),
        (1, "5s", SHORT, Budget { faults: 1, ..none }),
        (1, "5s", SHORT, Budget { departures: 1, ..none }),
        (1, "0ms", ONE, Budget { crashes: 1, faults: 1, ..none }),
        (2, "0ms", ONE, Budget { requests: 3, faults: 1, ..none }),
        (1, "0ms", LONG, Budget { pauses: 3, is_prompt: true, requests: 3, ..none }),
        (1, "5s", LONG, Budget { pauses: 3, is_prompt: true, ..none }),
        (1, "0ms", LONG, Budget { crashes: 1, is_prompt: true, ..none }),
    ] {
        assert!(search(limit, max_wait, moments, budget) > 100);
    }
}
