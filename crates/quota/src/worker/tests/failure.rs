//! What happens to requests while the store fails.

use super::*;

#[test]
fn spent_counter_stays_refused_while_the_store_fails() {
    for on_failure in ["allow", "deny"] {
        let mut w = worker(on_failure);
        submit(&mut w, "one", 0);
        let (id, _) = call(&mut w, 0);
        w.replied(id, &reply(&[grant(1, 5)]), at(0));
        assert_eq!(summary(&mut w), "one=+0");
        // The request that rechecks finds the store dead.
        submit(&mut w, "again", 1_000);
        let (id, _) = call(&mut w, 1_000);
        w.call_failed(id, at(1_000));
        assert_eq!(summary(&mut w), "again=-");
        for _ in 1..crate::worker::call::breaker::LIMIT {
            w.submit("other", checks(&[0], "y", 1), at(1_950));
            let (id, _) = call(&mut w, 1_950);
            w.call_failed(id, at(1_950));
        }
        // The breaker is open, and a recheck would be due.
        let refused = w.submit("late", checks(&[0], "x", 1), at(2_050));
        assert!(
            matches!(refused, Submitted::Decided(Decision::Refuse(_))),
            "{on_failure}: {refused:?}"
        );
        w.tick(at(30_000));
        let now = w.submit("next window", checks(&[0], "x", 1), at(30_000));
        assert!(!matches!(now, Submitted::Decided(Decision::Refuse(_))), "{on_failure}: {now:?}");
    }
}

#[test]
fn spent_counter_stays_refused_while_only_its_own_reservation_fails() {
    for on_failure in ["allow", "deny"] {
        let mut w = worker(on_failure);
        submit(&mut w, "one", 0);
        let (id, _) = call(&mut w, 0);
        w.replied(id, &reply(&[grant(1, 5)]), at(0));
        submit(&mut w, "again", 1_000);
        w.submit("other", checks(&[0], "y", 1), at(1_000));
        let (id, _) = call(&mut w, 1_000);
        w.replied(id, &reply(&[Err("down".into()), grant(1, 1)]), at(1_001));
        assert_eq!(summary(&mut w), "one=+0 again=- other=+4", "{on_failure}");
    }
}

#[test]
fn only_the_probe_decides_whether_the_store_is_still_dead() {
    let mut w = worker("deny");
    submit(&mut w, "old", 0);
    let (old, _) = call(&mut w, 0);
    for _ in 0..crate::worker::call::breaker::LIMIT {
        submit(&mut w, "x", 6);
        let (id, _) = call(&mut w, 11);
        w.call_failed(id, at(11));
    }
    w.tick(at(50));
    submit(&mut w, "probe", 300);
    let (probe, _) = call(&mut w, 300);
    w.call_failed(old, at(301));
    decisions(&mut w);
    assert_eq!(w.submit("x", checks(&[0], "x", 1), at(700)), unavailable());
    assert!(w.next_call(at(700)).is_none(), "one probe at a time");
    assert!(w.calls.breaker.is_probing());
    w.replied(probe, &reply(&[grant(1, 1)]), at(310));
    assert!(w.calls.breaker.lets_through(at(310)));
}

#[test]
fn malformed_answer_is_a_failure_of_the_store() {
    let too_many = grant(2, 2);
    let beyond = impossible_grant();
    let failed = Err("down".into());
    for body in [
        b"<html>".to_vec(),
        b"".to_vec(),
        reply(&[]),
        reply(&[grant(1, 1), grant(1, 1)]),
        reply(&[too_many]),
        reply(&[beyond]),
        reply(&[failed]),
    ] {
        let mut w = worker("deny");
        submit(&mut w, "one", 0);
        let (id, _) = call(&mut w, 0);
        w.replied(id, &body, at(1));
        assert_eq!(summary(&mut w), "one=!", "{}", String::from_utf8_lossy(&body));
    }
}

#[test]
fn dead_store_is_not_called_until_one_probe_heals_it() {
    let mut w = worker("deny");
    for i in 0..crate::worker::call::breaker::LIMIT {
        submit(&mut w, "x", 0);
        let (id, _) = call(&mut w, 0);
        w.call_failed(id, at(0));
        let is_open = !w.calls.breaker.lets_through(at(0));
        assert_eq!(is_open, i + 1 == crate::worker::call::breaker::LIMIT);
    }
    decisions(&mut w);
    assert_eq!(w.submit("x", checks(&[0], "x", 1), at(100)), unavailable());
    submit(&mut w, "probe", 250);
    let (id, _) = call(&mut w, 250);
    assert_eq!(w.submit("x", checks(&[0], "x", 1), at(251)), unavailable());
    assert!(w.calls.breaker.is_probing());
    w.replied(id, &reply(&[grant(1, 1)]), at(252));
    assert!(w.calls.breaker.lets_through(at(252)));
    assert_eq!(summary(&mut w), "probe=+4");
    submit(&mut w, "x", 253);
}

#[test]
fn gathered_requests_are_decided_when_the_breaker_opens() {
    let mut w = worker("deny");
    for _ in 1..crate::worker::call::breaker::LIMIT {
        submit(&mut w, "x", 0);
        let (id, _) = call(&mut w, 0);
        w.call_failed(id, at(0));
    }
    decisions(&mut w);
    submit(&mut w, "called", 0);
    let (id, _) = call(&mut w, 0);
    submit(&mut w, "gathered", 1);
    w.call_failed(id, at(2));
    assert_eq!(summary(&mut w), "called=! gathered=!");
}

