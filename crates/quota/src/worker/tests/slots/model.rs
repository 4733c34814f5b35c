//! Random histories of three workers and a store: lost and late messages, clients that leave,
//! pauses, crashes, and clocks that run apart.

use std::collections::BTreeMap;

use super::store::ModelStore;
use super::*;
use crate::decision::HeldSlots;

const LIMIT: u64 = 4;
const KEY: &str = "d:a:{x}";
const TIMEOUT: u64 = 50;
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
    /// Its clock runs by this many parts in a thousand.
    rate: u64,
    paused_until: u64,
    /// What arrives: when, the call, and the reply if it was not lost.
    arrives: Vec<(u64, CallId, Option<ReserveReply>)>,
}

/// A request that runs.
struct Running {
    machine: usize,
    cost: u64,
    slots: HeldSlots,
    ends: u64,
    /// Whether its machine stood still for so long that others may have its slots.
    is_debt: bool,
}

/// A request that waits.
struct Pending {
    machine: usize,
    ticket: Ticket,
    since: u64,
    cost: u64,
}

struct World {
    random: Random,
    config: Arc<Config>,
    max_wait: u64,
    machines: Vec<Machine>,
    store: ModelStore,
    /// Calls on their way to the store: when they arrive, from which machine, and whether the
    /// answer is lost.
    calls: Vec<(u64, usize, CallId, ReserveRequest, bool)>,
    running: Vec<Running>,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    now: u64,
    admitted: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let max_wait = [0, 300][random.below(2) as usize];
        let text = format!(
            r#"{{"domain":"d","store":{{"cluster":"c","timeout":"{TIMEOUT}ms","on_failure":"deny"}},"policies":[
                {{"name":"a","partition_by":[],"in_flight":{LIMIT},"max_wait":"{max_wait}ms"}}]}}"#
        );
        let config = Arc::new(Config::parse(text.as_bytes()).unwrap());
        let machine = |i: u64| Machine {
            worker: Worker::new(Arc::clone(&config), seed * 10 + i),
            rate: 980 + 20 * i,
            paused_until: 0,
            arrives: Vec::new(),
        };
        let machines = (0..3).map(machine).collect();
        Self {
            random,
            max_wait,
            machines,
            config,
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

    /// Pauses and crashes.
    fn disturb(&mut self) {
        let machine = self.random.below(3) as usize;
        if self.random.one_in(400) && !self.is_paused(machine) {
            let length = if self.random.one_in(4) { LONG_PAUSE } else { self.random.below(3_000) };
            self.machines[machine].paused_until = self.now + length;
            if length == LONG_PAUSE {
                let own = self.running.iter_mut().filter(|it| it.machine == machine);
                own.for_each(|running| running.is_debt = true);
            }
        }
        if self.random.one_in(1_500) {
            let seed = self.random.below(u64::MAX);
            let config = Arc::clone(&self.config);
            let old = &mut self.machines[machine];
            *old = Machine { worker: Worker::new(config, seed), arrives: Vec::new(), ..*old };
            self.calls.retain(|(_, of, ..)| *of != machine);
            self.running.retain(|running| running.machine != machine);
            self.pending.retain(|_, pending| pending.machine != machine);
        }
    }

    fn carry_out(&mut self) {
        let (due, rest) =
            std::mem::take(&mut self.calls).into_iter().partition(|it| it.0 <= self.now);
        self.calls = rest;
        let due: Vec<(u64, usize, CallId, ReserveRequest, bool)> = due;
        for (_, machine, id, request, is_lost) in due {
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
            let mut fates = || if quiet { 99 } else { self.random.below(20) };
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
            self.calls.push((arrives, machine, call.id, call.request, back == 0));
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
        let checks = checks_of(&self.config, &[0], "x", cost);
        self.next += 1;
        let (who, now) = (self.next, self.clock(machine));
        match self.machines[machine].worker.submit(who, checks, now) {
            Submitted::Waiting(ticket) => {
                let pending = Pending { machine, ticket, since: self.now, cost };
                self.pending.insert(who, pending);
            }
            Submitted::Decided(Decision::Admit(admission)) => self.run(machine, cost, admission),
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
                let earlier = all.find(|(other, of)| **other < who && of.machine == machine);
                assert!(self.max_wait == 0 || earlier.is_none(), "{who} overtook another one");
                self.run(machine, pending.cost, admission);
            }
        }
    }

    fn run(&mut self, machine: usize, cost: u64, admission: Admission) {
        assert!(!admission.slots.is_empty());
        self.admitted += 1;
        let length = if self.random.one_in(20) { 8_000 } else { self.random.below(400) };
        let (slots, ends) = (admission.slots, self.now + length);
        self.running.push(Running { machine, cost, slots, ends, is_debt: false });
    }

    fn check(&self) {
        let counts =
            |it: &&Running| !it.is_debt && self.machines[it.machine].paused_until <= self.now;
        let live: u64 = self.running.iter().filter(counts).map(|running| running.cost).sum();
        assert!(live <= LIMIT, "{live} units run at once at {}", self.now);
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
            if world.random.one_in(3_000) {
                // Held slots are said again within a heartbeat; until then nothing new may run.
                let all_quiet = world.running.is_empty() && world.pending.is_empty();
                if all_quiet {
                    world.store.forget();
                }
            }
        }
        admitted += world.admitted;
        // All ends, and after a while nothing is left.
        for _ in 0..5_000 {
            world.step(true);
        }
        assert_eq!(world.store.held(KEY, world.now), 0, "seed {seed}");
        assert!(world.pending.is_empty() && world.running.is_empty(), "seed {seed}");
        for machine in &world.machines {
            assert!(machine.worker.slots.is_empty(), "seed {seed}");
        }
        for _ in 0..LIMIT {
            let checks = checks_of(&world.config, &[0], "x", 1);
            let now = world.clock(0);
            world.next += 1;
            let who = world.next;
            if let Submitted::Waiting(ticket) = world.machines[0].worker.submit(who, checks, now) {
                let since = world.now;
                world.pending.insert(who, Pending { machine: 0, ticket, since, cost: 1 });
            }
        }
        let before = world.admitted;
        for _ in 0..12 {
            world.step(true);
        }
        assert_eq!(world.admitted - before, LIMIT, "seed {seed}: all slots are there");
    }
    assert!(admitted > 120 * 60, "only {admitted} were admitted");
}
