//! Invariants 1 to 3 over random histories: several workers, one store, calls that are late or lost, clients
//! that leave. Virtual time, one seed a history.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use super::{CallId, Submitted, Ticket, Worker};
use crate::config::Config;
use crate::decision::{Admission, Decision, Standing};
use crate::evaluate::{Check, Counter};
use crate::time::Monotonic;
use crate::wire::{Grant, Outcome, ReserveReply, ReserveRequest};

const QUOTA: u64 = 40;
const WORKERS: usize = 3;
const TIMEOUT_MS: u64 = 50;

/// splitmix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// What the contract says of the script, in one place and without any of the product's code.
#[derive(Default)]
struct ModelStore(HashMap<(String, u64), u64>);

impl ModelStore {
    fn carry_out(&mut self, request: &ReserveRequest, now_ms: u64) -> ReserveReply {
        for back in &request.returns {
            if now_ms / 1000 / u64::from(back.window_s) == back.window
                && let Some(used) = self.0.get_mut(&(back.key.clone(), back.window))
            {
                *used = used.saturating_sub(back.units);
            }
        }
        let grants = request.reservations.iter().map(|r| {
            let window = now_ms / 1000 / u64::from(r.window_s);
            let used = self.0.entry((r.key.clone(), window)).or_default();
            let left = r.quota.saturating_sub(*used);
            let granted = if left < r.min { 0 } else { r.want.min(left) };
            *used += granted;
            assert!(*used <= r.quota);
            let reset_ms = (window + 1) * u64::from(r.window_s) * 1000 - now_ms;
            Outcome::Granted(Grant { granted, used: *used, quota: r.quota, reset_ms, window })
        });
        ReserveReply { dials: 0, grants: grants.collect() }
    }
}

enum Event {
    AtStore(usize, CallId, Vec<u8>),
    Reply(usize, CallId, Vec<u8>),
    Failed(usize, CallId),
}

struct World {
    random: Random,
    config: Rc<Config>,
    loss: u64,
    store: ModelStore,
    workers: Vec<Worker<u64>>,
    events: BTreeMap<(u64, u64), Event>,
    waiting: HashMap<u64, (usize, Ticket, u64, Vec<Check>)>,
    /// Units by counter and number of the window that granted them.
    admitted: HashMap<(String, u64), u64>,
    serial: u64,
    now: u64,
}

