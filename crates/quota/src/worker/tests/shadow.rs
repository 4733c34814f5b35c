//! Policies that only count.

use super::*;
use crate::config::{Abandoned, Precision};

#[test]
fn shadow_policy_counts_without_delaying_or_refusing() {
    let mut w = worker("deny");
    assert_eq!(at_once(ask(&mut w, "one", &[2], 1, 0)), "counting");
    let (id, request) = call(&mut w, 0);
    assert_eq!((&*request.reservations[0].key, request.reservations[0].shadow), ("d:s:{x}", true));
    answer(&mut w, id, &[grant(1, 5)], 1);
    assert_eq!(summary(&mut w), "one=+0", "its decision comes later, for access logs");
    w.submit("three", checks(&[0, 2], "y", 1), at(3));
    let (id, request) = call(&mut w, 3);
    let shadow: Vec<bool> =
        request.reservations.iter().map(|reservation| reservation.shadow).collect();
    assert_eq!(shadow, [false, true], "the store knows which reservations refuse nothing");
    answer(&mut w, id, &[grant(1, 2), grant(0, 5)], 4);
    assert_eq!(summary(&mut w), "three=+3/~0");
    w.submit("four", checks(&[0, 2], "z", 1), at(5));
    let (id, _) = call(&mut w, 5);
    answer(&mut w, id, &[grant(1, 2), Err("down".into())], 6);
    assert_eq!(summary(&mut w), "four=+3", "its failure does not affect the client");
    assert_eq!(tally(&mut w), "a.admitted=2 s.admitted=1 s.shadow_refused=1 s.store_error=1");
}

#[test]
fn spent_shadow_counter_is_rechecked_once_per_second() {
    let mut w = worker("deny");
    ask(&mut w, "one", &[2], 1, 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(1, 5)], 0);
    assert_eq!(summary(&mut w), "one=+0");
    assert_eq!(at_once(ask(&mut w, "two", &[2], 1, 10)), "+~0");
    assert!(w.next_call(at(10)).is_none());
    // A call for another policy leaves the shadow policy out.
    ask(&mut w, "three", &[0, 2], 1, 11);
    let (id, request) = call(&mut w, 11);
    assert_eq!(request.reservations.iter().map(|r| &*r.key).collect::<Vec<_>>(), ["d:a:{x}"]);
    answer(&mut w, id, &[grant(1, 1)], 12);
    assert_eq!(summary(&mut w), "three=+4/~0");
    assert_eq!(
        tally(&mut w),
        "a.admitted=1 s.admitted=1 s.shadow_refused=2 s.from_ledger=2",
        "refusals from the ledger are counted as such"
    );
    assert_eq!(at_once(ask(&mut w, "probe", &[2], 1, 1_000)), "counting");
    assert_eq!(at_once(ask(&mut w, "next", &[2], 1, 1_001)), "+~0");
}

#[test]
fn shadow_policy_does_not_count_what_an_enforced_policy_refuses() {
    let mut w = worker("deny");
    ask(&mut w, "one", &[0, 2], 1, 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(0, 5), grant(1, 1)], 1);
    assert_eq!(summary(&mut w), "one=-");
    assert_eq!(returned(&mut w, 10), [("d:s:{x}".to_owned(), 1)]);
    assert_eq!(tally(&mut w), "a.refused=1");
}

#[test]
fn failing_store_never_delays_a_request_that_only_shadow_policies_count() {
    let mut w = worker("deny");
    ask(&mut w, "one", &[2], 1, 0);
    let (id, _) = call(&mut w, 0);
    w.call_failed(id, at(5));
    assert_eq!(summary(&mut w), "one=+");
    assert_eq!(tally(&mut w), "s.store_error=1");
}

/// `a` has leased 20 units of 10,000, and `s` is exact.
fn leased() -> TestWorker {
    let mut w = edited("deny", |config| {
        config.policies[0].quota = 10_000;
        config.policies[0].precision =
            Precision::Lease { ahead: Duration::from_millis(100), max: 1000.try_into().unwrap() };
    });
    for _ in 0..51 {
        ask(&mut w, "x", &[0], 1, 0);
    }
    let (id, request) = call(&mut w, 0);
    assert_eq!(request.reservations[0].spare, 20);
    let granted = Grant {
        granted: 71,
        used: 71,
        quota: 10_000,
        reset_ms: 30_000,
        window: 9,
        ..Grant::default()
    };
    answer(&mut w, id, &[Ok(granted)], 0);
    decisions(&mut w);
    w.take_tally();
    w
}

