//! Given this configuration and these events, expect these calls and decisions.

use std::num::NonZeroU64;

use super::*;
use crate::evaluate::Counter;
use crate::wire::{Grant, Outcome, ReserveReply, ReserveRequest};

fn at(ms: u64) -> Monotonic {
    Monotonic::new(Duration::from_millis(ms))
}

/// Policies `a`, `b` (enforced) and `s` (shadow), quota 5 a minute each; timeout 50 ms.
fn config(on_failure: &str) -> Rc<Config> {
    let text = format!(
        r#"{{"domain":"d","store":{{"cluster":"c","timeout":"50ms","on_failure":"{on_failure}"}},"policies":[
            {{"name":"a","quota":5,"window":"1m"}},{{"name":"b","quota":5,"window":"1m"}},
            {{"name":"s","quota":5,"window":"1m","mode":"shadow"}}]}}"#
    );
    Rc::new(Config::parse(text.as_bytes()).unwrap())
}

/// A request of `cost` for `party` by the policies at these places.
fn checks(policies: &[usize], party: &str, cost: u64) -> Vec<Check> {
    let config = config("allow");
    let check = |&policy: &usize| {
        let p = &config.policies[policy];
        let counter =
            Counter { key: format!("d:{}:{{{party}}}", p.name).into(), quota: p.quota, window: p.window };
        Check { policy, counter, cost: NonZeroU64::new(cost).unwrap() }
    };
    policies.iter().map(check).collect()
}

type TestWorker = Worker<&'static str>;

fn worker(on_failure: &str) -> TestWorker {
    Worker::new(config(on_failure), 1)
}

fn call(worker: &mut TestWorker, ms: u64) -> (CallId, ReserveRequest) {
    let call = worker.next_call(at(ms)).expect("a call is due");
    (call.id, serde_json::from_slice(&call.body).unwrap())
}

fn grant(granted: u64, used: u64) -> Outcome {
    Outcome::Granted(Grant { granted, used, quota: 5, reset_ms: 30_000, window: 9 })
}

fn reply(grants: &[Outcome]) -> Vec<u8> {
    serde_json::to_vec(&ReserveReply { dials: 0, grants: grants.to_vec() }).unwrap()
}

fn decisions(worker: &mut TestWorker) -> Vec<(&'static str, Decision)> {
    std::iter::from_fn(|| worker.next_decision()).collect()
}

/// `who=+r` for an admission with the remaining units, `who=-` for a refusal, `who=!` for 503.
fn summary(worker: &mut TestWorker) -> String {
    let text = |(who, decision): (&str, Decision)| match decision {
        Decision::Admit(Admission { standings, .. }) => {
            let rest: Vec<_> = standings.iter().map(|s| s.remaining.to_string()).collect();
            format!("{who}=+{}", rest.join("/"))
        }
        Decision::Refuse(_) => format!("{who}=-"),
        Decision::Unavailable(_) => format!("{who}=!"),
    };
    decisions(worker).into_iter().map(text).collect::<Vec<_>>().join(" ")
}

fn violated(refusal: &Refusal) -> Vec<usize> {
    refusal.violated(&config("deny")).map(|standing| standing.policy).collect()
}

fn unavailable() -> Submitted {
    Submitted::Decided(Decision::Unavailable(Uncounted { policy: 0, key: "d:a:{x}".into() }))
}

fn submit(worker: &mut TestWorker, who: &'static str, ms: u64) -> Ticket {
    match worker.submit(who, checks(&[0], "x", 1), at(ms)) {
        Submitted::Waiting(ticket) => ticket,
        other => panic!("{who} should wait: {other:?}"),
    }
}

#[test]
fn a_lone_request_is_sent_at_once() {
    let mut w = worker("allow");
    submit(&mut w, "one", 0);
    let out = w.next_call(at(0)).unwrap();
    assert_eq!(out.timeout, Duration::from_millis(50));
    let body = String::from_utf8(out.body).unwrap();
    assert_eq!(
        body,
        r#"{"budget_ms":50,"reservations":[{"key":"d:a:{x}","window_s":60,"offset_s":0,"quota":5,"want":1,"min":1,"spare":0,"count_denied":false}]}"#
    );
    assert!(w.next_call(at(0)).is_none());
    w.replied(out.id, &reply(&[grant(1, 3)]), at(2));
    let standing = Standing {
        policy: 0,
        key: "d:a:{x}".into(),
        granted: true,
        quota: 5,
        remaining: 2,
        resets: at(30_002),
    };
    assert_eq!(
        decisions(&mut w),
        [("one", Decision::Admit(Admission { standings: vec![standing], ..Admission::default() }))]
    );
    assert!(w.is_idle());
}

