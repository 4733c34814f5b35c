//! Random histories of three workers and a store: lost and late messages, clients that leave,
//! pauses, crashes, clocks that run apart, a store that forgets, two policies, tiers, and a
//! document that lowers a limit.
//!
//! What a worker's requests hold beyond its field in the store is debt. Debt comes only from a
//! store that forgot, and from a pause that the field did not outlive. It ends with the first
//! message that leaves after that.

use std::collections::BTreeMap;

use super::store::ModelStore;
use super::*;
use crate::decision::HeldSlots;

const LIMIT: u64 = 4;
/// The limit of the document that replaces the first one.
const LOWERED: u64 = 3;
const KEYS: [&str; 2] = ["d:a:{x}", "d:g:{x}"];
const TIMEOUT: u64 = 50;
/// A worker whose messages arrive frees what its requests no longer hold within this.
const FREED_WITHIN: u64 = 100;
/// Longer than a worker's slots last.
const LONG_PAUSE: u64 = 12_000;

struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

/// A worker on its machine.
struct Machine {
    worker: Worker<u64>,
    /// Its seed, with which its name in the store ends.
    seed: u64,
    /// Since when the store knows less of each counter than runs here, unless it was told since.
    unknown_since: [Option<u64>; 2],
    /// Since when none of its requests holds or wants slots of each counter.
    idle_since: [Option<u64>; 2],
    /// Its clock runs by this many parts in a thousand.
    rate: u64,
    paused_until: u64,
    /// What arrives: when, the call, and the reply if it was not lost.
    arrives: Vec<(u64, CallId, Option<ReserveReply>)>,
}

/// A request that runs.
struct Running {
    machine: usize,
    wants: Wants,
    slots: HeldSlots,
    ends: u64,
    /// Whether others may have its slots of each counter.
    is_debt: [bool; 2],
}

/// What a request wants.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Wants {
    cost: u64,
    /// Its limit of each counter. 0: it needs none.
    limits: [u64; 2],
}

/// A call on its way to the store.
struct Flight {
    arrives: u64,
    machine: usize,
    id: CallId,
    request: ReserveRequest,
    sent: u64,
    /// Whether its answer is lost.
    is_lost: bool,
}

/// A request that waits.
struct Pending {
    machine: usize,
    ticket: Ticket,
    since: u64,
    wants: Wants,
}

