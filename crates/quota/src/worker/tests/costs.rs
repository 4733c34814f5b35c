//! Requests that cost differently.

use super::*;
use crate::testing::invariants::ModelStore;
use crate::worker::call::MAX_COSTS;

/// Each reservation's `want` and `min`.
fn wanted(request: &ReserveRequest) -> Vec<(u64, u64)> {
    request.reservations.iter().map(|r| (r.want, r.min)).collect()
}

#[test]
fn equal_costs_share_a_reservation_and_different_ones_do_not() {
    let mut w = worker("deny");
    for cost in [2, 1, 2, 5, 1] {
        ask(&mut w, "x", &[0], cost, 0);
    }
    assert_eq!(wanted(&call(&mut w, 0).1), [(4, 2), (2, 1), (5, 5)]);
}

#[test]
fn no_client_fills_a_call_with_its_costs() {
    let mut w = edited("deny", |config| config.policies[0].quota = 1_000);
    for cost in (1..=200).rev() {
        ask(&mut w, "x", &[0], cost, 0);
    }
    let (_, request) = call(&mut w, 0);
    assert_eq!(request.reservations.len(), MAX_COSTS);
    assert_eq!(wanted(&request)[MAX_COSTS - 1], ((1..=193).sum(), 1), "the rest share one");
}

#[test]
fn a_small_cost_is_admitted_behind_a_large_one_for_which_too_little_is_left() {
    let (mut store, mut here, mut elsewhere) =
        (ModelStore::default(), worker("deny"), worker("deny"));
    let mut exchange = |w: &mut TestWorker, ms| {
        let (id, request) = call(w, ms);
        let reply = serde_json::to_vec(&store.carry_out(&request, 1_000_000 + ms)).unwrap();
        w.replied(id, &reply, at(ms));
        summary(w)
    };
    ask(&mut here, "two", &[0], 2, 0);
    assert_eq!(exchange(&mut here, 0), "two=+3");
    ask(&mut here, "large", &[0], 5, 1);
    ask(&mut here, "small", &[0], 1, 1);
    assert_eq!(exchange(&mut here, 1), "large=- small=+2");
    assert_eq!(returned(&mut here, 2), [], "nothing was taken in vain");
    // So nobody else hears of a counter that is spent.
    ask(&mut elsewhere, "large", &[0], 5, 2);
    ask(&mut elsewhere, "small", &[0], 1, 2);
    assert_eq!(exchange(&mut elsewhere, 2), "large=- small=+1");
    for w in [&mut here, &mut elsewhere] {
        assert_eq!(at_once(ask(w, "large", &[0], 5, 3)), "-", "that is remembered");
        assert_eq!(at_once(ask(w, "small", &[0], 1, 3)), "waiting");
    }
}

#[test]
fn a_small_cost_takes_what_equal_large_ones_cannot_use() {
    let mut w = worker("deny");
    for (who, cost) in [("one", 2), ("two", 2), ("small", 1)] {
        ask(&mut w, who, &[0], cost, 0);
    }
    let (id, _) = call(&mut w, 0);
    // Three are left: the script grants them all to the sum of four.
    answer(&mut w, id, &[grant(3, 5), grant(0, 5)], 1);
    assert_eq!(summary(&mut w), "one=+1 two=- small=+0");
    assert_eq!(returned(&mut w, 10), []);
}

/// A call for a request that costs three and leaves before the reply, and for these; it brings
/// `granted` units, all for the cost of three.
fn with_one_gone(others: &[(&'static str, u64)], granted: u64) -> String {
    let mut w = worker("deny");
    let Submitted::Waiting(gone) = ask(&mut w, "gone", &[0], 3, 0) else { panic!() };
    for (who, cost) in others {
        ask(&mut w, who, &[0], *cost, 0);
    }
    let (id, _) = call(&mut w, 0);
    w.cancel(gone, at(0));
    answer(&mut w, id, &[grant(granted, 5), grant(0, 5)], 1);
    summary(&mut w)
}

#[test]
fn a_small_cost_takes_what_nobody_needs_of_a_large_one_that_is_gone() {
    assert_eq!(with_one_gone(&[("small", 1)], 3), "small=+2");
    assert_eq!(
        with_one_gone(&[("small", 1), ("large", 3), ("tiny", 1)], 4),
        "small=+3 large=+0 tiny=-"
    );
}

#[test]
fn what_a_large_cost_still_needs_is_not_lent() {
    assert_eq!(with_one_gone(&[("small", 1), ("large", 3)], 3), "small=- large=+0");
}

#[test]
fn what_goes_back_of_one_reservation_may_be_asked_for_although_another_found_nothing() {
    let mut w = worker("deny");
    ask(&mut w, "one", &[0], 2, 0);
    let Submitted::Waiting(gone) = ask(&mut w, "gone", &[0], 2, 0) else { panic!() };
    ask(&mut w, "three", &[0], 3, 0);
    let (id, _) = call(&mut w, 0);
    w.cancel(gone, at(0));
    answer(&mut w, id, &[grant(4, 5), grant(0, 5)], 1);
    assert_eq!(summary(&mut w), "one=+2 three=-");
    assert_eq!(at_once(ask(&mut w, "two", &[0], 2, 2)), "waiting");
    assert_eq!(at_once(ask(&mut w, "three", &[0], 3, 2)), "-");
}

#[test]
fn where_refusals_count_all_costs_share_a_reservation() {
    let mut w = edited("deny", |config| config.policies[0].count_denied = true);
    for cost in [2, 1] {
        ask(&mut w, "x", &[0], cost, 0);
    }
    assert_eq!(wanted(&call(&mut w, 0).1), [(3, 1)]);
}
