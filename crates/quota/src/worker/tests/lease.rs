//! Units held ahead of need.

use super::*;
use crate::config::Precision;
use crate::worker::lease::MAX_LEASES;

/// `a` and `s` hold 100 ms of their traffic ahead, at most a hundredth of 10,000; `b` is exact.
fn leased() -> TestWorker {
    leased_and(|_| {})
}

fn leased_and(edit: impl FnOnce(&mut Config)) -> TestWorker {
    edited("deny", |config| {
        edit(config);
        for place in [0, 2] {
            config.policies[place].quota = 10_000;
            config.policies[place].precision =
                Precision::Lease { ahead: Duration::from_millis(100), max: 1000.try_into().unwrap() };
        }
    })
}

/// A grant of window 9, which ends 30 s after the grant.
fn brought(granted: u64, used: u64) -> Outcome {
    brought_for(granted, used, 9, 30_000)
}

fn brought_for(granted: u64, used: u64, window: u64, reset_ms: u64) -> Outcome {
    Outcome::Granted(Grant { granted, used, quota: 10_000, reset_ms, window })
}

/// Units of `a` that are held, and on their way.
fn load(worker: &TestWorker) -> (u64, u64) {
    worker.leases.load(&checks_of(&worker.config, &[0], "x", 1)[0].counter)
}

/// So many requests of `a` at once, of which `hits` are served without a call.
fn burst(worker: &mut TestWorker, requests: u64, ms: u64) -> u64 {
    (0..requests).map(|_| u64::from(at_once(ask(worker, "x", &[0], 1, ms)) != "waiting")).sum()
}

/// So many requests at once let a worker expect `units` within the next 100 ms: it judges by a quarter of a second
/// at least, and not by the last request.
fn requests(units: u64) -> u64 {
    units * 5 / 2 + 1
}

/// A worker that holds `units` at 0, after a demand for as many; 1,000 are used.
fn holding(units: u64) -> TestWorker {
    holding_until(units, 30_000)
}

/// The same in a window that ends at `reset_ms`.
fn holding_until(units: u64, reset_ms: u64) -> TestWorker {
    let (mut w, want) = (leased(), requests(units));
    assert_eq!(burst(&mut w, want, 0), 0);
    let (id, request) = call(&mut w, 0);
    let asked = &request.reservations[0];
    assert_eq!((asked.want, asked.min, asked.spare), (want, 1, units.min(100)));
    answer(&mut w, id, &[brought_for(want + asked.spare, 1_000, 9, reset_ms)], 0);
    assert_eq!(decisions(&mut w).len() as u64, want);
    assert_eq!(load(&w), (asked.spare, 0));
    w.take_tally();
    w
}

#[test]
fn what_is_held_admits_without_a_call_and_shows_as_remaining() {
    let mut w = holding(20);
    assert_eq!(at_once(ask(&mut w, "x", &[0], 3, 1)), "+9017", "9,000 are left, and 17 are held");
    assert!(w.next_call(at(1)).is_none());
    assert_eq!(tally(&mut w), "a.admitted=1 a.from_ledger=1");
    assert_eq!(at_once(ask(&mut w, "x", &[0], 18, 1)), "waiting", "more than is held");
}

#[test]
fn a_lone_request_is_counted_exactly() {
    let mut w = leased();
    for (ms, number) in [(0, 1), (1_000, 2)] {
        assert_eq!(burst(&mut w, 1, ms), 0);
        let (id, request) = call(&mut w, ms);
        assert_eq!(request.reservations[0].spare, 0);
        answer(&mut w, id, &[brought(1, number)], ms);
        assert_eq!(load(&w), (0, 0));
    }
}

#[test]
fn a_refill_leaves_with_a_tick_when_half_is_used_and_nobody_waits_for_it() {
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
    assert_eq!((asked.want, asked.min, asked.spare), (0, 0, 13), "23 are expected after 17 ms of silence");
    assert!(asked.check().is_ok());
    assert_eq!(load(&w), (10, 13));
    assert_eq!(burst(&mut w, 10, 21), 10);
    w.tick(at(30));
    assert!(w.next_call(at(30)).is_none(), "one refill at a time");
    // A request finds nothing, and is not held up by a call that nobody waits for.
    assert_eq!(burst(&mut w, 1, 31), 0);
    let (exact, request) = call(&mut w, 31);
    assert_eq!((request.reservations[0].want, request.reservations[0].spare), (1, 0));
    answer(&mut w, id, &[brought(13, 1_013)], 32);
    assert_eq!(load(&w), (13, 0));
    answer(&mut w, exact, &[brought(1, 1_014)], 33);
    assert_eq!(summary(&mut w), "x=+8999", "8,986 are left, and 13 are held");
}

