//! Policies with `in_flight`: what a worker says of its slots, and whom it admits.

mod model;
mod search;
mod store;
mod turns;

use quotagate_protocol::Reservation;

use super::*;
use crate::worker::slots::{MAX_QUEUED, MAX_QUEUED_BEHIND};
use store::ModelStore;

/// Policies `a` (limit 2, does not wait), `w` (limit 2, waits for 300 ms), `q` (quota 5 a minute),
/// `s` (limit 1, shadow), `b` (limit 64) and `l` (limit 2, waits for 5 s); timeout 50 ms.
fn slots_config(on_failure: &str) -> Arc<Config> {
    Arc::new(Config::parse(slots_text(on_failure).as_bytes()).unwrap())
}

fn slots_text(on_failure: &str) -> String {
    format!(
        r#"{{"domain":"d","store":{{"cluster":"c","timeout":"50ms","on_failure":"{on_failure}","local_share":0.5}},"policies":[
            {{"name":"a","partition_by":[],"in_flight":2}},
            {{"name":"w","partition_by":[],"in_flight":2,"max_wait":"300ms"}},
            {{"name":"q","partition_by":[],"quota":5,"window":"1m"}},
            {{"name":"s","partition_by":[],"in_flight":1,"mode":"shadow"}},
            {{"name":"b","partition_by":[],"in_flight":64}},
            {{"name":"l","partition_by":[],"in_flight":2,"max_wait":"5s"}}]}}"#
    )
}

const A: usize = 0;
const W: usize = 1;
const Q: usize = 2;
const S: usize = 3;
const B: usize = 4;
const L: usize = 5;

/// Some workers, and the store that answers them at once.
struct Rig {
    workers: Vec<TestWorker>,
    store: ModelStore,
    now: u64,
    /// Whether the store answers calls, but can count nothing.
    is_broken: bool,
}

impl Rig {
    fn new(workers: u64, on_failure: &str) -> Self {
        let of = |seed| Worker::new(slots_config(on_failure), seed + 1);
        Self {
            workers: (0..workers).map(of).collect(),
            store: ModelStore::default(),
            now: 1_000,
            is_broken: false,
        }
    }

    fn submit(&mut self, worker: usize, who: &'static str, policies: &[usize]) -> Submitted {
        let checks = checks_of(&self.workers[worker].config, policies, "x", 1);
        self.workers[worker].submit(who, checks, at(self.now))
    }

    /// A request whose tier has a limit of its own.
    fn submit_tier(
        &mut self,
        worker: usize,
        who: &'static str,
        (policy, cost, limit): (usize, u64, u64),
    ) -> Submitted {
        let mut checks = checks_of(&self.workers[worker].config, &[policy], "x", cost);
        checks[0].counter.quota = limit;
        self.workers[worker].submit(who, checks, at(self.now))
    }

    /// The calls that a worker sends now, carried out and answered.
    fn exchange(&mut self, worker: usize) -> Vec<Reservation> {
        let mut said = Vec::new();
        while let Some(call) = self.workers[worker].next_call(at(self.now)) {
            let request: ReserveRequest = serde_json::from_slice(&call.body()).unwrap();
            for reservation in &request.reservations {
                reservation.check().unwrap();
            }
            let grants = request.reservations.iter();
            let grants = grants.map(|one| match self.is_broken {
                true => Err("the shard is down".to_owned()),
                false => Ok(self.store.reserve(one, self.now)),
            });
            let reply = ReserveReply { dials: 0, grants: grants.collect() };
            self.workers[worker].carried_out(call.id, reply, at(self.now));
            said.extend(request.reservations);
        }
        said
    }

    /// A request arrives, and its calls are answered. Returns its decision, if there is one.
    fn ask(&mut self, worker: usize, who: &'static str, policies: &[usize]) -> Option<Decision> {
        let submitted = self.submit(worker, who, policies);
        self.exchange(worker);
        match submitted {
            Submitted::Decided(decision) => Some(decision),
            Submitted::Waiting(_) => self.workers[worker].next_decision().map(|it| it.1),
            Submitted::Counting(admission) => Some(Decision::Admit(admission)),
        }
    }

