//! Units that a worker prefetches.

mod bounds;
mod refills;
mod story;

use super::*;
use crate::config::{Abandoned, Precision};
use crate::worker::lease::MAX_LEASES;

/// `a` and `s` lease 100 ms of their traffic, at most a hundredth of 10,000. `b` is exact.
fn leased() -> TestWorker {
    leased_and(|_| {})
}

fn leased_and(edit: impl FnOnce(&mut Config)) -> TestWorker {
    edited("deny", |config| {
        edit(config);
        for index in [0, 2] {
            config.policies[index].quota = 10_000;
            config.policies[index].precision = Precision::Lease {
                ahead: Duration::from_millis(100),
                max: 1000.try_into().unwrap(),
            };
        }
    })
}

/// A grant of window 9, which ends 30 s after the grant.
fn brought(granted: u64, used: u64) -> Granted {
    brought_for(granted, used, 9, 30_000)
}

fn brought_for(granted: u64, used: u64, window: u64, reset_ms: u64) -> Granted {
    Ok(Grant { granted, used, quota: 10_000, reset_ms, window, ..Grant::default() })
}

/// Units of `a` that are held, and that are under way.
fn load(worker: &TestWorker) -> (u64, u64) {
    worker.leases.load(&checks_of(&worker.config, &[0], "x", 1)[0].counter)
}

/// Sends this many requests for `a` at once. Returns how many are served without a call.
fn burst(worker: &mut TestWorker, requests: u64, ms: u64) -> u64 {
    (0..requests).map(|_| u64::from(at_once(ask(worker, "x", &[0], 1, ms)) != "waiting")).sum()
}

/// After this many requests at once, a worker expects `units` within the next 100 ms. Its estimate
/// covers at least a quarter of a second, and leaves the last request out.
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
fn leased_units_admit_without_a_call_and_show_as_remaining() {
    let mut w = holding(20);
    assert_eq!(at_once(ask(&mut w, "x", &[0], 3, 1)), "+9017", "9,000 are left, and 17 are held");
    assert!(w.next_call(at(1)).is_none());
    assert_eq!(tally(&mut w), "a.admitted=1 a.from_ledger=1");
    assert_eq!(at_once(ask(&mut w, "x", &[0], 18, 1)), "waiting", "more than is held");
}

