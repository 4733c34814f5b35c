//! Policies that only count.

use super::*;

#[test]
fn shadow_counts_without_holding_up_or_refusing() {
    let mut w = worker("deny");
    assert_eq!(at_once(ask(&mut w, "one", &[2], 1, 0)), "counting");
    let (id, request) = call(&mut w, 0);
    assert_eq!(request.reservations[0].key, "d:s:{x}");
    answer(&mut w, id, &[grant(1, 5)], 1);
    assert_eq!(summary(&mut w), "one=+0", "its decision comes later, for access logs");
    w.submit("three", checks(&[0, 2], "y", 1), at(3));
    let (id, _) = call(&mut w, 3);
    answer(&mut w, id, &[grant(1, 2), grant(0, 5)], 4);
    assert_eq!(summary(&mut w), "three=+3/~0");
    w.submit("four", checks(&[0, 2], "z", 1), at(5));
    let (id, _) = call(&mut w, 5);
    answer(&mut w, id, &[grant(1, 2), Outcome::Failed("down".into())], 6);
    assert_eq!(summary(&mut w), "four=+3", "its failure is not the client's either");
    assert_eq!(tally(&mut w), "a.admitted=2 s.admitted=1 s.shadow_refused=1 s.store_error=1");
}

#[test]
fn a_shadow_counter_known_to_be_spent_is_asked_about_once_a_second_only() {
    let mut w = worker("deny");
    ask(&mut w, "one", &[2], 1, 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(1, 5)], 0);
    assert_eq!(summary(&mut w), "one=+0");
    assert_eq!(at_once(ask(&mut w, "two", &[2], 1, 10)), "+~0");
    assert!(w.next_call(at(10)).is_none());
    // With another policy that asks, the shadow one is left out.
    ask(&mut w, "three", &[0, 2], 1, 11);
    let (id, request) = call(&mut w, 11);
    assert_eq!(request.reservations.iter().map(|r| &*r.key).collect::<Vec<_>>(), ["d:a:{x}"]);
    answer(&mut w, id, &[grant(1, 1)], 12);
    assert_eq!(summary(&mut w), "three=+4/~0");
    assert_eq!(
        tally(&mut w),
        "a.admitted=1 s.admitted=1 s.shadow_refused=2 s.from_ledger=2",
        "what is refused from the ledger is counted so"
    );
    assert_eq!(at_once(ask(&mut w, "probe", &[2], 1, 1_000)), "counting");
    assert_eq!(at_once(ask(&mut w, "next", &[2], 1, 1_001)), "+~0");
}

#[test]
fn what_an_enforced_policy_refuses_a_shadow_policy_does_not_count() {
    let mut w = worker("deny");
    ask(&mut w, "one", &[0, 2], 1, 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(0, 5), grant(1, 1)], 1);
    assert_eq!(summary(&mut w), "one=-");
    assert_eq!(returned(&mut w, 10), [("d:s:{x}".to_owned(), 1)]);
    assert_eq!(tally(&mut w), "a.refused=1");
}

#[test]
fn a_request_that_only_shadow_policies_count_is_never_held_up_by_a_store_that_fails() {
    let mut w = worker("deny");
    ask(&mut w, "one", &[2], 1, 0);
    let (id, _) = call(&mut w, 0);
    w.call_failed(id, at(5));
    assert_eq!(summary(&mut w), "one=+");
    assert_eq!(tally(&mut w), "s.store_error=1");
}