    fn admit(&mut self, worker: usize, policies: &[usize]) -> Admission {
        match self.ask(worker, "x", policies) {
            Some(Decision::Admit(admission)) => admission,
            other => panic!("should be admitted: {other:?}"),
        }
    }

    fn free(&mut self, worker: usize, mut admission: Admission) {
        self.workers[worker].free(admission.slots.take(), at(self.now));
        self.exchange(worker);
    }

    /// Time passes, with ticks.
    fn pass(&mut self, ms: u64) -> Vec<Reservation> {
        let mut said = Vec::new();
        for _ in 0..ms / 10 {
            self.now += 10;
            for worker in 0..self.workers.len() {
                self.workers[worker].tick(at(self.now));
                said.extend(self.exchange(worker));
            }
        }
        said
    }

    /// The next call of a worker fails. Returns what is decided then.
    fn lose_call(&mut self, worker: usize) -> String {
        let call = self.workers[worker].next_call(at(self.now)).expect("a call");
        self.workers[worker].call_failed(call.id, at(self.now));
        summary(&mut self.workers[worker])
    }

    /// A second of silence, and five calls in a row that fail: the worker gives the store up.
    fn give_up(&mut self, worker: usize) -> String {
        let mut decided = String::new();
        self.now += 1_000;
        while self.workers[worker].calls.breaker.lets_through(at(self.now)) {
            self.submit(worker, "lost", &[Q]);
            decided.push_str(&self.lose_call(worker));
            decided.push(' ');
        }
        decided
    }

    fn held(&self, policy: usize) -> u64 {
        let name = ["a", "w", "q", "s", "b", "l"][policy];
        self.store.held(&format!("d:{name}:{{x}}"), self.now)
    }
}

fn holding(said: &[Reservation]) -> Vec<(u64, u64)> {
    said.iter().filter_map(|it| Some((it.holding.as_ref()?.held, it.want))).collect()
}

#[test]
fn third_request_at_once_is_refused_until_one_ends() {
    let mut rig = Rig::new(2, "deny");
    let (first, _second) = (rig.admit(0, &[A]), rig.admit(1, &[A]));
    assert_eq!(first.standings[0].balance.remaining, 1);
    let refused = rig.ask(0, "third", &[A]);
    let Some(Decision::Refuse(refusal)) = refused else { panic!("{refused:?}") };
    assert_eq!(violated(&refusal), [A]);
    assert_eq!(refusal.until, at(rig.now), "nobody knows when one ends");
    rig.free(0, first);
    assert_eq!(rig.held(A), 1, "free at once, without a tick");
    rig.admit(1, &[A]);
}

#[test]
fn other_policy_that_refuses_frees_the_slots_at_once() {
    let mut rig = Rig::new(1, "deny");
    let mut running = Vec::new();
    for _ in 0..5 {
        let admission = rig.admit(0, &[A, Q]);
        rig.free(0, admission);
    }
    running.push(rig.admit(0, &[A]));
    let refused = rig.ask(0, "sixth", &[A, Q]);
    let Some(Decision::Refuse(refusal)) = refused else { panic!("{refused:?}") };
    assert_eq!(violated(&refusal), [Q]);
    rig.exchange(0);
    assert_eq!(rig.held(A), 1);
    // The worker knows now that the quota is spent: it asks for no slot at all.
    assert!(matches!(rig.submit(0, "seventh", &[A, Q]), Submitted::Decided(Decision::Refuse(_))));
    assert!(rig.exchange(0).is_empty());
}

#[test]
fn client_that_leaves_frees_its_slot_in_every_phase() {
    // While it waits for the slot, for the quota, and before its decision is taken.
    for rounds in 0..3 {
        let mut rig = Rig::new(1, "deny");
        let Submitted::Waiting(ticket) = rig.submit(0, "one", &[A, Q]) else { panic!() };
        for _ in 0..rounds {
            let call = rig.workers[0].next_call(at(rig.now)).unwrap();
            let grants = call.request.reservations.iter();
            let grants = grants.map(|one| Ok(rig.store.reserve(one, rig.now))).collect();
            rig.workers[0].carried_out(call.id, ReserveReply { dials: 0, grants }, at(rig.now));
        }
        rig.workers[0].cancel(ticket, at(rig.now));
        rig.pass(100);
        assert_eq!(rig.held(A), 0, "after {rounds} calls");
        rig.pass(12_000);
        assert!(rig.workers[0].slots.is_empty() && rig.workers[0].next_decision().is_none());
    }
}

