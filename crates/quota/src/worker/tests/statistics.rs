//! Counts of decisions.

use super::*;

#[test]
fn refusal_counts_only_for_the_policy_that_refused() {
    let mut w = worker("deny");
    ask(&mut w, "one", &[0, 1], 1, 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(1, 1), grant(0, 5)], 1);
    assert_eq!(tally(&mut w), "", "not before the caller takes the decision");
    assert_eq!(summary(&mut w), "one=-");
    assert!(!w.is_idle(), "a tally waits to be taken");
    assert_eq!(tally(&mut w), "b.refused=1");
    assert_eq!(at_once(ask(&mut w, "two", &[0, 1], 1, 2)), "-");
    assert_eq!(tally(&mut w), "b.refused=1 b.from_ledger=1");
    assert_eq!(returned(&mut w, 10).len(), 1);
}

#[test]
fn refusal_without_a_call_says_what_is_remembered_of_the_other_counters() {
    let mut w = worker("deny");
    ask(&mut w, "one", &[0, 1], 1, 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(0, 5), grant(0, 5)], 1);
    submit(&mut w, "two", 1_100);
    let (id, _) = call(&mut w, 1_100);
    answer(&mut w, id, &[grant(0, 5)], 1_101);
    // A request would recheck `b` now, but `a` refuses it without a call.
    let submitted = ask(&mut w, "three", &[0, 1], 1, 1_102);
    let Submitted::Decided(Decision::Refuse(refusal)) = submitted else { panic!("{submitted:?}") };
    assert_eq!(violated(&refusal), [0, 1]);
    assert!(refusal.standings.iter().all(|standing| !standing.by_store));
}

#[test]
fn request_that_leaves_before_its_decision_is_not_counted() {
    let mut w = worker("deny");
    let ticket = submit(&mut w, "one", 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(1, 1)], 1);
    w.cancel(ticket, at(1));
    assert_eq!((summary(&mut w), tally(&mut w)), (String::new(), String::new()));
}

#[test]
fn policy_that_cannot_count_has_a_store_error() {
    for (on_failure, decision) in [("allow", "one=+4"), ("deny", "one=!")] {
        let mut w = worker(on_failure);
        ask(&mut w, "one", &[0, 1], 1, 0);
        let (id, _) = call(&mut w, 0);
        answer(&mut w, id, &[grant(1, 1), Err("down".into())], 1);
        assert_eq!(summary(&mut w), decision);
        let admitted = if on_failure == "allow" { "a.admitted=1 " } else { "" };
        assert_eq!(tally(&mut w), format!("{admitted}b.store_error=1"));
    }
}

#[test]
fn caller_counts_missing_identities() {
    let mut w = worker("deny");
    w.count(1, decision::Outcome::MissingIdentity);
    assert!(!w.is_idle());
    assert_eq!(tally(&mut w), "b.missing_identity=1");
    assert!(w.is_idle());
}