#[test]
fn units_held_and_on_their_way_stay_within_a_hundredth_of_the_quota() {
    let mut w = holding(300);
    assert_eq!(load(&w), (100, 0));
    assert_eq!(burst(&mut w, 60, 1), 60);
    w.tick(at(1));
    let (id, request) = call(&mut w, 1);
    assert_eq!(request.reservations[0].spare, 60);
    assert_eq!(load(&w), (40, 60));
    // An override has made it a tenth meanwhile.
    let fewer = Outcome::Granted(Grant { granted: 60, used: 400, quota: 1_000, reset_ms: 30_000, window: 9 });
    answer(&mut w, id, &[fewer], 2);
    assert_eq!(load(&w), (10, 0));
    assert_eq!(returned(&mut w, 10), [("d:a:{x}".to_owned(), 90)]);
}

#[test]
fn a_unit_is_spent_until_its_calls_dispatch_plus_the_reset_and_dropped_then() {
    for (ms, hits) in [(999, 1), (1_000, 0)] {
        let mut w = leased();
        burst(&mut w, requests(20), 0);
        let (id, _) = call(&mut w, 0);
        answer(&mut w, id, &[brought_for(71, 71, 9, 1_000)], 30);
        assert_eq!(burst(&mut w, 1, ms), hits, "{ms}");
        assert_eq!(load(&w).0 > 0, ms < 1_000);
    }
}

#[test]
fn of_several_calls_units_none_is_spent_longer_than_its_own_call_allows() {
    let mut w = holding(20);
    burst(&mut w, 15, 1);
    w.tick(at(10));
    let (id, _) = call(&mut w, 10);
    // This one says that the window ends after 500 ms, the one before after 30 s.
    answer(&mut w, id, &[brought_for(20, 1_020, 9, 500)], 11);
    assert_eq!(burst(&mut w, 1, 509), 1);
    assert_eq!(burst(&mut w, 1, 510), 0);
}

#[test]
fn units_go_back_when_traffic_ebbs_and_all_of_them_when_it_stops() {
    let mut w = holding(20);
    let mut back = 0;
    for ms in (0..=450).step_by(10) {
        back += returned(&mut w, ms).iter().map(|(_, units)| units).sum::<u64>();
        let expected = match ms {
            0..50 => 20,
            50..150 => 8,
            150..450 => 2,
            _ => 0,
        };
        assert_eq!((load(&w).0, back), (expected, 20 - expected), "{ms}");
    }
    assert_eq!(w.leases.len(), 0);
}

#[test]
fn what_a_request_does_not_spend_is_held_again_up_to_the_target() {
    let mut w = holding(20);
    // Refused by another policy at once: `b` is known to be spent.
    ask(&mut w, "b", &[1], 1, 1);
    let (id, _) = call(&mut w, 1);
    answer(&mut w, id, &[grant(1, 5)], 1);
    assert_eq!(at_once(ask(&mut w, "x", &[0, 1], 4, 1)), "-");
    assert_eq!((load(&w), returned(&mut w, 2)), ((20, 0), vec![]));
    assert_eq!(summary(&mut w), "b=+0");
    // One waits for `b` with units of `a` in hand, and leaves.
    let mut w = holding(20);
    let Submitted::Waiting(gone) = ask(&mut w, "gone", &[0, 1], 4, 1) else { panic!() };
    let (id, request) = call(&mut w, 1);
    assert_eq!(request.reservations.iter().map(|r| &*r.key).collect::<Vec<_>>(), ["d:b:{x}"]);
    assert_eq!(load(&w), (16, 0));
    w.cancel(gone, at(1));
    assert_eq!(load(&w), (20, 0));
    // Another is refused when the call returns.
    ask(&mut w, "refused", &[0, 1], 4, 2);
    answer(&mut w, id, &[grant(4, 4)], 2);
    let (id, _) = call(&mut w, 2);
    answer(&mut w, id, &[grant(0, 4)], 3);
    assert_eq!((summary(&mut w), load(&w)), ("refused=-".to_owned(), (20, 0)));
    // Long after, nobody needs them any more: they go to the store, not to the lease.
    let mut w = holding(20);
    let Submitted::Waiting(gone) = ask(&mut w, "gone", &[0, 1], 4, 4) else { panic!() };
    call(&mut w, 4);
    w.cancel(gone, at(2_000));
    w.tick(at(2_000));
    assert_eq!(load(&w), (0, 0));
    assert_eq!(w.returns.take(9, at(2_000)).iter().map(|r| r.units).sum::<u64>(), 20);
}