#[test]
fn worker_says_every_three_seconds_what_it_holds_and_admits_nobody_once_that_expired() {
    let mut rig = Rig::new(1, "deny");
    let _running = rig.admit(0, &[A]);
    assert!(!rig.workers[0].is_idle(), "ticks must go on");
    let said = rig.pass(10_000);
    assert_eq!(holding(&said), [(1, 0); 3]);
    assert_eq!(rig.held(A), 1);
    // The process stands still for longer than the store waits.
    rig.now += 20_000;
    assert_eq!(rig.held(A), 0);
    let mut other = Rig::new(1, "deny");
    other.workers[0] = Worker::new(slots_config("deny"), 77);
    std::mem::swap(&mut other.store, &mut rig.store);
    other.now = rig.now;
    let _others = (other.admit(0, &[A]), other.admit(0, &[A]));
    std::mem::swap(&mut other.store, &mut rig.store);
    assert!(matches!(rig.ask(0, "late", &[A]), Some(Decision::Refuse(_))));
    assert_eq!(rig.held(A), 3, "what still runs is debt");
}

#[test]
fn request_waits_for_a_slot_and_gets_it_when_one_of_this_worker_ends() {
    let mut rig = Rig::new(1, "deny");
    let (first, _second) = (rig.admit(0, &[W]), rig.admit(0, &[W]));
    assert_eq!(rig.ask(0, "third", &[W]), None);
    assert_eq!(rig.ask(0, "fourth", &[W]), None);
    rig.pass(100);
    rig.free(0, first);
    assert_eq!(summary(&mut rig.workers[0]), "third=+0", "in the order of arrival");
    rig.pass(300);
    let (_, decision) = rig.workers[0].next_decision().unwrap();
    let Decision::Refuse(refusal) = decision else { panic!("{decision:?}") };
    assert!(refusal.until > at(rig.now), "it may come again");
}

#[test]
fn older_request_of_another_worker_is_served_first() {
    let mut rig = Rig::new(2, "deny");
    let (first, _second) = (rig.admit(0, &[L]), rig.admit(0, &[L]));
    assert_eq!(rig.ask(1, "older", &[L]), None);
    rig.pass(300);
    assert_eq!(rig.ask(0, "newer", &[L]), None);
    rig.pass(60);
    rig.free(0, first);
    rig.pass(100);
    assert_eq!(summary(&mut rig.workers[0]), "");
    assert_eq!(summary(&mut rig.workers[1]), "older=+0");
}

#[test]
fn idle_slots_are_kept_only_while_plenty_are_free() {
    let mut rig = Rig::new(1, "deny");
    let running = rig.admit(0, &[A]);
    rig.free(0, running);
    assert_eq!(rig.held(A), 0);
    let running = rig.admit(0, &[B]);
    rig.free(0, running);
    assert_eq!(rig.held(B), 1, "63 others are free");
    let Submitted::Decided(Decision::Admit(again)) = rig.submit(0, "again", &[B]) else { panic!() };
    rig.free(0, again);
    rig.pass(1_100);
    assert_eq!(rig.held(B), 0, "for a second");
}