#[test]
fn those_that_gather_share_one_call_and_are_served_in_order() {
    let mut w = worker("allow");
    submit(&mut w, "one", 0);
    let (first, _) = call(&mut w, 0);
    for who in ["two", "three", "four"] {
        submit(&mut w, who, 1);
        assert!(w.next_call(at(1)).is_none(), "a call is under way");
    }
    w.replied(first, &reply(&[grant(1, 1)]), at(2));
    let (second, request) = call(&mut w, 2);
    assert_eq!(
        (request.reservations.len(), request.reservations[0].want, request.reservations[0].min),
        (1, 3, 1)
    );
    assert_eq!(request.budget_ms, 49, "the youngest has waited for a millisecond");
    w.replied(second, &reply(&[grant(2, 5)]), at(3));
    assert_eq!(summary(&mut w), "one=+4 two=+1 three=+0 four=-");
}

#[test]
fn a_slow_call_holds_up_the_next_for_a_moment_only_and_calls_are_bounded() {
    let mut w = worker("allow");
    for i in 0..MAX_IN_FLIGHT as u64 {
        submit(&mut w, "x", i * 6);
        assert!(i == 0 || w.next_call(at(i * 6 + 4)).is_none());
        call(&mut w, i * 6 + 5);
    }
    submit(&mut w, "x", 40);
    assert!(w.next_call(at(48)).is_none(), "no more than MAX_IN_FLIGHT");
}

#[test]
fn a_full_batch_leaves_although_no_call_has_returned() {
    let mut w = worker("allow");
    submit(&mut w, "x", 0);
    call(&mut w, 0);
    for _ in 1..FULL_BATCH {
        submit(&mut w, "x", 0);
        assert!(w.next_call(at(0)).is_none());
    }
    submit(&mut w, "x", 0);
    assert_eq!(call(&mut w, 0).1.reservations[0].want, FULL_BATCH as u64);
}

#[test]
fn invariant_2_a_request_is_decided_by_its_deadline_and_a_late_grant_goes_back() {
    for (on_failure, expected) in [("allow", "one=+"), ("deny", "one=!")] {
        let mut w = worker(on_failure);
        submit(&mut w, "one", 0);
        let (id, _) = call(&mut w, 0);
        w.tick(at(49));
        assert_eq!(summary(&mut w), "");
        w.tick(at(50));
        assert_eq!(summary(&mut w), expected);
        w.replied(id, &reply(&[grant(1, 1)]), at(51));
        w.tick(at(60));
        let (_, request) = call(&mut w, 60);
        assert_eq!(
            (request.returns[0].units, request.returns[0].window, request.reservations.len()),
            (1, 9, 0)
        );
    }
}

#[test]
fn gathering_counts_as_waiting() {
    let mut w = worker("deny");
    submit(&mut w, "one", 0);
    call(&mut w, 0);
    submit(&mut w, "two", 1);
    w.tick(at(50));
    w.tick(at(51));
    assert_eq!(summary(&mut w), "one=! two=!");
    assert!(w.next_call(at(52)).is_none(), "nobody waits any more");
}

#[test]
fn a_client_that_has_gone_holds_no_units_and_holds_up_nobody() {
    let mut w = worker("allow");
    let (gone, stays) = (submit(&mut w, "gone", 0), submit(&mut w, "stays", 0));
    assert_ne!(gone, stays);
    let (id, request) = call(&mut w, 0);
    assert_eq!(request.reservations[0].want, 2);
    w.cancel(gone);
    w.replied(id, &reply(&[grant(2, 2)]), at(1));
    assert_eq!(summary(&mut w), "stays=+4");
    let next = submit(&mut w, "next", 2);
    w.cancel(next);
    submit(&mut w, "last", 2);
    let (_, request) = call(&mut w, 2);
    assert_eq!((request.returns[0].units, request.reservations[0].want), (1, 1));
}