#[test]
fn lone_request_is_counted_exactly() {
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
fn units_held_and_under_way_stay_within_a_hundredth_of_the_quota() {
    let mut w = holding(300);
    assert_eq!(load(&w), (100, 0));
    assert_eq!(burst(&mut w, 60, 1), 60);
    w.tick(at(1));
    let (id, request) = call(&mut w, 1);
    assert_eq!(request.reservations[0].spare, 60);
    assert_eq!(load(&w), (40, 60));
    // A runtime override has cut the quota to a tenth meanwhile.
    let fewer = Ok(Grant {
        granted: 60,
        used: 400,
        quota: 1_000,
        reset_ms: 30_000,
        window: 9,
        ..Grant::default()
    });
    answer(&mut w, id, &[fewer], 2);
    assert_eq!(load(&w), (10, 0));
    assert_eq!(returned(&mut w, 10), [("d:a:{x}".to_owned(), 90)]);
}

#[test]
fn unit_expires_at_the_dispatch_of_its_call_plus_reset() {
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
fn no_unit_is_spent_longer_than_its_own_call_allows() {
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
fn units_are_refunded_as_traffic_falls_and_all_of_them_when_it_stops() {
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
fn unspent_units_return_to_the_lease_up_to_its_target() {
    let mut w = holding(20);
    // Another policy refuses at once: `b` is known to be spent.
    ask(&mut w, "b", &[1], 1, 1);
    let (id, _) = call(&mut w, 1);
    answer(&mut w, id, &[grant(1, 5)], 1);
    assert_eq!(at_once(ask(&mut w, "x", &[0, 1], 4, 1)), "-");
    assert_eq!((load(&w), returned(&mut w, 2)), ((20, 0), vec![]));
    assert_eq!(summary(&mut w), "b=+0");
    // A request has units of `a`, waits for `b`, and leaves.
    let mut w = holding(20);
    let Submitted::Waiting(gone) = ask(&mut w, "gone", &[0, 1], 4, 1) else { panic!() };
    let (id, request) = call(&mut w, 1);
    assert_eq!(request.reservations.iter().map(|r| &*r.key).collect::<Vec<_>>(), ["d:b:{x}"]);
    assert_eq!(load(&w), (16, 0));
    w.cancel(gone, at(1));
    assert_eq!(load(&w), (20, 0));
    // Another is refused when the call refunds.
    ask(&mut w, "refused", &[0, 1], 4, 2);
    answer(&mut w, id, &[grant(4, 4)], 2);
    let (id, _) = call(&mut w, 2);
    answer(&mut w, id, &[grant(0, 4)], 3);
    assert_eq!((summary(&mut w), load(&w)), ("refused=-".to_owned(), (20, 0)));
    // Long after, no request needs the units: the store gets them, not the lease.
    let mut w = holding(20);
    let Submitted::Waiting(gone) = ask(&mut w, "gone", &[0, 1], 4, 4) else { panic!() };
    call(&mut w, 4);
    w.cancel(gone, at(2_000));
    w.tick(at(2_000));
    assert_eq!(load(&w), (0, 0));
    assert_eq!(w.calls.refunds.take(9, at(2_000)).iter().map(|r| r.units).sum::<u64>(), 20);
}

#[test]
fn waiting_request_takes_only_units_that_outlast_its_deadline() {
    let mut w = holding_until(20, 130);
    for (ms, reservations) in [(80, 1), (81, 2)] {
        ask(&mut w, "x", &[0, 1], 1, ms);
        let out = w.next_call(at(ms)).unwrap();
        let request: ReserveRequest = serde_json::from_slice(&out.body()).unwrap();
        assert_eq!(request.reservations.len(), reservations, "{ms}");
        w.call_failed(out.id, at(ms));
    }
}

#[test]
fn last_leased_units_of_a_spent_counter_are_used() {
    let mut w = leased();
    burst(&mut w, requests(20), 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[brought(53, 10_000)], 0);
    decisions(&mut w);
    assert_eq!(burst(&mut w, 2, 1), 2);
    assert_eq!(at_once(ask(&mut w, "x", &[0], 1, 1)), "-");
}

#[test]
fn late_reply_of_an_earlier_window_fills_no_lease() {
    let mut w = holding(20);
    burst(&mut w, 15, 1);
    w.tick(at(10));
    let (late, _) = call(&mut w, 10);
    burst(&mut w, 6, 11);
    let (next, _) = call(&mut w, 11);
    answer(&mut w, next, &[brought_for(1, 1, 10, 60_000)], 12);
    assert_eq!(load(&w), (0, 21), "the held units were of the window before");
    answer(&mut w, late, &[brought(21, 1_021)], 13);
    assert_eq!(load(&w), (0, 0));
    assert_eq!(returned(&mut w, 20), [("d:a:{x}".to_owned(), 21)]);
}

#[test]
fn refilled_units_serve_a_request_whose_own_call_fails() {
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
fn shadow_policy_leases_units_too() {
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
fn units_held_until_the_answer_come_from_a_lease_and_return_to_it() {
    let mut w =
        leased_and(|config| config.policies[0].count = counting::answered([401], Abandoned::Count));
    burst(&mut w, requests(20), 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[brought(71, 71)], 0);
    decisions(&mut w);
    let Submitted::Decided(Decision::Admit(mut admission)) = ask(&mut w, "x", &[0], 2, 1) else {
        panic!()
    };
    assert_eq!(load(&w), (18, 0));
    let held = admission.count_response(counting::http(200), &w.config);
    w.refund(held, at(1));
    assert_eq!((load(&w), returned(&mut w, 2)), ((20, 0), vec![]));
}

#[test]
fn leases_are_bounded_and_idle_ones_are_dropped() {
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
fn client_that_leaves_late_adds_nothing_to_an_expired_lease() {
    let mut w = holding_until(20, 130);
    let Submitted::Waiting(gone) = ask(&mut w, "gone", &[0, 1], 4, 1) else { panic!() };
    w.cancel(gone, at(200));
    assert_eq!(load(&w), (0, 0));
}

#[test]
fn refusal_undoes_the_lease_of_the_same_counter_with_the_same_quota() {
    let mut w = holding(20);
    let leased = ask_checks(&w);
    let mut other = leased.clone();
    other.counter.quota = 0;
    assert_eq!(load(&w), (20, 0));
    let refused = w.submit("x", vec![other, leased], at(1));
    assert!(matches!(refused, Submitted::Decided(Decision::Refuse(_))), "{refused:?}");
    assert_eq!(load(&w), (20, 0), "a refused request spends nothing");
}

fn ask_checks(worker: &TestWorker) -> Check {
    checks_of(&worker.config, &[0], "x", 1).remove(0)
}