#[test]
fn flood_of_requests_that_wait_lets_nobody_in_and_leaves_room_for_others() {
    for (on_failure, unknown) in [("allow", "+"), ("deny", "!")] {
        let mut rig = Rig::new(2, on_failure);
        let submit = |rig: &mut Rig, worker: usize, party: &str| {
            let checks = checks_of(&rig.workers[worker].config, &[L], party, 1);
            rig.workers[worker].submit("x", checks, at(rig.now))
        };
        let refuses = |rig: &mut Rig, party: &str| {
            let submitted = submit(rig, 0, party);
            let Submitted::Decided(Decision::Refuse(refusal)) = submitted else { return false };
            refusal.until == at(rig.now)
        };
        let takes_all = |rig: &mut Rig, worker: usize, party: &str| {
            (0..2).for_each(|_| drop(submit(rig, worker, party)));
            rig.exchange(worker);
        };
        takes_all(&mut rig, 0, "quiet");
        for number in 0..MAX_WAITING / MAX_QUEUED_BEHIND {
            let party = format!("jwt.sub={number}");
            takes_all(&mut rig, 1, &party);
            submit(&mut rig, 0, &party);
            rig.exchange(0);
            for _ in 1..MAX_QUEUED_BEHIND {
                assert!(matches!(submit(&mut rig, 0, &party), Submitted::Waiting(_)), "{party}");
            }
            assert!(refuses(&mut rig, &party), "{party}");
            if number == 0 {
                // None of those that wait comes before one of a higher tier.
                let mut checks = checks_of(&rig.workers[0].config, &[L], &party, 1);
                checks[0].counter.quota = 10;
                let submitted = rig.workers[0].submit("x", checks, at(rig.now));
                let Submitted::Waiting(ticket) = submitted else { panic!("{submitted:?}") };
                rig.workers[0].cancel(ticket, at(rig.now));
            }
            rig.now += 25;
            assert!(refuses(&mut rig, &party), "{party}: others come first");
        }
        assert!(refuses(&mut rig, "quiet"), "this worker holds all slots");
        let nothing_known = submit(&mut rig, 0, "new");
        assert!(at_once(nothing_known).starts_with(unknown), "{on_failure}");
    }
}

#[test]
fn one_partition_does_not_take_all_room_before_the_store_answers() {
    let mut rig = Rig::new(1, "deny");
    for _ in 0..MAX_QUEUED {
        assert!(matches!(rig.submit(0, "x", &[A]), Submitted::Waiting(_)));
    }
    assert_eq!(at_once(rig.submit(0, "x", &[A])), "!", "nobody knows whether it is full");
    assert!(matches!(rig.submit(0, "x", &[B]), Submitted::Waiting(_)));
}

#[test]
fn silent_store_lets_on_failure_decide() {
    for (on_failure, decided) in [("deny", "!!"), ("allow", "+++"), ("local", "+-")] {
        let mut rig = Rig::new(1, on_failure);
        let mut found = String::new();
        for _ in 0..decided.len() {
            let Submitted::Waiting(_) = rig.submit(0, "x", &[A]) else {
                found.push('-');
                continue;
            };
            let call = rig.workers[0].next_call(at(rig.now)).unwrap();
            rig.workers[0].call_failed(call.id, at(rig.now));
            let decision = rig.workers[0].next_decision().unwrap().1;
            found.push_str(&brief(&decision));
        }
        let found: String = found.chars().filter(|c| "+-!".contains(*c)).collect();
        let expected = if on_failure == "allow" { "++-" } else { decided };
        assert_eq!(found, expected, "{on_failure}");
        rig.pass(300);
        let held = decided.chars().zip(expected.chars()).filter(|it| it.1 == '+').count();
        assert_eq!(rig.held(A), held as u64, "{on_failure}: what runs counts");
    }
}

#[test]
fn full_worker_refuses_requests_that_could_wait_while_the_store_is_given_up() {
    let mut rig = Rig::new(1, "allow");
    let _running = (rig.admit(0, &[W]), rig.admit(0, &[W]));
    assert_eq!(rig.ask(0, "waits", &[W]), None);
    let decided = rig.give_up(0);
    assert!(decided.contains("waits=-"), "{decided}");
    assert_eq!(at_once(rig.submit(0, "new", &[W])), "-");
}

#[test]
fn marking_policy_holds_no_slot_beyond_its_limit_while_the_store_is_away() {
    let mut rig = Rig::new(1, "allow");
    let mut config = (*slots_config("allow")).clone();
    config.policies[A].mode = Mode::Mark;
    rig.workers[0] = Worker::new(Arc::new(config), 1);
    for who in ["one", "two", "marked"] {
        assert!(matches!(rig.submit(0, who, &[A]), Submitted::Waiting(_)));
    }
    let call = rig.workers[0].next_call(at(rig.now)).unwrap();
    rig.workers[0].call_failed(call.id, at(rig.now));
    let mut found = Vec::new();
    while let Some((who, Decision::Admit(admission))) = rig.workers[0].next_decision() {
        let marks = admission.standings.iter().any(|standing| !standing.granted);
        found.push((who, marks, admission.slots.is_empty()));
    }
    assert_eq!(found, [("one", false, false), ("two", false, false), ("marked", true, true)]);
}