#[test]
fn a_client_that_leaves_before_it_hears_of_its_grant_holds_no_units_either() {
    let mut w = worker("allow");
    let (gone, _) = (submit(&mut w, "gone", 0), submit(&mut w, "stays", 0));
    let (id, _) = call(&mut w, 0);
    w.replied(id, &reply(&[grant(2, 2)]), at(1));
    w.cancel(gone);
    assert_eq!(summary(&mut w), "stays=+3");
    w.tick(at(10));
    assert_eq!(call(&mut w, 10).1.returns[0].units, 1);
}

#[test]
fn what_one_policy_granted_and_another_refused_goes_back() {
    let mut w = worker("allow");
    w.submit("one", checks(&[0, 1], "x", 1), at(0));
    w.submit("two", checks(&[0], "x", 1), at(0));
    let (id, request) = call(&mut w, 0);
    assert_eq!(request.reservations.iter().map(|r| r.want).collect::<Vec<_>>(), [2, 1]);
    w.replied(id, &reply(&[grant(2, 2), grant(0, 5)]), at(1));
    let decided = decisions(&mut w);
    let Decision::Refuse(refusal) = &decided[0].1 else { panic!("{decided:?}") };
    assert_eq!((&*violated(refusal), refusal.until), (&[1][..], at(30_001)));
    assert_eq!(refusal.standings.iter().map(|s| s.remaining).collect::<Vec<_>>(), [5, 0]);
    assert!(matches!(&decided[1], ("two", Decision::Admit(s)) if s.standings[0].remaining == 4));
    w.tick(at(10));
    let (_, request) = call(&mut w, 10);
    assert_eq!(request.returns.iter().map(|r| (&*r.key, r.units)).collect::<Vec<_>>(), [("d:a:{x}", 1)]);
}

#[test]
fn a_spent_counter_is_refused_without_a_call_and_asked_about_once_a_second() {
    let mut w = worker("allow");
    submit(&mut w, "one", 0);
    let (id, _) = call(&mut w, 0);
    w.replied(id, &reply(&[grant(1, 5)]), at(0));
    assert_eq!(summary(&mut w), "one=+0");
    let refused = w.submit("two", checks(&[0, 1], "x", 1), at(10));
    assert!(
        matches!(&refused, Submitted::Decided(Decision::Refuse(r)) if violated(r) == [0] && r.until == at(30_000))
    );
    assert!(w.next_call(at(10)).is_none(), "the other policy is not asked either");
    submit(&mut w, "probe", 1_000);
    assert!(matches!(
        w.submit("three", checks(&[0], "x", 1), at(1_000)),
        Submitted::Decided(Decision::Refuse(_))
    ));
    let (id, _) = call(&mut w, 1_000);
    w.replied(id, &reply(&[grant(1, 2)]), at(1_001));
    assert_eq!(summary(&mut w), "probe=+3");
    submit(&mut w, "open again", 1_002);
}

#[test]
fn a_spent_counter_stays_refused_while_the_store_fails() {
    for on_failure in ["allow", "deny"] {
        let mut w = worker(on_failure);
        submit(&mut w, "one", 0);
        let (id, _) = call(&mut w, 0);
        w.replied(id, &reply(&[grant(1, 5)]), at(0));
        assert_eq!(summary(&mut w), "one=+0");
        // The one that asks again finds the store dead.
        submit(&mut w, "again", 1_000);
        let (id, _) = call(&mut w, 1_000);
        w.call_failed(id, at(1_000));
        assert_eq!(summary(&mut w), "again=-");
        for _ in 1..crate::worker::breaker::LIMIT {
            w.submit("other", checks(&[0], "y", 1), at(1_950));
            let (id, _) = call(&mut w, 1_950);
            w.call_failed(id, at(1_950));
        }
        // The breaker is open, and the second in which nobody asks is over.
        let refused = w.submit("late", checks(&[0], "x", 1), at(2_050));
        assert!(matches!(refused, Submitted::Decided(Decision::Refuse(_))), "{on_failure}: {refused:?}");
        w.tick(at(30_000));
        let now = w.submit("next window", checks(&[0], "x", 1), at(30_000));
        assert!(!matches!(now, Submitted::Decided(Decision::Refuse(_))), "{on_failure}: {now:?}");
    }
}

