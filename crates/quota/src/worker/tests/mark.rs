//! Policies that mark: requests wait for them, and none is refused.

use super::*;
use crate::config::Dialed;
use crate::response::mark;
use crate::worker::telemetry::Counted;

/// Policy `a` enforces, `b` marks, `s` is in shadow mode.
fn marking(on_failure: &str) -> TestWorker {
    edited(on_failure, |config| {
        config.policies[1].mode = Mode::Mark;
        config.marks = true;
    })
}

fn marked(w: &TestWorker, decision: &Decision) -> Option<String> {
    mark::exceeded(w.config(), decision)
}

fn only(w: &mut TestWorker) -> Decision {
    w.next_decision().expect("decided").1
}

fn outcomes(w: &mut TestWorker) -> Vec<(usize, &'static str)> {
    let of = |(counted, _)| match counted {
        Counted::Requests(policy, outcome) => Some((policy, outcome.name())),
        Counted::Calls(_) | Counted::RefusedDocument => None,
    };
    w.take_tally().into_iter().filter_map(of).collect()
}

#[test]
fn request_waits_for_a_marking_policy_and_is_admitted_beyond_its_quota() {
    let mut w = marking("deny");
    assert!(matches!(ask(&mut w, "x", &[0, 1], 1, 0), Submitted::Waiting(_)));
    let (id, request) = call(&mut w, 0);
    let shadow: Vec<bool> = request.reservations.iter().map(|r| r.shadow).collect();
    assert_eq!(shadow, [false, true], "the store counts no refusal");
    answer(&mut w, id, &[grant(1, 1), grant(0, 5)], 1);
    let decision = only(&mut w);
    assert_eq!((brief(&decision).as_str(), marked(&w, &decision)), ("+4/~0", Some("b".to_owned())));
    assert_eq!(outcomes(&mut w), [(0, "admitted"), (1, "marked")]);
    // The spent counter is known now.
    let Submitted::Decided(decision) = ask(&mut w, "y", &[1], 1, 2) else { panic!("waits") };
    assert_eq!((brief(&decision).as_str(), marked(&w, &decision)), ("+~0", Some("b".to_owned())));
    assert_eq!(outcomes(&mut w), [(1, "from_ledger"), (1, "marked")]);
}

#[test]
fn refused_request_and_granted_request_have_no_mark() {
    let mut w = marking("deny");
    for (grants, expected) in
        [([grant(0, 5), grant(0, 5)], "-"), ([grant(1, 1), grant(1, 1)], "+4/4")]
    {
        let mut w = marking("deny");
        ask(&mut w, "x", &[0, 1], 1, 0);
        let (id, _) = call(&mut w, 0);
        answer(&mut w, id, &grants, 1);
        let decision = only(&mut w);
        assert_eq!((brief(&decision).as_str(), marked(&w, &decision)), (expected, None));
        let by_b = outcomes(&mut w).into_iter().filter(|(policy, _)| *policy == 1).count();
        assert_eq!(by_b, usize::from(expected != "-"), "a refused request is not marked");
        let at_once = ask(&mut w, "x", &[0, 1], 1, 2);
        if expected == "-" {
            assert!(matches!(at_once, Submitted::Decided(Decision::Refuse(_))));
            assert_eq!(outcomes(&mut w), [(0, "refused"), (0, "from_ledger")]);
        }
    }
    // A shadow policy that would refuse marks nothing.
    ask(&mut w, "x", &[1, 2], 1, 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(1, 1), grant(0, 5)], 1);
    let decision = only(&mut w);
    assert_eq!((brief(&decision).as_str(), marked(&w, &decision)), ("+4/~0", None));
}

#[test]
fn failed_store_admits_answers_503_or_marks_by_the_local_share() {
    for (on_failure, expected) in [
        ("allow", ["+", "+", "+", "+"]),
        ("deny", ["!", "!", "!", "!"]),
        ("local", ["+", "+~0", "+~0", "+~0"]),
    ] {
        let mut w = marking(on_failure);
        for (n, expected) in expected.into_iter().enumerate() {
            let at = 100 * n as u64;
            let decision = match ask(&mut w, "x", &[1], 1, at) {
                Submitted::Decided(decision) => decision,
                Submitted::Waiting(_) => {
                    let (id, _) = call(&mut w, at);
                    w.call_failed(id, super::at(at + 1));
                    only(&mut w)
                }
                Submitted::Counting(_) => panic!("does not wait"),
            };
            assert_eq!(brief(&decision), expected, "{on_failure} {n}");
            let is_marked = marked(&w, &decision).is_some();
            assert_eq!(is_marked, expected == "+~0", "{on_failure} {n}");
        }
    }
}

#[test]
fn marked_request_counts_with_count_denied_before_its_call_returns() {
    let mut w = edited("allow", |config| {
        config.policies[1].mode = Mode::Mark;
        config.policies[1].count_denied = true;
    });
    ask(&mut w, "one", &[1], 1, 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(0, 6)], 1);
    ask(&mut w, "late", &[1], 1, 2);
    let (id, _) = call(&mut w, 2);
    w.tick(at(52));
    assert_eq!(summary(&mut w), "one=+~0 late=+~0");
    answer(&mut w, id, &[grant(0, 7)], 53);
    assert_eq!(returned(&mut w, 60), []);
}

#[test]
fn document_that_marks_keeps_clients_from_marking_whatever_dials_say() {
    let mark = |mode| Dialed { mode: Some(mode), ..Dialed::default() };
    let none = config("deny");
    assert!(!none.marks);
    assert!(none.dialed(&[Dialed::default(), mark(Mode::Mark)]).marks, "by a dial");
    let text = br#"{"domain":"d","store":{"cluster":"c"},"policies":[
        {"name":"a","partition_by":[],"quota":5,"window":"1m","mode":"mark"}]}"#;
    let config = Config::parse(text).unwrap();
    assert!(config.marks);
    assert!(config.dialed(&[mark(Mode::Off)]).marks);
}