#[test]
fn one_that_waits_takes_only_units_that_outlast_its_wait() {
    let mut w = holding_until(20, 130);
    for (ms, reservations) in [(80, 1), (81, 2)] {
        ask(&mut w, "x", &[0, 1], 1, ms);
        let out = w.next_call(at(ms)).unwrap();
        let request: ReserveRequest = serde_json::from_slice(&out.body).unwrap();
        assert_eq!(request.reservations.len(), reservations, "{ms}");
        w.call_failed(out.id, at(ms));
    }
}

#[test]
fn little_is_left_for_those_who_wait() {
    let mut w = leased();
    burst(&mut w, requests(20), 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[brought(52, 9_993)], 0);
    decisions(&mut w);
    assert_eq!(burst(&mut w, 1, 1), 1, "what is held is spent");
    w.tick(at(10));
    assert!(w.next_call(at(10)).is_none(), "of seven units the store grants none ahead");
    burst(&mut w, 1, 11);
    let (_, request) = call(&mut w, 11);
    assert_eq!((request.reservations[0].want, request.reservations[0].spare), (1, 0));
}

#[test]
fn the_last_units_of_a_spent_counter_are_spent() {
    let mut w = leased();
    burst(&mut w, requests(20), 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[brought(53, 10_000)], 0);
    decisions(&mut w);
    assert_eq!(burst(&mut w, 2, 1), 2);
    assert_eq!(at_once(ask(&mut w, "x", &[0], 1, 1)), "-");
}

#[test]
fn towards_the_end_of_a_window_no_more_is_asked_for_than_can_be_spent() {
    let mut w = leased();
    burst(&mut w, requests(20), 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[brought_for(51, 51, 9, 60)], 1);
    decisions(&mut w);
    burst(&mut w, 20, 10);
    let (id, request) = call(&mut w, 10);
    assert_eq!(request.reservations[0].spare, 14, "half of 28, for half of the time is left");
    answer(&mut w, id, &[brought_for(20, 71, 9, 50)], 11);
    burst(&mut w, 1, 61);
    assert_eq!(call(&mut w, 61).1.reservations[0].spare, 28, "of the window that begins, all");
}

#[test]
fn a_late_reply_of_an_earlier_window_fills_no_lease() {
    let mut w = holding(20);
    burst(&mut w, 15, 1);
    w.tick(at(10));
    let (late, _) = call(&mut w, 10);
    burst(&mut w, 6, 11);
    let (next, _) = call(&mut w, 11);
    answer(&mut w, next, &[brought_for(1, 1, 10, 60_000)], 12);
    assert_eq!(load(&w), (0, 21), "what was held was of the window before");
    answer(&mut w, late, &[brought(21, 1_021)], 13);
    assert_eq!(load(&w), (0, 0));
    assert_eq!(returned(&mut w, 20), [("d:a:{x}".to_owned(), 21)]);
}