#[test]
fn a_spent_counter_stays_refused_while_only_its_own_reservation_fails() {
    for on_failure in ["allow", "deny"] {
        let mut w = worker(on_failure);
        submit(&mut w, "one", 0);
        let (id, _) = call(&mut w, 0);
        w.replied(id, &reply(&[grant(1, 5)]), at(0));
        submit(&mut w, "again", 1_000);
        w.submit("other", checks(&[0], "y", 1), at(1_000));
        let (id, _) = call(&mut w, 1_000);
        w.replied(id, &reply(&[Outcome::Failed("down".into()), grant(1, 1)]), at(1_001));
        assert_eq!(summary(&mut w), "one=+0 again=- other=+4", "{on_failure}");
    }
}

#[test]
fn only_the_probe_tells_whether_the_store_is_still_dead() {
    let mut w = worker("deny");
    submit(&mut w, "old", 0);
    let (old, _) = call(&mut w, 0);
    for _ in 0..crate::worker::breaker::LIMIT {
        submit(&mut w, "x", 6);
        let (id, _) = call(&mut w, 11);
        w.call_failed(id, at(11));
    }
    w.tick(at(50));
    submit(&mut w, "probe", 300);
    let (probe, _) = call(&mut w, 300);
    w.call_failed(old, at(301));
    decisions(&mut w);
    assert_eq!(w.submit("x", checks(&[0], "x", 1), at(700)), unavailable());
    assert!(w.next_call(at(700)).is_none(), "one probe at a time");
    assert_eq!(w.replied(probe, &reply(&[grant(1, 1)]), at(310)), Change::Healed);
}

#[test]
fn shadow_counts_without_holding_up_or_refusing() {
    let mut w = worker("deny");
    assert_eq!(w.submit("one", checks(&[2], "x", 1), at(0)), Submitted::Counting);
    let (id, request) = call(&mut w, 0);
    assert_eq!(request.reservations[0].key, "d:s:{x}");
    w.replied(id, &reply(&[grant(1, 5)]), at(1));
    assert_eq!(
        w.submit("two", checks(&[2], "x", 1), at(2)),
        Submitted::Decided(Decision::Admit(Admission::default()))
    );
    assert!(matches!(w.submit("three", checks(&[0, 2], "y", 1), at(3)), Submitted::Waiting(_)));
    let (id, _) = call(&mut w, 3);
    w.replied(id, &reply(&[grant(1, 2), grant(0, 5)]), at(4));
    assert_eq!(summary(&mut w), "three=+3");
    w.submit("four", checks(&[0, 2], "z", 1), at(5));
    let (id, _) = call(&mut w, 5);
    w.replied(id, &reply(&[grant(1, 2), Outcome::Failed("down".into())]), at(6));
    assert_eq!(summary(&mut w), "four=+3", "its failure is not the client's either");
}

#[test]
fn an_answer_that_is_none_is_a_failure_of_the_store() {
    let too_many = grant(2, 2);
    let beyond = Outcome::Granted(Grant { granted: 1, used: 1, quota: 5, reset_ms: 60_001, window: 9 });
    let failed = Outcome::Failed("down".into());
    for body in [
        b"<html>".to_vec(),
        b"".to_vec(),
        reply(&[]),
        reply(&[grant(1, 1), grant(1, 1)]),
        reply(&[too_many]),
        reply(&[beyond]),
        reply(&[failed]),
    ] {
        let mut w = worker("deny");
        submit(&mut w, "one", 0);
        let (id, _) = call(&mut w, 0);
        w.replied(id, &body, at(1));
        assert_eq!(summary(&mut w), "one=!", "{}", String::from_utf8_lossy(&body));
    }
}

#[test]
fn a_dead_store_is_left_alone_and_one_probe_brings_it_back() {
    let mut w = worker("deny");
    for i in 0..crate::worker::breaker::LIMIT {
        submit(&mut w, "x", 0);
        let (id, _) = call(&mut w, 0);
        let change = w.call_failed(id, at(0));
        assert_eq!(change == Change::Opened, i + 1 == crate::worker::breaker::LIMIT);
    }
    decisions(&mut w);
    assert_eq!(w.submit("x", checks(&[0], "x", 1), at(100)), unavailable());
    submit(&mut w, "probe", 250);
    let (id, _) = call(&mut w, 250);
    assert_eq!(w.submit("x", checks(&[0], "x", 1), at(251)), unavailable());
    assert_eq!(w.replied(id, &reply(&[grant(1, 1)]), at(252)), Change::Healed);
    assert_eq!(summary(&mut w), "probe=+4");
    submit(&mut w, "x", 253);
}