#[test]
fn shadow_policy_does_not_delay_a_request_with_leased_units() {
    let mut w = leased();
    assert_eq!(at_once(ask(&mut w, "one", &[0, 2], 1, 1)), "+9948 counting");
    assert_eq!(tally(&mut w), "a.admitted=1 a.from_ledger=1", "the worker knows that much");
    let (id, request) = call(&mut w, 1);
    assert_eq!(request.reservations.iter().map(|r| &*r.key).collect::<Vec<_>>(), ["d:s:{x}"]);
    answer(&mut w, id, &[grant(0, 5)], 2);
    assert_eq!(summary(&mut w), "one=+~0", "only the result of the shadow policy");
    assert_eq!(tally(&mut w), "s.shadow_refused=1");
    // A counter known to be spent asks no more.
    assert_eq!(at_once(ask(&mut w, "two", &[0, 2], 1, 3)), "+9947/~0");
    // If `b` must ask the store, the shadow policy may ask in the same call.
    assert_eq!(at_once(ask(&mut w, "three", &[0, 1, 2], 1, 1_002)), "waiting");
    let (_, request) = call(&mut w, 1_002);
    assert_eq!(
        request.reservations.iter().map(|r| &*r.key).collect::<Vec<_>>(),
        ["d:b:{x}", "d:s:{x}"]
    );
}

#[test]
fn failing_store_does_not_delay_a_request_with_leased_units() {
    let mut w = leased();
    for _ in 0..crate::worker::call::breaker::LIMIT {
        ask(&mut w, "b", &[1], 1, 1_001);
        let (id, _) = call(&mut w, 1_001);
        w.call_failed(id, at(1_001));
    }
    decisions(&mut w);
    w.take_tally();
    assert_eq!(at_once(ask(&mut w, "one", &[0, 2], 1, 1_002)), "+9948");
    assert_eq!(tally(&mut w), "a.admitted=1 a.from_ledger=1 s.store_error=1");
}

#[test]
fn later_result_of_a_shadow_policy_joins_the_admission() {
    let mut w = leased();
    let Submitted::Counting(mut admission) = ask(&mut w, "one", &[0, 2], 1, 1) else { panic!() };
    let (id, _) = call(&mut w, 1);
    answer(&mut w, id, &[grant(1, 2)], 2);
    let (_, Decision::Admit(counted)) = decisions(&mut w).remove(0) else { panic!() };
    admission.join(counted);
    assert_eq!(brief(&Decision::Admit(admission)), "+9948/3");
}

#[test]
fn uncounted_policies_are_pending_until_the_store_answers() {
    let pending = |admission: &Admission| -> Vec<usize> {
        admission.pending.iter().map(|pending| pending.policy).collect()
    };
    let mut w = leased();
    for (granted, left) in [(Some(1), vec![]), (None, vec![2])] {
        let Submitted::Counting(mut admission) = ask(&mut w, "one", &[2], 1, 1) else { panic!() };
        assert_eq!((pending(&admission), &*admission.pending[0].key), (vec![2], "d:s:{x}"));
        let (id, _) = call(&mut w, 1);
        match granted {
            Some(units) => answer(&mut w, id, &[grant(units, 2)], 2),
            None => w.call_failed(id, at(2)),
        }
        let (_, Decision::Admit(counted)) = decisions(&mut w).remove(0) else { panic!() };
        admission.join(counted);
        assert_eq!(pending(&admission), left, "{granted:?}");
    }
}

#[test]
fn shadow_policy_that_counts_by_status_holds_units_and_waits() {
    let mut w = edited("deny", |config| {
        config.policies[2].count = counting::answered([401], Abandoned::Count)
    });
    assert_eq!(at_once(ask(&mut w, "one", &[2], 1, 0)), "waiting");
}
