//! Reserved costs that are replaced by the real ones (`cost: {reserve, settle}`).

use quotagate_protocol::Sliding;

use super::*;
use crate::config::{MissingCost, Settle};
use crate::worker::call::MAX_ADJUSTMENTS;

/// The policies `a` and `s` settle, with quota 5.
fn settling(on_failure: &str) -> TestWorker {
    edited(on_failure, |config| {
        for policy in [0, 2] {
            let (sources, missing) = ([].into(), MissingCost::Reserved);
            config.policies[policy].settle = Some(Arc::new(Settle { sources, missing }));
        }
    })
}

/// A request of `a` with this cost is admitted; `used` units of 5 are in use then.
fn admitted(w: &mut TestWorker, cost: u64, used: u64, ms: u64) -> Held {
    ask(w, "x", &[0], cost, ms);
    let (id, _) = call(w, ms);
    answer(w, id, &[grant(cost, used)], ms);
    let Decision::Admit(mut admission) = decisions(w).remove(0).1 else { panic!("refused") };
    assert!(admission.held.is_empty(), "no answer decides on them");
    admission.unsettled.remove(0)
}

/// A tick passes. The refunds and charges of the next call: key, window and units.
fn adjusted(w: &mut TestWorker, ms: u64) -> [Vec<(String, u64, u64)>; 2] {
    w.tick(at(ms));
    let Some(out) = w.next_call(at(ms)) else { return Default::default() };
    let request: ReserveRequest = serde_json::from_slice(&out.body()).unwrap();
    [request.refunds, request.charges]
        .map(|list| list.into_iter().map(|a| (a.key.to_string(), a.window, a.units)).collect())
}

fn of_a(units: u64) -> Vec<(String, u64, u64)> {
    vec![("d:a:{x}".to_owned(), 9, units)]
}

#[test]
fn lower_cost_refunds_the_rest_and_a_higher_one_is_charged() {
    for (cost, refunds, charges) in
        [(0, of_a(3), vec![]), (1, of_a(2), vec![]), (3, vec![], vec![]), (7, vec![], of_a(4))]
    {
        let mut w = settling("deny");
        let held = admitted(&mut w, 3, 3, 0);
        w.settle(held, cost, at(1));
        assert_eq!(w.calls.has_adjustments(), cost != 3);
        assert_eq!(adjusted(&mut w, 10), [refunds, charges], "{cost}");
        assert_eq!(adjusted(&mut w, 20), [vec![], vec![]], "once");
    }
}

#[test]
fn costs_of_one_window_merge_and_leave_before_the_next_reservation() {
    let mut w = settling("deny");
    for held in [1, 2, 3].map(|used| admitted(&mut w, 1, used, 0)) {
        w.settle(held, 2, at(1));
    }
    ask(&mut w, "next", &[0], 1, 2);
    let (id, request) = call(&mut w, 2);
    let charges: Vec<_> = request.charges.iter().map(|charge| charge.units).collect();
    assert_eq!((charges, request.reservations.len()), (vec![3], 1));
    answer(&mut w, id, &[grant(0, 6)], 3);
    assert_eq!(summary(&mut w), "next=-", "debt refuses");
    assert_eq!(at_once(ask(&mut w, "later", &[0], 1, 4)), "-", "that is remembered");
}

#[test]
fn charge_is_never_sent_after_its_window_or_again_after_a_failed_call() {
    let mut w = settling("deny");
    let held = admitted(&mut w, 1, 1, 0);
    w.settle(held.clone(), 4, at(29_999));
    assert_eq!(adjusted(&mut w, 30_000), [vec![], vec![]], "the window is over");
    let mut w = settling("deny");
    let held = admitted(&mut w, 1, 1, 0);
    w.settle(held, 4, at(1));
    w.tick(at(10));
    let id = w.next_call(at(10)).expect("a charge is due").id;
    w.call_failed(id, at(11));
    assert_eq!(adjusted(&mut w, 20), [vec![], vec![]], "the reservation stands");
    assert!(!w.calls.has_adjustments());
}

#[test]
fn slice_of_a_sliding_window_is_settled_as_long_as_it_may_count() {
    let mut w = edited("deny", |config| {
        let (sources, missing) = ([].into(), MissingCost::Reserved);
        config.policies[0].settle = Some(Arc::new(Settle { sources, missing }));
        config.policies[0].window = Window::Sliding(Sliding::new(60).unwrap());
    });
    let held = admitted(&mut w, 3, 3, 0);
    w.settle(held.clone(), 1, at(62_999));
    assert_eq!(adjusted(&mut w, 62_999)[0], of_a(2), "a window and a slice later");
    w.settle(held, 1, at(63_000));
    assert_eq!(adjusted(&mut w, 63_000), [vec![], vec![]]);
}

#[test]
fn spent_counter_learns_from_costs() {
    let mut w = settling("deny");
    let held: Vec<_> = (3..=5).map(|used| admitted(&mut w, 1, used, 0)).collect();
    assert_eq!(at_once(ask(&mut w, "x", &[0], 1, 1)), "-");
    let [one, two, three] = <[Held; 3]>::try_from(held).unwrap();
    w.settle(one, 0, at(1));
    assert_eq!(at_once(ask(&mut w, "x", &[0], 2, 1)), "-", "one unit is left");
    w.settle(two, 3, at(1));
    assert_eq!(at_once(ask(&mut w, "x", &[0], 1, 1)), "-", "the debt took it");
    w.settle(three, 0, at(1));
    assert_eq!(at_once(ask(&mut w, "x", &[0], 1, 1)), "waiting", "only the store knows");
}

#[test]
fn charges_leave_room_for_refunds_and_are_bounded() {
    let mut w = settling("deny");
    let held = admitted(&mut w, 1, 1, 0);
    for party in 0..5_000 {
        let counter = Counter { key: format!("d:a:{{{party}}}").into(), ..held.counter.clone() };
        for cost in [0, 2] {
            w.settle(Held { counter: counter.clone(), ..held.clone() }, cost, at(1));
        }
    }
    w.tick(at(10));
    let (mut sent, mut calls) = (0, 0);
    while let Some(out) = w.next_call(at(10)) {
        let (refunds, charges) = (out.request.refunds.len(), out.request.charges.len());
        assert!(charges <= MAX_ADJUSTMENTS / 2 && refunds + charges <= MAX_ADJUSTMENTS);
        assert!(refunds > 0 || calls > 0, "refunds have room");
        (sent, calls) = (sent + charges, calls + 1);
        w.replied(out.id, &reply(&[]), at(10));
    }
    assert_eq!(sent, 4096);
}

#[test]
fn shadow_policy_waits_and_settles_and_an_uncounted_request_settles_nothing() {
    let mut w = settling("allow");
    assert_eq!(at_once(ask(&mut w, "one", &[2], 2, 0)), "waiting");
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(2, 2)], 1);
    let Decision::Admit(mut admission) = decisions(&mut w).remove(0).1 else { panic!() };
    w.settle(admission.unsettled.remove(0), 5, at(1));
    assert_eq!(adjusted(&mut w, 10)[1], [("d:s:{x}".to_owned(), 9, 3)]);
    ask(&mut w, "failed", &[0], 2, 20);
    w.tick(at(80));
    let Decision::Admit(admission) = decisions(&mut w).remove(0).1 else { panic!() };
    assert!(admission.uncounted.is_some() && admission.unsettled.is_empty());
}