/// `a` has `on_failure: local`, `b` fails closed, `s` only counts. A worker admits a tenth of the
/// quota of 25.
fn own_share() -> TestWorker {
    edited("allow", |config| {
        for policy in &mut config.policies {
            policy.quota = 25;
        }
        config.policies[0].on_failure = OnFailure::Local;
        config.policies[1].on_failure = OnFailure::Deny;
        config.policies[2].on_failure = OnFailure::Local;
    })
}

/// Calls fail until the breaker opens, which must be a second after the last reply.
fn give_up(worker: &mut TestWorker, ms: u64) {
    for _ in 0..crate::worker::call::breaker::LIMIT {
        worker.submit("x", checks(&[1], "y", 1), at(ms));
        let (id, _) = call(worker, ms);
        worker.call_failed(id, at(ms));
    }
    decisions(worker);
    worker.take_tally();
}

#[test]
fn each_policy_has_its_own_on_failure() {
    let mut w = own_share();
    give_up(&mut w, 0);
    assert_eq!(
        at_once(ask(&mut w, "x", &[0, 1], 1, 1)),
        "!",
        "one policy that fails closed is enough"
    );
    assert_eq!(at_once(ask(&mut w, "x", &[0, 2], 1, 1)), "+");
    assert_eq!(tally(&mut w), "a.store_error=2 b.store_error=1 s.store_error=1");
    let Submitted::Decided(Decision::Admit(admission)) = ask(&mut w, "x", &[0, 2], 1, 1) else {
        panic!()
    };
    let uncounted = Uncounted { policy: 0, key: "d:a:{x}".into() };
    assert_eq!(admission.uncounted, Some(Box::new(uncounted)));
    assert!(admission.standings.is_empty(), "without quota headers");
    // The share is two of 25, and the request that `b` failed took nothing of it.
    let Submitted::Decided(Decision::Refuse(refusal)) = ask(&mut w, "x", &[0], 1, 2) else {
        panic!()
    };
    let standing = &refusal.standings[0];
    assert_eq!(
        (standing.balance.quota, standing.balance.remaining, refusal.until),
        (2, 0, at(60_001))
    );
    assert_eq!(
        at_once(ask(&mut w, "x", &[0, 1], 1, 3)),
        "!",
        "503 precedes a share that is used up"
    );
    assert_eq!(
        at_once(ask(&mut w, "x", &[2], 1, 4)),
        "+",
        "a shadow policy keeps no local counter"
    );
    assert_eq!(
        tally(&mut w),
        "a.refused=1 a.store_error=2 a.from_ledger=1 b.store_error=1 s.store_error=2"
    );
    w.tick(at(60_001));
    assert_eq!(w.known.local.len(), 0);
}

#[test]
fn local_share_ends_with_the_store_window_if_that_is_known() {
    let mut w = own_share();
    w.submit("x", checks(&[1], "y", 1), at(0));
    let (id, _) = call(&mut w, 0);
    answer(
        &mut w,
        id,
        &[Ok(Grant {
            granted: 1,
            used: 1,
            quota: 25,
            reset_ms: 30_000,
            window: 9,
            ..Grant::default()
        })],
        0,
    );
    decisions(&mut w);
    give_up(&mut w, 1_000);
    assert_eq!(at_once(ask(&mut w, "x", &[0], 2, 1_001)), "+");
    assert_eq!(at_once(ask(&mut w, "x", &[0], 1, 1_002)), "-");
    assert_eq!(w.known.local.len(), 1);
    w.tick(at(30_000));
    assert_eq!(w.known.local.len(), 0);
}

#[test]
fn local_share_applies_if_a_single_reservation_fails_or_times_out() {
    let mut w = own_share();
    for (ms, expected) in [(0, "x=+"), (100, "x=+"), (200, "x=-")] {
        ask(&mut w, "x", &[0], 1, ms);
        w.submit("y", checks(&[0], "y", 1), at(ms));
        let (id, _) = call(&mut w, ms);
        if ms == 100 {
            w.tick(at(ms + 50));
            w.call_failed(id, at(ms + 51));
        } else {
            answer(&mut w, id, &[Err("down".into()), grant(1, 1)], ms + 1);
        }
        assert!(summary(&mut w).contains(expected), "{ms}");
    }
}

#[test]
fn known_spent_counter_precedes_a_policy_that_fails_closed() {
    let mut w = own_share();
    ask(&mut w, "x", &[0], 1, 0);
    let (id, _) = call(&mut w, 0);
    answer(
        &mut w,
        id,
        &[Ok(Grant {
            granted: 0,
            used: 25,
            quota: 25,
            reset_ms: 30_000,
            window: 9,
            ..Grant::default()
        })],
        0,
    );
    decisions(&mut w);
    give_up(&mut w, 1_000);
    // A recheck is due.
    for ms in [1_010, 1_150] {
        assert_eq!(at_once(ask(&mut w, "x", &[0, 1], 1, ms)), "-");
    }
}

#[test]
fn failed_calls_with_only_refunds_do_not_open_the_breaker() {
    let mut w = worker("deny");
    for n in 1..u64::from(crate::worker::call::breaker::LIMIT) {
        submit(&mut w, "x", n);
        let (id, _) = call(&mut w, n);
        w.call_failed(id, at(n));
    }
    let held = decision::Held {
        policy: 0,
        counter: checks(&[0], "x", 1)[0].counter.clone(),
        units: GrantedUnits { amount: 1, window: 9, spendable_until: at(1_000), resets: at(1_000) },
    };
    w.refund(vec![held], at(10));
    w.tick(at(10));
    let (id, _) = call(&mut w, 10);
    w.call_failed(id, at(11));
    let is_open = !w.calls.breaker.lets_through(at(11));
    assert!(!is_open, "four calls with reservations failed, and one without");
}
