//! Which requests count: by the status of their answer (`count: {status}`), and refused ones
//! (`count_denied`).

use quotagate_protocol::MAX_UNITS;

use super::*;
use crate::config::{Abandoned, CountedResponses};
use crate::exchange::counting::ResponseEvent;

pub(super) fn answered(statuses: impl Into<Box<[u16]>>, abandoned: Abandoned) -> Count {
    Count::Responses(CountedResponses {
        statuses: statuses.into(),
        abandoned,
        ..CountedResponses::default()
    })
}

pub(super) fn http(status: u16) -> ResponseEvent {
    ResponseEvent::headers(status, None, None, true)
}

fn by_status() -> TestWorker {
    edited("deny", |config| {
        config.policies[0].count = answered([401, 403], Abandoned::Refund);
        config.policies[2].count = answered([401], Abandoned::Count);
    })
}

fn admissions(worker: &mut TestWorker) -> Vec<Admission> {
    let admitted = |(_, decision)| {
        if let Decision::Admit(admission) = decision { Some(admission) } else { None }
    };
    decisions(worker).into_iter().filter_map(admitted).collect()
}

#[test]
fn five_concurrent_wrong_passwords_do_not_become_six() {
    let mut w = by_status();
    for _ in 0..6 {
        ask(&mut w, "x", &[0], 1, 0);
    }
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(5, 5)], 1);
    let mut running = admissions(&mut w);
    assert_eq!(running.iter().map(|a| a.held[0].units.amount).collect::<Vec<_>>(), [1; 5]);
    assert_eq!(at_once(ask(&mut w, "six", &[0], 1, 2)), "-");
    // One password was right, one answer broke off, and the other passwords were wrong.
    let endings =
        [(http(200), 1, 5), (ResponseEvent::Abandoned, 1, 4), (http(401), 0, 2), (http(403), 0, 1)];
    for (ending, back, remaining) in endings {
        let mut admission = running.remove(0);
        let held = admission.count_response(ending, &w.config);
        assert_eq!(
            (held.len(), admission.standings[0].balance.remaining),
            (back, remaining),
            "{ending:?}"
        );
        assert!(admission.count_response(ending, &w.config).is_empty(), "once");
        w.refund(held, at(2));
    }
    for _ in 0..2 {
        assert_eq!(at_once(ask(&mut w, "again", &[0], 1, 3)), "waiting", "refunds need no recheck");
    }
    let (id, request) = call(&mut w, 3);
    assert_eq!(
        (request.refunds[0].units, request.refunds[0].window, request.reservations[0].want),
        (2, 9, 2)
    );
    answer(&mut w, id, &[grant(2, 5)], 4);
    assert_eq!(summary(&mut w), "again=+1 again=+0");
    assert_eq!(returned(&mut w, 20), []);
}

#[test]
fn abandoned_request_counts_unless_the_policy_refunds_it() {
    for (abandoned, refunds) in [(Abandoned::Count, 0), (Abandoned::Refund, 1)] {
        let mut w = edited("deny", |config| config.policies[0].count = answered([401], abandoned));
        ask(&mut w, "x", &[0], 1, 0);
        let (id, _) = call(&mut w, 0);
        answer(&mut w, id, &[grant(1, 3)], 1);
        let mut admission = admissions(&mut w).remove(0);
        let held = admission.count_response(ResponseEvent::Abandoned, &w.config);
        assert_eq!(
            (held.len(), admission.standings[0].balance.remaining),
            (refunds, 2 + refunds as u64)
        );
        assert!(admission.held.is_empty(), "settled");
        w.refund(held, at(1));
        assert_eq!(returned(&mut w, 10).len(), refunds, "{abandoned:?}");
    }
}

#[test]
fn units_stay_held_until_trailers_carry_the_grpc_status() {
    let count = CountedResponses {
        statuses: [401].into(),
        grpc_statuses: [16].into(),
        ..CountedResponses::default()
    };
    let mut w = edited("deny", |config| config.policies[0].count = Count::Responses(count.clone()));
    for _ in 0..3 {
        ask(&mut w, "x", &[0], 1, 0);
    }
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(3, 3)], 1);
    let begun = ResponseEvent::headers(200, None, Some(b"application/grpc"), false);
    let ends = [
        (ResponseEvent::Trailers(0), 1),
        (ResponseEvent::Trailers(16), 0),
        (ResponseEvent::Abandoned, 0),
    ];
    for (mut admission, (ending, refunds)) in admissions(&mut w).into_iter().zip(ends) {
        assert!(admission.counts_by_grpc(&w.config));
        assert!(admission.count_response(begun, &w.config).is_empty());
        assert_eq!(admission.held.len(), 1, "held");
        let held = admission.count_response(ending, &w.config);
        assert_eq!(held.len(), refunds, "{ending:?}");
        assert!(admission.count_response(ResponseEvent::Abandoned, &w.config).is_empty(), "once");
    }
}

#[test]
fn shadow_policy_that_counts_by_status_waits_too() {
    let mut w = by_status();
    assert_eq!(at_once(ask(&mut w, "one", &[2], 1, 0)), "waiting");
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(1, 1)], 1);
    let mut admission = admissions(&mut w).remove(0);
    let held = admission.count_response(http(200), &w.config);
    w.refund(held, at(1));
    assert_eq!(returned(&mut w, 10), [("d:s:{x}".to_owned(), 1)]);
}