#[test]
fn shadow_policy_counts_what_runs_and_refuses_nobody() {
    let mut rig = Rig::new(1, "deny");
    let first = rig.admit(0, &[S]);
    assert_eq!((first.standings[0].granted, first.slots.is_empty()), (true, false));
    let second = rig.admit(0, &[S]);
    assert_eq!((second.standings[0].granted, second.slots.is_empty()), (false, true));
    assert_eq!(rig.held(S), 1);
}

#[test]
fn all_policies_grant_slots_or_none() {
    let mut rig = Rig::new(1, "deny");
    let _running = (rig.admit(0, &[A]), rig.admit(0, &[A]));
    assert!(matches!(rig.ask(0, "both", &[A, B]), Some(Decision::Refuse(_))));
    rig.pass(1_100);
    assert_eq!(rig.held(B), 0);
}

#[test]
fn successor_does_not_take_back_what_its_predecessor_held() {
    let mut rig = Rig::new(1, "deny");
    let old = rig.admit(0, &[A]);
    rig.workers[0] = rig.workers[0].successor(9);
    let _new = rig.admit(0, &[A]);
    rig.free(0, old);
    assert_eq!(rig.held(A), 2, "until the field of the old one expires");
    rig.pass(9_000);
    assert_eq!(rig.held(A), 1);
}

#[test]
fn lost_answer_is_corrected_by_the_next_message() {
    let mut rig = Rig::new(1, "deny");
    rig.submit(0, "lost", &[A]);
    let call = rig.workers[0].next_call(at(rig.now)).unwrap();
    rig.store.reserve(&call.request.reservations[0], rig.now);
    assert_eq!(rig.held(A), 1);
    rig.workers[0].call_failed(call.id, at(rig.now));
    assert_eq!(summary(&mut rig.workers[0]), "lost=!");
    rig.pass(300);
    assert_eq!(rig.held(A), 0);
}

#[test]
fn lost_message_ends_no_wait_unless_the_store_is_given_up() {
    for on_failure in ["allow", "deny"] {
        let mut rig = Rig::new(2, on_failure);
        let _running = (rig.admit(1, &[W]), rig.admit(1, &[W]));
        assert_eq!(rig.ask(0, "waits", &[W]), None);
        rig.now += 60;
        rig.workers[0].tick(at(rig.now));
        let call = rig.workers[0].next_call(at(rig.now)).expect("it asks again");
        rig.workers[0].call_failed(call.id, at(rig.now));
        assert_eq!(summary(&mut rig.workers[0]), "", "{on_failure}");
        assert!(!rig.workers[0].slots.is_empty());
        let decided = rig.give_up(0);
        let expected = if on_failure == "deny" { "waits=!" } else { "waits=+" };
        assert!(decided.contains(expected), "{decided}");
    }
}

#[test]
fn on_failure_decides_a_wait_once_the_store_said_nothing_of_the_counter_for_a_second() {
    for (on_failure, expected) in [("deny", "waits=!"), ("allow", "waits=+")] {
        let mut rig = Rig::new(2, on_failure);
        let _running = (rig.admit(1, &[L]), rig.admit(1, &[L]));
        assert_eq!(rig.ask(0, "waits", &[L]), None);
        rig.is_broken = true;
        rig.pass(900);
        assert_eq!(summary(&mut rig.workers[0]), "", "{on_failure}");
        rig.pass(200);
        assert_eq!(summary(&mut rig.workers[0]), expected);
    }
}

#[test]
fn lost_message_ends_no_wait_if_the_timeout_is_longer_than_a_second() {
    let mut rig = Rig::new(1, "allow");
    let text = slots_text("allow").replace("50ms", "2s");
    rig.workers[0] = Worker::new(Arc::new(Config::parse(text.as_bytes()).unwrap()), 1);
    let _running = (rig.admit(0, &[L]), rig.admit(0, &[L]));
    assert_eq!(rig.ask(0, "waits", &[L]), None);
    rig.now += 60;
    let call = rig.workers[0].next_call(at(rig.now)).expect("it asks again");
    rig.now += 2_000;
    rig.workers[0].call_failed(call.id, at(rig.now));
    assert_eq!(summary(&mut rig.workers[0]), "");
}