#[test]
fn a_refill_that_is_lost_is_asked_for_again() {
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
fn what_is_held_is_spent_while_the_store_is_given_up_and_refills_wait() {
    let mut w = holding(20);
    for _ in 0..crate::worker::breaker::LIMIT {
        ask(&mut w, "b", &[1], 1, 1);
        let (id, _) = call(&mut w, 1);
        w.call_failed(id, at(1));
    }
    decisions(&mut w);
    assert_eq!(burst(&mut w, 15, 2), 15);
    w.tick(at(10));
    assert!(w.next_call(at(10)).is_none());
    assert_eq!(at_once(ask(&mut w, "x", &[0, 1], 1, 11)), "!");
    assert_eq!(load(&w), (5, 0), "it spent nothing");
    assert_eq!(at_once(ask(&mut w, "x", &[0], 6, 12)), "!", "more than is held");
    // The first refill afterwards is the probe.
    assert_eq!(burst(&mut w, 4, 299), 4);
    w.tick(at(300));
    let (id, request) = call(&mut w, 300);
    assert_eq!(request.reservations[0].want, 0);
    assert_eq!(answer(&mut w, id, &[brought(20, 1_020)], 301), Change::Healed);
}

#[test]
fn units_that_arrive_elsewhere_serve_one_whose_own_call_fails() {
    let mut w = holding(20);
    burst(&mut w, 15, 1);
    w.tick(at(10));
    let (refill, _) = call(&mut w, 10);
    ask(&mut w, "waits", &[0], 6, 11);
    let (own, _) = call(&mut w, 11);
    answer(&mut w, refill, &[brought(21, 1_021)], 12);
    w.call_failed(own, at(13));
    assert_eq!(summary(&mut w), "waits=+8999");
    assert_eq!(load(&w), (20, 0));
}

#[test]
fn a_shadow_policy_holds_units_ahead_too() {
    let mut w = leased();
    for _ in 0..requests(20) {
        assert_eq!(at_once(ask(&mut w, "x", &[2], 1, 0)), "counting");
    }
    let (id, request) = call(&mut w, 0);
    assert_eq!(request.reservations[0].spare, 20);
    answer(&mut w, id, &[brought(71, 1_000)], 0);
    decisions(&mut w);
    assert_eq!(at_once(ask(&mut w, "x", &[2], 1, 1)), "+9019");
}

#[test]
fn units_held_until_the_answer_may_come_from_a_lease_and_return_to_it() {
    let mut w = leased_and(|config| config.policies[0].count = Count::Statuses([401].into()));
    burst(&mut w, requests(20), 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[brought(71, 71)], 0);
    decisions(&mut w);
    let Submitted::Decided(Decision::Admit(mut admission)) = ask(&mut w, "x", &[0], 2, 1) else { panic!() };
    assert_eq!(load(&w), (18, 0));
    let held = admission.answered(Some(200), &w.config);
    w.give_back(held, at(1));
    assert_eq!((load(&w), returned(&mut w, 2)), ((20, 0), vec![]));
}

#[test]
fn no_more_counters_are_tracked_than_allowed_and_idle_ones_make_room() {
    let mut w = leased();
    for i in 0..MAX_LEASES as u64 + 100 {
        let party = format!("{i}");
        let checks = checks_of(&w.config, &[0], &party, 1);
        w.submit("x", checks, at(0));
    }
    assert_eq!(w.leases.len(), MAX_LEASES);
    w.tick(at(100));
    assert_eq!(w.leases.len(), MAX_LEASES);
    w.tick(at(200));
    assert_eq!(w.leases.len(), 0);
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
    let asked: Vec<_> = request.reservations.iter().map(|r| (&*r.key, r.want, r.spare > 0)).collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked.iter().all(|(_, want, spare)| *want == 0 && *spare));
}

#[test]
fn a_refill_rides_with_a_call_that_leaves_anyway() {
    let mut w = holding(20);
    burst(&mut w, 10, 1);
    ask(&mut w, "other", &[1], 1, 2);
    let (_, request) = call(&mut w, 2);
    let asked: Vec<_> = request.reservations.iter().map(|r| (&*r.key, r.want, r.spare)).collect();
    assert_eq!(asked, [("d:b:{x}", 1, 0), ("d:a:{x}", 0, 14)]);
}

#[test]
fn one_who_leaves_long_after_anything_was_heard_puts_nothing_into_a_lease_that_is_over() {
    let mut w = holding_until(20, 130);
    let Submitted::Waiting(gone) = ask(&mut w, "gone", &[0, 1], 4, 1) else { panic!() };
    w.cancel(gone, at(200));
    assert_eq!(load(&w), (0, 0));
}