/// `a` and `s` have `count_denied`.
fn denied_counts() -> TestWorker {
    edited("deny", |config| {
        config.policies[0].count_denied = true;
        config.policies[2].count_denied = true;
    })
}

#[test]
fn every_request_asks_the_store_if_refusals_count() {
    let mut w = denied_counts();
    for (ms, cost, used) in [(0, 1, 6), (1, 1, 7), (2, 6, 13)] {
        assert_eq!(at_once(ask(&mut w, "x", &[0], cost, ms)), "waiting");
        let (id, request) = call(&mut w, ms);
        assert!(request.reservations[0].count_denied && request.refunds.is_empty());
        answer(&mut w, id, &[grant(0, used)], ms);
        assert_eq!(summary(&mut w), "x=-");
    }
    assert_eq!(tally(&mut w), "a.refused=3", "none of them is from the ledger");
}

#[test]
fn count_denied_refunds_only_units_neither_admitted_nor_refused_by_its_policy() {
    let mut w = denied_counts();
    ask(&mut w, "admitted", &[0], 1, 0);
    ask(&mut w, "refused", &[0], 2, 0);
    let Submitted::Waiting(gone) = ask(&mut w, "gone", &[0], 3, 0) else { panic!() };
    ask(&mut w, "lost", &[0, 1], 1, 0);
    ask(&mut w, "refused by both", &[0, 1], 2, 0);
    w.cancel(gone, at(0));
    // Three units are left: one covers the first request, another the one that `b` refuses.
    let (id, request) = call(&mut w, 0);
    assert_eq!(request.reservations[0].want, 6, "a client that left before the call costs nothing");
    let Submitted::Waiting(gone) = ask(&mut w, "x", &[1], 1, 0) else { panic!() };
    w.cancel(gone, at(0));
    answer(&mut w, id, &[grant(2, 9), grant(0, 5), grant(0, 5)], 1);
    assert_eq!(summary(&mut w), "admitted=+1 refused=- lost=- refused by both=-");
    assert_eq!(tally(&mut w), "a.admitted=1 a.refused=2 b.refused=2");
    assert_eq!(
        returned(&mut w, 10),
        [("d:a:{x}".to_owned(), 1)],
        "for the request that `b` refused"
    );
}

#[test]
fn refusal_of_a_client_that_left_does_not_count() {
    let mut w = denied_counts();
    ask(&mut w, "stays", &[0], 1, 0);
    let Submitted::Waiting(gone) = ask(&mut w, "gone", &[0], 3, 0) else { panic!() };
    let (id, _) = call(&mut w, 0);
    w.cancel(gone, at(0));
    answer(&mut w, id, &[grant(0, 9)], 1);
    assert_eq!(summary(&mut w), "stays=-");
    assert_eq!(returned(&mut w, 10), [("d:a:{x}".to_owned(), 3)]);
}

#[test]
fn nothing_is_refunded_if_the_counter_overflowed() {
    let mut w = denied_counts();
    let Submitted::Waiting(gone) = ask(&mut w, "gone", &[0], 3, 0) else { panic!() };
    let Submitted::Waiting(late) = ask(&mut w, "late", &[0], 1, 0) else { panic!() };
    let (id, _) = call(&mut w, 0);
    w.cancel(gone, at(0));
    let full = Ok(Grant {
        granted: 2,
        used: MAX_UNITS,
        quota: MAX_UNITS,
        reset_ms: 9,
        window: 9,
        ..Grant::default()
    });
    answer(&mut w, id, &[full], 1);
    w.cancel(late, at(1));
    assert_eq!(returned(&mut w, 2), []);
}

#[test]
fn request_that_the_worker_refuses_before_its_call_returns_counts_too() {
    let mut w = denied_counts();
    ask(&mut w, "one", &[0], 1, 0);
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[grant(0, 6)], 1);
    ask(&mut w, "known", &[0], 1, 2);
    ask(&mut w, "other", &[1], 1, 2);
    let (id, _) = call(&mut w, 2);
    ask(&mut w, "y", &[1], 1, 10);
    w.tick(at(52));
    assert_eq!(summary(&mut w), "one=- known=- other=!");
    answer(&mut w, id, &[grant(0, 7), grant(1, 1)], 53);
    assert_eq!(returned(&mut w, 60), [("d:b:{x}".to_owned(), 1)]);
}

#[test]
fn shadow_policy_counts_what_it_would_refuse() {
    let mut w = denied_counts();
    assert_eq!(at_once(ask(&mut w, "x", &[2], 1, 0)), "counting");
    let (id, request) = call(&mut w, 0);
    assert!(request.reservations[0].count_denied);
    answer(&mut w, id, &[grant(0, 6)], 1);
    assert_eq!(summary(&mut w), "x=+~0");
    assert_eq!(returned(&mut w, 10), []);
    assert_eq!(at_once(ask(&mut w, "x", &[2], 1, 11)), "counting", "each request asks the store");
}

#[test]
fn shadow_policy_counts_no_request_that_the_store_could_not_count() {
    let mut w = denied_counts();
    assert_eq!(at_once(ask(&mut w, "x", &[1, 2], 1, 0)), "waiting");
    let (id, _) = call(&mut w, 0);
    answer(&mut w, id, &[Err("down".into()), grant(0, 6)], 1);
    assert_eq!(summary(&mut w), "x=!");
    assert_eq!(returned(&mut w, 10), [("d:s:{x}".to_owned(), 1)]);
}