struct World {
    random: Random,
    config: Arc<Config>,
    /// The document that replaces it.
    next_config: Config,
    /// Nothing is lost and nobody stands still, so `on_failure: allow` admits nobody.
    is_healthy: bool,
    max_wait: u64,
    machines: Vec<Machine>,
    store: ModelStore,
    calls: Vec<Flight>,
    running: Vec<Running>,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    now: u64,
    admitted: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let max_wait = [0, 300, 2_000][random.below(3) as usize];
        let is_healthy = random.one_in(4);
        let on_failure = if is_healthy { "allow" } else { "deny" };
        let text = |policies: &str| {
            let text = format!(
                r#"{{"domain":"d","live":true,"store":{{"cluster":"c","timeout":"{TIMEOUT}ms",
                    "on_failure":"{on_failure}"}},"policies":[{policies}]}}"#
            );
            Config::parse(text.as_bytes()).unwrap()
        };
        let a = |limit| {
            let name = r#""name":"a","partition_by":[]"#;
            format!(r#"{{{name},"in_flight":{limit},"max_wait":"{max_wait}ms"}}"#)
        };
        let g = r#"{"name":"g","partition_by":[],"in_flight":5}"#;
        let config = Arc::new(text(&format!("{},{g}", a(LIMIT))));
        let next_config = text(&format!("{g},{}", a(LOWERED)));
        let machine = |i: u64| {
            let seed = seed * 10 + i;
            Machine {
                worker: Worker::new(Arc::clone(&config), seed),
                seed,
                unknown_since: [None; 2],
                idle_since: [None; 2],
                rate: 980 + 20 * i,
                paused_until: 0,
                arrives: Vec::new(),
            }
        };
        let machines = (0..3).map(machine).collect();
        Self {
            random,
            max_wait,
            is_healthy,
            machines,
            config,
            next_config,
            store: ModelStore::default(),
            calls: Vec::new(),
            running: Vec::new(),
            pending: BTreeMap::new(),
            next: 0,
            now: 1_000,
            admitted: 0,
        }
    }

    fn clock(&self, machine: usize) -> Monotonic {
        at(self.now * self.machines[machine].rate / 1_000)
    }

    fn is_paused(&self, machine: usize) -> bool {
        self.machines[machine].paused_until > self.now
    }

    /// Five milliseconds pass. `quiet`: nothing new happens, and nothing is lost.
    fn step(&mut self, quiet: bool) {
        self.now += 5;
        self.carry_out();
        if !quiet {
            self.disturb();
        }
        for machine in 0..self.machines.len() {
            if self.is_paused(machine) {
                continue;
            }
            self.receive(machine);
            if !quiet && self.random.one_in(15) {
                self.arrive(machine);
            }
            if !quiet && self.random.one_in(200) {
                self.leave(machine);
            }
            self.end(machine);
            if self.now.is_multiple_of(10) {
                let now = self.clock(machine);
                self.machines[machine].worker.tick(now);
            }
            self.send(machine, quiet);
            self.decide(machine);
        }
        self.check();
    }

    /// Pauses, crashes, another document, and a store that starts empty.
    fn disturb(&mut self) {
        let machine = self.random.below(3) as usize;
        if !self.is_healthy && self.random.one_in(400) && !self.is_paused(machine) {
            let is_long = self.random.one_in(4);
            let length = if is_long { LONG_PAUSE } else { self.random.below(3_000) };
            self.machines[machine].paused_until = self.now + length;
        }
        if self.random.one_in(1_500) {
            let seed = self.random.below(1 << 40);
            let config = Arc::clone(&self.config);
            let old = &mut self.machines[machine];
            let (worker, arrives) = (Worker::new(config, seed), Vec::new());
            let (unknown_since, idle_since) = ([None; 2], [None; 2]);
            *old = Machine { worker, seed, arrives, unknown_since, idle_since, ..*old };
            self.calls.retain(|flight| flight.machine != machine);
            self.running.retain(|running| running.machine != machine);
            self.pending.retain(|_, pending| pending.machine != machine);
        }
        if self.random.one_in(1_000) && !self.is_paused(machine) {
            let (next, now) = (self.next_config.clone(), self.clock(machine));
            self.machines[machine].worker.swap(next, now);
        }
        if !self.is_healthy && self.random.one_in(2_000) {
            self.store.forget();
            self.machines.iter_mut().for_each(|it| it.unknown_since = [Some(self.now); 2]);
        }
    }

    fn carry_out(&mut self) {
        let (due, rest) =
            std::mem::take(&mut self.calls).into_iter().partition(|it| it.arrives <= self.now);
        self.calls = rest;
        let due: Vec<Flight> = due;
        for Flight { machine, id, request, sent, is_lost, .. } in due {
            for said in &request.reservations {
                let counter = KEYS.iter().position(|key| **key == *said.key).unwrap();
                let of = &mut self.machines[machine].unknown_since[counter];
                *of = of.filter(|since| *since > sent);
            }
            let grants = request.reservations.iter();
            let grants = grants.map(|one| Ok(self.store.reserve(one, self.now))).collect();
            if !is_lost {
                let when = self.now + 1 + self.random.below(10);
                let reply = Some(ReserveReply { dials: 0, grants });
                self.machines[machine].arrives.push((when, id, reply));
            }
        }
    }

    fn send(&mut self, machine: usize, quiet: bool) {
        let now = self.clock(machine);
        while let Some(call) = self.machines[machine].worker.next_call(now) {
            let is_safe = quiet || self.is_healthy;
            let mut fates = || if is_safe { 99 } else { self.random.below(20) };
            let (to, back) = (fates(), fates());
            let gives_up = self.now + TIMEOUT + 1;
            self.machines[machine].arrives.push((gives_up, call.id, None));
            // Lost on its way, very late, or on time.
            let delay = match to {
                0 => continue,
                1 => 60 + self.random.below(3_000),
                _ => 1 + self.random.below(10),
            };
            let arrives = self.now + delay;
            let OutgoingCall { id, request, .. } = call;
            let (sent, is_lost) = (self.now, back == 0);
            self.calls.push(Flight { arrives, machine, id, request, sent, is_lost });
        }
    }

    fn receive(&mut self, machine: usize) {
        let clock = self.clock(machine);
        let Machine { arrives, worker, .. } = &mut self.machines[machine];
        arrives.sort_by_key(|(when, id, _)| (*when, *id));
        while arrives.first().is_some_and(|(when, ..)| *when <= self.now) {
            match arrives.remove(0) {
                (_, id, Some(reply)) => worker.carried_out(id, reply, clock),
                (_, id, None) => worker.call_failed(id, clock),
            }
        }
    }

    fn arrive(&mut self, machine: usize) {
        let cost = 1 + self.random.below(4) / 3;
        let config = Arc::clone(self.machines[machine].worker.config());
        let a = config.policies.iter().position(|policy| &*policy.name == "a").unwrap();
        let mut policies = [vec![a], vec![a], vec![1 - a], vec![0, 1]];
        let policies = std::mem::take(&mut policies[self.random.below(4) as usize]);
        let mut checks = checks_of(&config, &policies, "x", cost);
        let mut limits = [0; 2];
        for check in &mut checks {
            let counter = KEYS.iter().position(|key| **key == *check.counter.key).unwrap();
            // A tier has a limit of its own.
            if counter == 0 && self.random.one_in(4) {
                check.counter.quota = 2;
            }
            limits[counter] = check.counter.quota;
        }
        let wants = Wants { cost, limits };
        self.next += 1;
        let (who, now) = (self.next, self.clock(machine));
        match self.machines[machine].worker.submit(who, checks, now) {
            Submitted::Waiting(ticket) => {
                let pending = Pending { machine, ticket, since: self.now, wants };
                self.pending.insert(who, pending);
            }
            Submitted::Decided(Decision::Admit(admission)) => self.run(machine, wants, admission),
            Submitted::Decided(_) => {}
            Submitted::Counting(_) => panic!("no shadow policy"),
        }
    }

    fn leave(&mut self, machine: usize) {
        let own = self.pending.iter().find(|(_, pending)| pending.machine == machine);
        if let Some((who, pending)) = own.map(|(who, pending)| (*who, pending.ticket)) {
            self.pending.remove(&who);
            let now = self.clock(machine);
            self.machines[machine].worker.cancel(pending, now);
        }
    }

    fn end(&mut self, machine: usize) {
        let clock = self.clock(machine);
        let worker = &mut self.machines[machine].worker;
        for running in &mut self.running {
            if running.machine == machine && running.ends <= self.now {
                worker.free(running.slots.take(), clock);
            }
        }
        self.running.retain(|running| running.machine != machine || running.ends > self.now);
    }

    fn decide(&mut self, machine: usize) {
        let mut decided = Vec::new();
        while let Some((who, decision)) = self.machines[machine].worker.next_decision() {
            // One whose client has left is not decided.
            let pending = self.pending.remove(&who).unwrap();
            decided.push((who, pending, decision));
        }
        for (who, pending, decision) in decided {
            if let Decision::Admit(admission) = decision {
                let mut all = self.pending.iter();
                // One with two policies may wait for the other one.
                let earlier = all.find(|(other, of)| {
                    let is_alike =
                        of.wants.limits == pending.wants.limits && of.wants.limits[1] == 0;
                    **other < who && of.machine == machine && is_alike
                });
                assert!(self.max_wait == 0 || earlier.is_none(), "{who} overtook another one");
                self.run(machine, pending.wants, admission);
            }
        }
    }

    fn run(&mut self, machine: usize, wants: Wants, admission: Admission) {
        assert!(!admission.slots.is_empty());
        assert_eq!(admission.uncounted, None);
        self.admitted += 1;
        let length = if self.random.one_in(20) { 8_000 } else { self.random.below(400) };
        let (slots, ends) = (admission.slots, self.now + length);
        self.running.push(Running { machine, wants, slots, ends, is_debt: [false; 2] });
    }

    fn check(&mut self) {
        for (machine, of) in self.machines.iter_mut().enumerate() {
            let name_ends = format!(".{:x}", of.seed);
            for (counter, key) in KEYS.iter().enumerate() {
                let is_here =
                    |it: &&mut Running| it.machine == machine && it.wants.limits[counter] > 0;
                let live: u64 =
                    self.running.iter_mut().filter(is_here).map(|it| it.wants.cost).sum();
                let held = self.store.held_by(key, &name_ends, self.now);
                let wants = |it: &Pending| it.machine == machine && it.wants.limits[counter] > 0;
                if live > 0 || self.pending.values().any(wants) {
                    of.idle_since[counter] = None;
                } else {
                    let idle = self.now - *of.idle_since[counter].get_or_insert(self.now);
                    let may_hold = !self.is_healthy || idle < FREED_WITHIN;
                    assert!(may_hold || held.unwrap_or_default() == 0, "{held:?} after {idle} ms");
                }
                // A field is deleted only if its worker was silent for 9 s, or the store forgot.
                let unknown = &mut of.unknown_since[counter];
                if held.is_none() {
                    unknown.get_or_insert(self.now);
                }
                if unknown.is_some() {
                    let here = self.running.iter_mut().filter(is_here);
                    here.for_each(|running| running.is_debt[counter] = true);
                } else {
                    let held = held.unwrap_or_default();
                    assert!(live <= held, "{live} of {machine} run, and the store knows of {held}");
                }
                if live == 0 && held.is_none() {
                    continue;
                }
                // Who runs for its while says so at least every 3 s, and again if that was lost.
                let silent = self.now.saturating_sub(unknown.unwrap_or(self.now));
                let is_awake = of.paused_until + 3_500 < self.now;
                assert!(live == 0 || !is_awake || silent < 5_000, "unknown for {silent} ms");
            }
        }
        // Of those with a limit, or a lower one, no more run than this limit: the last of them was
        // granted its slots when no more ran.
        for (counter, limit) in [(0, 2), (0, LOWERED), (0, LIMIT), (1, 5)] {
            let counts = |it: &&Running| {
                !it.is_debt[counter] && (1..=limit).contains(&it.wants.limits[counter])
            };
            let live: u64 = self.running.iter().filter(counts).map(|it| it.wants.cost).sum();
            assert!(live <= limit, "{live} units of {limit} run at once at {}", self.now);
        }
        for (who, pending) in &self.pending {
            let waited = self.now.saturating_sub(pending.since);
            let paused = self.machines[pending.machine].paused_until;
            let bound = self.max_wait + TIMEOUT + 60;
            assert!(
                waited <= bound || self.now < paused + bound,
                "{who} has waited for {waited} ms"
            );
        }
    }
}