#[test]
fn those_that_gathered_are_decided_when_the_store_is_given_up() {
    let mut w = worker("deny");
    for _ in 1..crate::worker::breaker::LIMIT {
        submit(&mut w, "x", 0);
        let (id, _) = call(&mut w, 0);
        w.call_failed(id, at(0));
    }
    decisions(&mut w);
    submit(&mut w, "called", 0);
    let (id, _) = call(&mut w, 0);
    submit(&mut w, "gathered", 1);
    w.call_failed(id, at(2));
    assert_eq!(summary(&mut w), "called=! gathered=!");
}

#[test]
fn waiting_requests_and_calls_that_never_return_are_bounded() {
    let mut w = worker("deny");
    for _ in 0..MAX_WAITING {
        w.submit("x", checks(&[0], "x", 1), at(0));
    }
    assert_eq!(w.submit("x", checks(&[0], "x", 1), at(0)), unavailable());
    while w.next_call(at(0)).is_some() {}
    w.tick(at(50));
    assert_eq!(decisions(&mut w).len(), MAX_WAITING);
    w.tick(at(2_000));
    assert!(w.is_idle(), "the lost call is given up");
}

#[test]
fn clients_that_come_and_go_leave_nothing_behind() {
    let mut w = worker("deny");
    submit(&mut w, "stays", 0);
    call(&mut w, 0);
    submit(&mut w, "front", 0);
    for _ in 0..10 * MAX_WAITING {
        let ticket = submit(&mut w, "gone", 0);
        w.cancel(ticket);
    }
    assert!(w.gathering.len() <= 2 * MAX_WAITING && w.waiting.len() == 2);
}

#[test]
fn the_longest_keys_still_fit_a_call_with_returns() {
    let mut w = worker("allow");
    let party = |i: usize| format!("{i:05}{}", "x".repeat(crate::wire::MAX_KEY - 11));
    for i in 0..200 {
        w.submit("x", checks(&[0], &party(i), 1), at(0));
    }
    while let Some(out) = w.next_call(at(6)) {
        let request: ReserveRequest = serde_json::from_slice(&out.body).unwrap();
        let grants: Vec<_> = request.reservations.iter().map(|_| grant(1, 1)).collect();
        // All have gone: every unit goes back.
        for ticket in w.waiting.keys().copied().collect::<Vec<_>>() {
            w.cancel(ticket);
        }
        w.replied(out.id, &reply(&grants), at(6));
    }
    for i in 200..500 {
        w.submit("x", checks(&[0], &party(i), 1), at(7));
    }
    let out = w.next_call(at(7)).unwrap();
    let request: ReserveRequest = serde_json::from_slice(&out.body).unwrap();
    assert_eq!(request.returns.len(), MAX_CALL_RETURNS);
    assert!(request.reservations.len() > 100 && request.reservations[0].key.len() == crate::wire::MAX_KEY);
    assert!(out.body.len() <= crate::wire::MAX_BODY, "{}", out.body.len());
}

#[test]
fn a_call_stays_within_the_stores_bounds() {
    let mut w = worker("allow");
    let mut tickets = Vec::new();
    for i in 0..3_000 {
        let party = format!("{i}{}", "x".repeat(500));
        tickets.push(w.submit("x", checks(&[0], &party, 1), at(0)));
    }
    let mut seen = 0;
    while let Some(out) = w.next_call(at(6)) {
        assert!(out.body.len() <= crate::wire::MAX_BODY);
        let request: ReserveRequest = serde_json::from_slice(&out.body).unwrap();
        assert!(request.reservations.len() <= crate::wire::MAX_ITEMS);
        assert!(request.reservations.iter().all(|r| r.check().is_ok()));
        seen += request.reservations.len();
        let grants: Vec<_> = request.reservations.iter().map(|_| grant(1, 1)).collect();
        w.replied(out.id, &reply(&grants), at(6));
    }
    assert_eq!((seen, decisions(&mut w).len()), (3_000, 3_000));
}