impl World {
    fn new(seed: u64, window: &str, loss: u64) -> Self {
        let text = format!(
            r#"{{"domain":"d","store":{{"cluster":"c","timeout":"{TIMEOUT_MS}ms","on_failure":"deny"}},"policies":[
                {{"name":"a","quota":{QUOTA},"window":"{window}"}},{{"name":"b","quota":{QUOTA},"window":"{window}"}}]}}"#
        );
        let config = Rc::new(Config::parse(text.as_bytes()).unwrap());
        let workers = (0..WORKERS as u64).map(|i| Worker::new(Rc::clone(&config), seed * 8 + i)).collect();
        Self {
            random: Random(seed),
            config,
            loss,
            store: ModelStore::default(),
            workers,
            events: BTreeMap::new(),
            waiting: HashMap::new(),
            admitted: HashMap::new(),
            serial: 0,
            now: 1_000_000,
        }
    }

    fn time(&self) -> Monotonic {
        Monotonic::new(Duration::from_millis(self.now))
    }

    fn later(&mut self, event: Event) {
        let delay = if self.random.percent(5) { self.random.below(200) } else { self.random.below(8) };
        self.serial += 1;
        self.events.insert((self.now + delay, self.serial), event);
    }

    fn checks(&mut self) -> Vec<Check> {
        let policies: &[usize] = [&[0][..], &[1], &[0, 1]][self.random.below(3) as usize];
        let (party, cost) = (self.random.below(2), 1 + self.random.below(3));
        let check = |&policy: &usize| {
            let p = &self.config.policies[policy];
            let key = format!("d:{}:{{ip={party}}}", p.name).into();
            let counter = Counter { key, quota: p.quota, window: p.window };
            Check { policy, counter, cost: NonZeroU64::new(cost).unwrap() }
        };
        policies.iter().map(check).collect()
    }

    /// Books an admission on the windows that granted it. A window ends at most a reply's delay, less than its
    /// length, before the reset time that the worker knows.
    fn admit(&mut self, checks: &[Check], standings: &[Standing]) {
        assert_eq!(checks.len(), standings.len(), "admitted without being counted");
        for (check, standing) in checks.iter().zip(standings) {
            let resets_s = standing.resets.since(Monotonic::default()).as_secs();
            let window = resets_s / u64::from(check.counter.window.seconds()) - 1;
            *self.admitted.entry((check.counter.key.to_string(), window)).or_default() += check.cost.get();
        }
    }

    fn arrive(&mut self) {
        let (worker, checks, id) = (self.random.below(WORKERS as u64) as usize, self.checks(), self.serial);
        self.serial += 1;
        let now = self.time();
        match self.workers[worker].submit(id, checks.clone(), now) {
            Submitted::Waiting(ticket) => {
                self.waiting.insert(id, (worker, ticket, self.now, checks));
            }
            Submitted::Decided(decision) => assert!(!matches!(decision, Decision::Admit(_)), "uncounted"),
            Submitted::Counting => unreachable!("no policy only counts"),
        }
        if self.random.percent(10)
            && let Some(&gone) = self.waiting.keys().min()
        {
            let (worker, ticket, ..) = self.waiting.remove(&gone).unwrap();
            self.workers[worker].cancel(ticket);
        }
    }

    fn happen(&mut self, event: Event) {
        let now = self.time();
        match event {
            Event::AtStore(worker, call, body) => {
                let request: ReserveRequest = serde_json::from_slice(&body).unwrap();
                let reply = serde_json::to_vec(&self.store.carry_out(&request, self.now)).unwrap();
                let lost = self.random.percent(self.loss);
                self.later(if lost {
                    Event::Failed(worker, call)
                } else {
                    Event::Reply(worker, call, reply)
                });
            }
            Event::Reply(worker, call, body) => drop(self.workers[worker].replied(call, &body, now)),
            Event::Failed(worker, call) => drop(self.workers[worker].call_failed(call, now)),
        }
    }

    fn settle(&mut self, worker: usize) {
        let now = self.time();
        while let Some(call) = self.workers[worker].next_call(now) {
            if self.random.percent(self.loss) {
                self.later(Event::Failed(worker, call.id));
            } else {
                self.later(Event::AtStore(worker, call.id, call.body));
            }
        }
        while let Some((id, decision)) = self.workers[worker].next_decision() {
            let (_, _, since, checks) =
                self.waiting.remove(&id).expect("a request is decided once, and not after it left");
            assert!(self.now <= since + TIMEOUT_MS + 10, "decided after {} ms", self.now - since);
            if let Decision::Admit(Admission { standings, .. }) = decision {
                self.admit(&checks, &standings);
            }
        }
    }

    fn run(mut self, ms: u64) -> Self {
        for _ in 0..ms {
            self.now += 1;
            while self.events.first_key_value().is_some_and(|((at, _), _)| *at <= self.now) {
                let (_, event) = self.events.pop_first().unwrap();
                self.happen(event);
            }
            for _ in 0..self.random.below(3) {
                self.arrive();
            }
            for worker in 0..WORKERS {
                if self.now % 10 == worker as u64 {
                    let now = self.time();
                    self.workers[worker].tick(now);
                }
                self.settle(worker);
            }
            for (_, _, since, _) in self.waiting.values() {
                assert!(self.now <= since + TIMEOUT_MS + 10, "stuck for {} ms", self.now - since);
            }
        }
        self
    }

    fn used(&self, counter: &(String, u64)) -> u64 {
        self.store.0.get(counter).copied().unwrap_or_default()
    }
}

#[test]
fn invariant_1_never_over_whatever_is_lost_or_late() {
    for seed in 0..200 {
        let window = ["366d", "1s"][seed as usize % 2];
        let world = World::new(seed, window, [0, 5, 30][seed as usize % 3]).run(2_500);
        for (counter, admitted) in &world.admitted {
            assert!(*admitted <= QUOTA, "seed {seed}: {admitted} of {counter:?}");
        }
    }
}

#[test]
fn invariant_3_nothing_is_admitted_that_the_store_has_not_counted() {
    for seed in 0..100 {
        let world = World::new(seed, "1s", [0, 5, 30][seed as usize % 3]).run(3_500);
        assert!(!world.admitted.is_empty());
        for (counter, admitted) in &world.admitted {
            assert!(*admitted <= world.used(counter), "seed {seed}: {admitted} of {counter:?}");
        }
    }
}

#[test]
fn invariant_3_what_is_counted_is_admitted_or_returned_while_nothing_is_lost() {
    for seed in 0..50 {
        // Ten windows a second would hide units that are kept: one window, and time for returns at its end.
        let mut world = World::new(seed, "366d", 0).run(1_500);
        for (worker, ticket, ..) in std::mem::take(&mut world.waiting).into_values() {
            world.workers[worker].cancel(ticket);
        }
        world = world.drain();
        for (counter, admitted) in &world.admitted {
            assert_eq!(*admitted, world.used(counter), "seed {seed}: {counter:?}");
            assert!(
                *admitted > QUOTA - 3,
                "seed {seed}: a demanded quota is used, but for what no cost fits"
            );
        }
    }
}

impl World {
    /// Lets half a second pass without new requests.
    fn drain(mut self) -> Self {
        for _ in 0..500 {
            self.now += 1;
            while self.events.first_key_value().is_some_and(|((at, _), _)| *at <= self.now) {
                let (_, event) = self.events.pop_first().unwrap();
                self.happen(event);
            }
            for worker in 0..WORKERS {
                let now = self.time();
                self.workers[worker].tick(now);
                self.settle(worker);
            }
        }
        self
    }
}