#[test]
fn random_histories_never_exceed_the_limit_and_leak_nothing() {
    let mut admitted = 0;
    for seed in 1..=120 {
        let mut world = World::new(seed);
        for _ in 0..4_000 {
            world.step(false);
        }
        admitted += world.admitted;
        // All ends, and after a while nothing is left.
        for _ in 0..5_000 {
            world.step(true);
        }
        for key in KEYS {
            assert_eq!(world.store.held(key, world.now), 0, "seed {seed}");
        }
        assert!(world.pending.is_empty() && world.running.is_empty(), "seed {seed}");
        for machine in &world.machines {
            assert!(machine.worker.slots.is_empty(), "seed {seed}");
        }
        let config = Arc::clone(world.machines[0].worker.config());
        let a = config.policies.iter().position(|policy| &*policy.name == "a").unwrap();
        let limit = config.policies[a].quota;
        for _ in 0..limit {
            let checks = checks_of(&config, &[a], "x", 1);
            let now = world.clock(0);
            world.next += 1;
            let who = world.next;
            if let Submitted::Waiting(ticket) = world.machines[0].worker.submit(who, checks, now) {
                let (since, wants) = (world.now, Wants { cost: 1, limits: [limit, 0] });
                world.pending.insert(who, Pending { machine: 0, ticket, since, wants });
            }
        }
        let before = world.admitted;
        for _ in 0..12 {
            world.step(true);
        }
        assert_eq!(world.admitted - before, limit, "seed {seed}: all slots are there");
    }
    assert!(admitted > 120 * 60, "only {admitted} were admitted");
}
