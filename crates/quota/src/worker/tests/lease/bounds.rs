//! How many units a lease holds, keeps and refunds, to the unit.

use super::*;

#[test]
fn units_taken_back_are_not_kept_when_demand_has_fallen() {
    let mut w = holding(20);
    let Submitted::Waiting(gone) = ask(&mut w, "gone", &[0, 1], 4, 1) else { panic!() };
    call(&mut w, 1);
    assert_eq!(load(&w), (16, 0));
    w.cancel(gone, at(41));
    assert_eq!(load(&w), (16, 0), "10 are expected after 40 ms of silence");
    assert_eq!(w.calls.refunds.take(9, at(41)).iter().map(|r| r.units).sum::<u64>(), 4);
}

#[test]
fn later_reply_does_not_extend_units_of_an_earlier_call() {
    let mut w = holding_until(20, 500);
    ask(&mut w, "large", &[0], 30, 1);
    let (id, request) = call(&mut w, 1);
    assert_eq!(request.reservations[0].spare, 0);
    answer(&mut w, id, &[brought_for(30, 1_030, 9, 30_000)], 2);
    assert_eq!((burst(&mut w, 1, 499), burst(&mut w, 1, 500)), (1, 0));
}

#[test]
fn units_of_another_window_do_not_count_as_remaining() {
    let mut w = holding(20);
    ask(&mut w, "late", &[0], 30, 1);
    let (late, _) = call(&mut w, 1);
    // The next window begins meanwhile, and the lease holds units of it.
    ask(&mut w, "next", &[0], 30, 2);
    let (next, request) = call(&mut w, 7);
    let spare = request.reservations[0].spare;
    answer(&mut w, next, &[brought_for(30 + spare, 100, 10, 60_000)], 8);
    answer(&mut w, late, &[brought_for(30, 2_000, 9, 29_999)], 9);
    let remaining = 9_900 + load(&w).0;
    assert_eq!(summary(&mut w), format!("next=+{remaining} late=+8000"));
}

#[test]
fn waiting_request_prefetches_nothing_while_more_than_half_is_held() {
    let mut w = holding(20);
    assert_eq!(burst(&mut w, 5, 1), 5);
    ask(&mut w, "large", &[0], 30, 2);
    assert_eq!(call(&mut w, 2).1.reservations[0].spare, 0, "15 of 22 are held");
}

#[test]
fn refill_of_two_units_gets_an_item_and_refill_of_one_does_not() {
    for (spent, spare) in [(2, Some(2)), (1, None)] {
        let mut w = edited("deny", |config| {
            config.policies[0].quota = 10_000;
            config.policies[0].precision =
                Precision::Lease { ahead: Duration::from_millis(100), max: 2.try_into().unwrap() };
        });
        burst(&mut w, requests(20), 0);
        let (id, request) = call(&mut w, 0);
        assert_eq!(request.reservations[0].spare, 2);
        answer(&mut w, id, &[brought(requests(20) + 2, 1_000)], 0);
        decisions(&mut w);
        assert_eq!(burst(&mut w, spent, 1), spent);
        w.tick(at(10));
        let refill = w.next_call(at(10)).map(|out| {
            let request: ReserveRequest = serde_json::from_slice(&out.body()).unwrap();
            request.reservations[0].spare
        });
        assert_eq!(refill, spare, "after {spent}");
    }
}

#[test]
fn lease_refunds_more_of_a_contended_counter_near_the_window_end() {
    for (used, kept) in [(1_000, 19), (8_751, 7), (8_749, 19)] {
        let mut w = leased();
        let want = requests(20);
        burst(&mut w, want, 0);
        let (id, _) = call(&mut w, 0);
        answer(&mut w, id, &[brought_for(want + 20, used, 9, 300)], 0);
        decisions(&mut w);
        assert_eq!(burst(&mut w, 1, 202), 1);
        // After 33 ms of silence 12 are expected in 100 ms, and 7 in the 65 ms that are left.
        w.tick(at(235));
        assert_eq!(load(&w), (kept, 0), "{used}");
    }
}

#[test]
fn refilled_counter_is_not_spent_because_another_one_is() {
    let mut w = holding(20);
    burst(&mut w, 10, 1);
    ask(&mut w, "other", &[1], 1, 2);
    let (id, request) = call(&mut w, 2);
    assert_eq!(request.reservations.len(), 2);
    answer(&mut w, id, &[grant(0, 5), brought(14, 1_014)], 3);
    assert_eq!(summary(&mut w), "other=-");
    assert_eq!(
        at_once(ask(&mut w, "large", &[0], 9_500, 4)),
        "waiting",
        "the store may have units again after refunds"
    );
}

#[test]
fn request_that_waited_longer_than_its_leased_units_last_has_none() {
    for (ms, decision) in [(129, "x=+9019/4"), (130, "x=!")] {
        let mut w = holding_until(20, 130);
        ask(&mut w, "x", &[0, 1], 1, 80);
        let (id, request) = call(&mut w, 80);
        assert_eq!(request.reservations.iter().map(|r| &*r.key).collect::<Vec<_>>(), ["d:b:{x}"]);
        answer(&mut w, id, &[grant(1, 1)], ms);
        assert_eq!(summary(&mut w), decision, "{ms}");
    }
}