#[test]
fn what_is_said_of_slots_shares_calls_as_requests_do() {
    let mut rig = Rig::new(1, "deny");
    // Sends what is due, answers it once nothing more leaves, and says how much each call said.
    let exchange = |rig: &mut Rig| {
        let mut sent = Vec::new();
        while let Some(call) = rig.workers[0].next_call(at(rig.now)) {
            sent.push(call);
        }
        let mut said = Vec::new();
        for OutgoingCall { id, request, .. } in sent {
            said.push(request.reservations.len());
            let grants = request.reservations.iter();
            let grants = grants.map(|one| Ok(rig.store.reserve(one, rig.now))).collect();
            let reply = ReserveReply { dials: 0, grants };
            rig.workers[0].carried_out(id, reply, at(rig.now));
        }
        said
    };
    let callers: Vec<String> = (0..50).map(|number| format!("jwt.sub={number}")).collect();
    let submit = |rig: &mut Rig, caller: &String| {
        let checks = checks_of(&rig.workers[0].config, &[A], caller, 1);
        assert!(matches!(rig.workers[0].submit("x", checks, at(rig.now)), Submitted::Waiting(_)));
    };
    submit(&mut rig, &callers[0]);
    let first = rig.workers[0].next_call(at(rig.now)).expect("it leaves at once");
    for caller in &callers[1..] {
        submit(&mut rig, caller);
        assert!(rig.workers[0].next_call(at(rig.now)).is_none(), "it waits for the first call");
    }
    let grant = rig.store.reserve(&first.request.reservations[0], rig.now);
    let reply = ReserveReply { dials: 0, grants: vec![Ok(grant)] };
    rig.workers[0].carried_out(first.id, reply, at(rig.now));
    assert_eq!(exchange(&mut rig), [49], "all others share the next one");
    let mut running = Vec::new();
    while let Some((_, Decision::Admit(admission))) = rig.workers[0].next_decision() {
        running.push(admission);
    }
    assert_eq!(running.len(), 50);
    // Ends do the same. A call that gets no answer holds up others for 5 ms.
    let mut running = running.into_iter();
    let mut end = |rig: &mut Rig| {
        let Some(admission) = running.next() else { return false };
        rig.workers[0].free(admission.slots, at(rig.now));
        true
    };
    end(&mut rig);
    assert!(rig.workers[0].next_call(at(rig.now)).is_some());
    end(&mut rig);
    assert!(rig.workers[0].next_call(at(rig.now)).is_none());
    submit(&mut rig, &"jwt.sub=lone".to_owned());
    let lone = rig.workers[0].next_call(at(rig.now)).expect("no request waits for such a call");
    let wanted: u64 = lone.request.reservations.iter().map(|said| said.want).sum();
    assert_eq!((lone.request.reservations.len(), wanted), (2, 1), "the second end goes with it");
    while end(&mut rig) {}
    assert!(rig.workers[0].next_call(at(rig.now + 4)).is_none());
    rig.now += 5;
    assert_eq!(exchange(&mut rig), [48]);
}

#[test]
fn refusal_is_remembered_for_a_moment_unless_a_slot_of_this_worker_became_free() {
    let mut rig = Rig::new(2, "deny");
    let (own, _others) = (rig.admit(1, &[A]), rig.admit(0, &[A]));
    let refused = |submitted: Submitted| match submitted {
        Submitted::Decided(Decision::Refuse(refusal)) => refusal.standings[0].by_store,
        other => panic!("{other:?}"),
    };
    let Some(Decision::Refuse(refusal)) = rig.ask(1, "by the store", &[A]) else { panic!() };
    assert!(refusal.standings[0].by_store);
    let begun = rig.now;
    let mut calls = Vec::new();
    let mut flood = |rig: &mut Rig, ms: u64| {
        calls.clear();
        for _ in 0..ms {
            match rig.submit(1, "flood", &[A]) {
                Submitted::Waiting(_) => {
                    calls.push(rig.now);
                    rig.exchange(1);
                }
                decided => assert!(!refused(decided), "operators hear of it from the worker"),
            }
            rig.now += 1;
        }
        calls.clone()
    };
    let calls = flood(&mut rig, 2_000);
    assert_eq!(calls[0], begun + 20, "the first refusal is short");
    let later = calls.iter().filter(|call| **call >= begun + 1_000).count();
    assert!((10..=13).contains(&later), "{later} calls in the second second: {calls:?}");
    // After a break it is short again.
    rig.now += 300;
    let calls = flood(&mut rig, 50);
    assert_eq!(calls[1], calls[0] + 20);
    rig.ask(1, "again", &[A]);
    rig.workers[1].free(own.slots.clone(), at(rig.now));
    assert!(matches!(rig.ask(1, "its own slot", &[A]), Some(Decision::Admit(_))));
}

