//! What is counted of decisions.

use super::*;

#[test]
fn one_refused_by_one_policy_is_refused_of_that_one_only() {
    let mut w = worker("deny");
    ask(&mut w, "one", &[0, 1], 1, 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(1, 1), grant(0, 5)], 1);
    assert_eq!(tally(&mut w), "", "not before somebody knows of it");
    assert_eq!(summary(&mut w), "one=-");
    assert!(!w.is_idle(), "a tally waits to be taken");
    assert_eq!(tally(&mut w), "b.refused=1");
    assert_eq!(at_once(ask(&mut w, "two", &[0, 1], 1, 2)), "-");
    assert_eq!(tally(&mut w), "b.refused=1 b.from_ledger=1");
    assert_eq!(returned(&mut w, 10).len(), 1);
}

#[test]
fn one_that_leaves_before_it_knows_is_not_counted() {
    let mut w = worker("deny");
    let ticket = submit(&mut w, "one", 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(1, 1)], 1);
    w.cancel(ticket, at(1));
    assert_eq!((summary(&mut w), tally(&mut w)), (String::new(), String::new()));
}

#[test]
fn a_policy_that_cannot_count_says_so() {
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
fn what_the_worker_cannot_see_is_told() {
    let mut w = worker("deny");
    w.count(1, decision::Outcome::MissingIdentity);
    assert!(!w.is_idle());
    assert_eq!(tally(&mut w), "b.missing_identity=1");
    assert!(w.is_idle());
}
