//! When a worker prefetches units, and how many.

use super::*;

#[test]
fn refill_leaves_with_a_tick_when_half_is_used_and_no_request_waits() {
    let mut w = holding(20);
    assert_eq!(burst(&mut w, 9, 1), 9);
    w.tick(at(2));
    assert!(w.next_call(at(2)).is_none(), "11 of 23 are more than half");
    assert_eq!(burst(&mut w, 1, 3), 1);
    assert!(w.next_call(at(3)).is_none(), "not before a tick");
    w.tick(at(10));
    assert!(w.next_call(at(10)).is_none(), "what is left lasts for 40 ms");
    w.tick(at(20));
    let (id, request) = call(&mut w, 20);
    let asked = &request.reservations[0];
    assert_eq!(
        (asked.want, asked.min, asked.spare),
        (0, 0, 13),
        "23 are expected after 17 ms of silence"
    );
    assert!(asked.check().is_ok());
    assert_eq!(load(&w), (10, 13));
    assert_eq!(burst(&mut w, 10, 21), 10);
    w.tick(at(30));
    assert!(w.next_call(at(30)).is_none(), "one refill at a time");
    // A request finds no units, and is not delayed by a call that no request waits for.
    assert_eq!(burst(&mut w, 1, 31), 0);
    let (exact, request) = call(&mut w, 31);
    assert_eq!((request.reservations[0].want, request.reservations[0].spare), (1, 0));
    answer(&mut w, id, &[brought(13, 1_013)], 32);
    assert_eq!(load(&w), (13, 0));
    answer(&mut w, exact, &[brought(1, 1_014)], 33);
    assert_eq!(summary(&mut w), "x=+8999", "8,986 are left, and 13 are held");
}

#[test]
fn scarce_units_are_left_to_waiting_requests() {
    let mut w = leased();
    burst(&mut w, requests(20), 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[brought(52, 9_993)], 0);
    decisions(&mut w);
    assert_eq!(burst(&mut w, 1, 1), 1, "leased units are spent");
    w.tick(at(10));
    assert!(w.next_call(at(10)).is_none(), "the store prefetches nothing of seven units");
    burst(&mut w, 1, 11);
    let (_, request) = call(&mut w, 11);
    assert_eq!((request.reservations[0].want, request.reservations[0].spare), (1, 0));
}

#[test]
fn refill_near_the_window_end_is_no_larger_than_what_can_be_spent() {
    let mut w = leased();
    burst(&mut w, requests(20), 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[brought_for(51, 51, 9, 60)], 1);
    decisions(&mut w);
    burst(&mut w, 20, 10);
    let (id, request) = call(&mut w, 10);
    assert_eq!(request.reservations[0].spare, 14, "half of 28, since half of the time is left");
    answer(&mut w, id, &[brought_for(20, 71, 9, 50)], 11);
    burst(&mut w, 1, 61);
    assert_eq!(call(&mut w, 61).1.reservations[0].spare, 28, "all, in the window that begins");
}

#[test]
fn lost_refill_is_repeated() {
    let mut w = holding(20);
    burst(&mut w, 15, 1);
    w.tick(at(10));
    let (id, _) = call(&mut w, 10);
    assert_eq!(load(&w), (5, 21));
    w.call_failed(id, at(20));
    assert_eq!(load(&w), (5, 0));
    burst(&mut w, 1, 21);
    w.tick(at(30));
    assert_eq!(call(&mut w, 30).1.reservations[0].spare, 22);
}

#[test]
fn leased_units_are_spent_while_the_breaker_is_open_and_refills_wait() {
    let mut w = holding(20);
    for _ in 0..crate::worker::call::breaker::LIMIT {
        ask(&mut w, "b", &[1], 1, 1_001);
        let (id, _) = call(&mut w, 1_001);
        w.call_failed(id, at(1_001));
    }
    decisions(&mut w);
    assert_eq!(burst(&mut w, 15, 1_002), 15);
    w.tick(at(1_010));
    assert!(w.next_call(at(1_010)).is_none());
    assert_eq!(at_once(ask(&mut w, "x", &[0, 1], 1, 1_011)), "!");
    assert_eq!(load(&w), (5, 0), "the refused request spent nothing");
    assert_eq!(at_once(ask(&mut w, "x", &[0], 6, 1_012)), "!", "more than is held");
    // The first refill afterwards is the probe.
    assert_eq!(burst(&mut w, 4, 1_299), 4);
    w.tick(at(1_300));
    let (id, request) = call(&mut w, 1_300);
    let refill = &request.reservations[0];
    assert_eq!(refill.want, 0);
    assert!(w.calls.breaker.is_probing());
    answer(&mut w, id, &[brought(refill.spare, 1_020)], 1_301);
    assert!(w.calls.breaker.lets_through(at(1_301)));
}

#[test]
fn refills_of_several_counters_gather_and_share_a_call() {
    let mut w = leased();
    let submit = |w: &mut TestWorker, party: &str, ms| {
        let checks = checks_of(&w.config, &[0], party, 1);
        at_once(w.submit("x", checks, at(ms)))
    };
    for party in ["y", "z"] {
        for _ in 0..requests(20) {
            submit(&mut w, party, 0);
        }
    }
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[brought(71, 71), brought(71, 71)], 0);
    decisions(&mut w);
    // `y` runs low first, but has time until 21 ms; `z` spends nearly all at once.
    for (party, units, ms) in [("y", 10, 1), ("z", 18, 9)] {
        for _ in 0..units {
            assert_ne!(submit(&mut w, party, ms), "waiting");
        }
        assert!(w.next_call(at(ms)).is_none());
    }
    w.tick(at(10));
    let (_, request) = call(&mut w, 10);
    let asked: Vec<_> =
        request.reservations.iter().map(|r| (&*r.key, r.want, r.spare > 0)).collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked.iter().all(|(_, want, spare)| *want == 0 && *spare));
}

#[test]
fn refill_joins_a_call_that_leaves_anyway() {
    let mut w = holding(20);
    burst(&mut w, 10, 1);
    ask(&mut w, "other", &[1], 1, 2);
    let (_, request) = call(&mut w, 2);
    let asked: Vec<_> = request.reservations.iter().map(|r| (&*r.key, r.want, r.spare)).collect();
    assert_eq!(asked, [("d:b:{x}", 1, 0), ("d:a:{x}", 0, 14)]);
}