#[test]
fn refusal_after_a_wait_is_one_that_the_store_did_not_count() {
    let refused_by_store = |rig: &mut Rig| match rig.workers[0].next_decision() {
        Some((_, Decision::Refuse(refusal))) => refusal.standings[0].by_store,
        other => panic!("{other:?}"),
    };
    // Its time ends.
    let mut rig = Rig::new(1, "deny");
    let _running = (rig.admit(0, &[W]), rig.admit(0, &[W]));
    assert_eq!(rig.ask(0, "waits", &[W]), None);
    rig.pass(400);
    assert!(!refused_by_store(&mut rig));
    // An operator lowers the limit below its cost: the answer refuses it.
    assert!(matches!(rig.submit_tier(0, "large", (W, 2, 2)), Submitted::Waiting(_)));
    let call = rig.workers[0].next_call(at(rig.now)).unwrap();
    let grant = rig.store.reserve(&call.request.reservations[0], rig.now);
    let grants = vec![Ok(Grant { quota: 1, ..grant })];
    rig.workers[0].carried_out(call.id, ReserveReply { dials: 0, grants }, at(rig.now));
    assert!(!refused_by_store(&mut rig));
}

#[test]
fn client_that_leaves_lets_those_behind_it_go_on_at_once() {
    let mut rig = Rig::new(1, "deny");
    let (first, _second) = (rig.admit(0, &[W]), rig.admit(0, &[W]));
    let Submitted::Waiting(large) = rig.submit_tier(0, "large", (W, 2, 2)) else { panic!() };
    assert!(matches!(rig.submit(0, "small", &[W]), Submitted::Waiting(_)));
    rig.exchange(0);
    rig.workers[0].free(first.slots.clone(), at(rig.now));
    assert_eq!(summary(&mut rig.workers[0]), "", "nobody overtakes the large one");
    rig.workers[0].cancel(large, at(rig.now));
    assert_eq!(summary(&mut rig.workers[0]), "small=+0");
}

#[test]
fn client_that_leaves_after_its_slots_came_returns_its_leased_units() {
    let mut rig = Rig::new(1, "deny");
    let mut config = (*slots_config("deny")).clone();
    config.policies[Q].quota = 10_000;
    let (ahead, max) = (Duration::from_millis(100), 1_000.try_into().unwrap());
    config.policies[Q].precision = crate::config::Precision::Lease { ahead, max };
    rig.workers[0] = Worker::new(Arc::new(config), 1);
    for _ in 0..3 {
        (0..40).for_each(|_| drop(rig.submit(0, "x", &[Q])));
        rig.exchange(0);
        rig.now += 20;
    }
    decisions(&mut rig.workers[0]);
    let counter = checks_of(&rig.workers[0].config, &[Q], "x", 1).remove(0).counter;
    let leased = |rig: &Rig| rig.workers[0].leases.load(&counter).0;
    let before = leased(&rig);
    assert!(before > 2);
    let Submitted::Waiting(ticket) = rig.submit(0, "leaves", &[A, Q]) else { panic!() };
    rig.exchange(0);
    assert!(rig.workers[0].has_decisions() && leased(&rig) < before);
    rig.workers[0].cancel(ticket, at(rig.now));
    assert_eq!(leased(&rig), before);
}

