//! Requests with different costs.

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
fn no_client_can_fill_a_call_with_different_costs() {
    let mut w = edited("deny", |config| config.policies[0].quota = 1_000);
    for cost in (1..=200).rev() {
        ask(&mut w, "x", &[0], cost, 0);
    }
    let (_, request) = call(&mut w, 0);
    assert_eq!(request.reservations.len(), MAX_COSTS);
    assert_eq!(wanted(&request)[MAX_COSTS - 1], ((1..=193).sum(), 1), "the rest share one");
}

#[test]
fn small_cost_is_admitted_behind_a_large_one_that_does_not_fit() {
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
    assert_eq!(returned(&mut here, 2), [], "no unit was taken without need");
    // So no other worker sees a spent counter.
    ask(&mut elsewhere, "large", &[0], 5, 2);
    ask(&mut elsewhere, "small", &[0], 1, 2);
    assert_eq!(exchange(&mut elsewhere, 2), "large=- small=+1");
    for w in [&mut here, &mut elsewhere] {
        assert_eq!(at_once(ask(w, "large", &[0], 5, 3)), "-", "that is remembered");
        assert_eq!(at_once(ask(w, "small", &[0], 1, 3)), "waiting");
    }
}

#[test]
fn small_cost_takes_units_that_equal_large_costs_cannot_use() {
    let mut w = worker("deny");
    for (who, cost) in [("one", 2), ("two", 2), ("small", 1)] {
        ask(&mut w, who, &[0], cost, 0);
    }
    let (id, _) = call(&mut w, 0);
    // Three units are left: the script grants them all to the sum of four.
    answer(&mut w, id, &[grant(3, 5), grant(0, 5)], 1);
    assert_eq!(summary(&mut w), "one=+1 two=- small=+0");
    assert_eq!(returned(&mut w, 10), []);
}

/// A call for these requests and one of cost three, which leaves before the reply. The reply grants
/// `granted` units, all to the reservation of cost three.
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
fn small_cost_takes_units_of_a_large_one_that_left() {
    assert_eq!(with_one_gone(&[("small", 1)], 3), "small=+2");
    assert_eq!(
        with_one_gone(&[("small", 1), ("large", 3), ("tiny", 1)], 4),
        "small=+3 large=+0 tiny=-"
    );
}

#[test]
fn units_that_a_large_cost_still_needs_are_kept_for_it() {
    assert_eq!(with_one_gone(&[("small", 1), ("large", 3)], 3), "small=- large=+0");
}

#[test]
fn refund_of_one_reservation_is_available_even_if_another_got_nothing() {
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
fn all_costs_share_a_reservation_if_refusals_count() {
    let mut w = edited("deny", |config| config.policies[0].count_denied = true);
    for cost in [2, 1] {
        ask(&mut w, "x", &[0], cost, 0);
    }
    assert_eq!(wanted(&call(&mut w, 0).1), [(3, 1)]);
}