#[test]
fn lowered_limit_lets_nobody_in_for_a_slot_that_became_free_meanwhile() {
    let mut rig = Rig::new(2, "deny");
    let running = (rig.admit(0, &[L]), rig.admit(0, &[L]));
    assert_eq!(rig.ask(0, "x", &[L]), None);
    assert_eq!(rig.ask(1, "elsewhere", &[L]), None);
    rig.pass(100);
    rig.now += 100;
    let call = rig.workers[0].next_call(at(rig.now)).unwrap();
    // An operator lowers the limit to 1; one of two ends while the message is under way.
    let asked = Reservation { quota: 1, ..call.request.reservations[0].clone() };
    let grants = vec![Ok(rig.store.reserve(&asked, rig.now))];
    rig.workers[0].free(running.0.slots.clone(), at(rig.now));
    rig.workers[0].carried_out(call.id, ReserveReply { dials: 0, grants }, at(rig.now));
    assert_eq!(summary(&mut rig.workers[0]), "");
}

#[test]
fn request_that_never_fits_is_refused_at_once_and_told_no_time() {
    let mut rig = Rig::new(1, "deny");
    let checks = checks_of(&rig.workers[0].config, &[W], "x", 3);
    let submitted = rig.workers[0].submit("large", checks, at(rig.now));
    let Submitted::Decided(Decision::Refuse(refusal)) = submitted else { panic!("{submitted:?}") };
    assert_eq!(refusal.until, at(rig.now));
}

#[test]
fn request_that_gets_a_freed_slot_is_decided_by_its_own_document() {
    // The first request arrived under a document that has another policy in front.
    let text = |policies: &str| {
        let text = format!(
            r#"{{"domain":"d","live":true,"store":{{"cluster":"c","timeout":"50ms","on_failure":"deny"}},
                "policies":[{policies}]}}"#
        );
        Config::parse(text.as_bytes()).unwrap()
    };
    const SLOT: &str = r#"{"name":"w","partition_by":[],"in_flight":1,"max_wait":"300ms"}"#;
    const QUOTA: &str = r#"{"name":"q","partition_by":[],"quota":0,"window":"1m"}"#;
    const OTHER: &str = r#"{"name":"o","partition_by":[],"in_flight":9}"#;
    let mut rig = Rig::new(1, "deny");
    rig.workers[0] = Worker::new(Arc::new(text(&format!("{SLOT},{QUOTA}"))), 1);
    let old = Arc::clone(&rig.workers[0].config);
    let mut checks = checks_of(&old, &[0, 1], "x", 1);
    checks[1].counter.quota = 5;
    // It holds the slot, and waits for its quota.
    assert!(matches!(rig.workers[0].submit("old", checks, at(rig.now)), Submitted::Waiting(_)));
    let call = rig.workers[0].next_call(at(rig.now)).unwrap();
    let grant = rig.store.reserve(&call.request.reservations[0], rig.now);
    let reply = ReserveReply { dials: 0, grants: vec![Ok(grant)] };
    rig.workers[0].carried_out(call.id, reply, at(rig.now));
    let call = rig.workers[0].next_call(at(rig.now)).unwrap();
    rig.workers[0].swap(text(&format!("{OTHER},{SLOT}")), at(rig.now));
    let checks = checks_of(&rig.workers[0].config, &[1], "x", 1);
    assert!(matches!(rig.workers[0].submit("new", checks, at(rig.now)), Submitted::Waiting(_)));
    // Its quota refuses it, so the other one gets the slot.
    let refused = Grant { used: 5, quota: 5, reset_ms: 30_000, window: 9, ..Grant::default() };
    let reply = ReserveReply { dials: 0, grants: vec![Ok(refused)] };
    rig.workers[0].carried_out(call.id, reply, at(rig.now));
    let decided = decisions(&mut rig.workers[0]);
    let brief: Vec<String> =
        decided.iter().map(|(who, it)| format!("{who}={}", brief(it))).collect();
    assert_eq!(brief, ["old=-", "new=+0"]);
    assert_eq!(rig.workers[0].config.policies.len(), 2);
    let Decision::Admit(admission) = &decided[1].1 else { panic!() };
    assert_eq!(admission.standings[0].policy, 1);
}

#[test]
fn request_whose_message_is_the_probe_goes_on_to_its_quotas() {
    let mut rig = Rig::new(1, "deny");
    rig.give_up(0);
    rig.now += 300;
    rig.admit(0, &[A, Q]);
    assert_eq!(rig.held(A), 1);
}
