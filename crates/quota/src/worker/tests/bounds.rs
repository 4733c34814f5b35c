//! Memory and calls are bounded.

use serde_json::json;

use super::*;
use crate::worker::call::MAX_ADJUSTMENTS;

#[test]
fn waiting_requests_and_calls_that_never_return_are_bounded() {
    let mut w = worker("deny");
    for _ in 0..MAX_WAITING {
        ask(&mut w, "x", &[0], 1, 0);
    }
    assert_eq!(ask(&mut w, "x", &[0], 1, 0), unavailable());
    while w.next_call(at(0)).is_some() {}
    w.tick(at(50));
    assert_eq!(decisions(&mut w).len(), MAX_WAITING);
    w.tick(at(2_000));
    w.take_tally();
    assert!(w.is_idle(), "the lost call is given up");
}

#[test]
fn cancelled_requests_leave_nothing_behind() {
    let mut w = worker("deny");
    submit(&mut w, "stays", 0);
    call(&mut w, 0);
    submit(&mut w, "front", 0);
    for _ in 0..10 * MAX_WAITING {
        let ticket = submit(&mut w, "gone", 0);
        w.cancel(ticket, at(0));
    }
    assert!(w.requests.gathered() <= 2 * MAX_WAITING && w.requests.waiting().len() == 2);
}

#[test]
fn longest_keys_still_fit_a_call_with_refunds() {
    let (mut w, config) = (worker("allow"), config("allow"));
    let party = |i: usize| format!("{i:05}{}", "x".repeat(quotagate_protocol::MAX_KEY - 11));
    for i in 0..200 {
        w.submit("x", checks_of(&config, &[0], &party(i), 1), at(0));
    }
    while let Some(out) = w.next_call(at(6)) {
        let request: ReserveRequest = serde_json::from_slice(&out.body()).unwrap();
        let grants: Vec<_> = request.reservations.iter().map(|_| grant(1, 1)).collect();
        // All clients have left, so every unit is refunded.
        for ticket in w.requests.waiting().keys().copied().collect::<Vec<_>>() {
            w.cancel(ticket, at(6));
        }
        w.replied(out.id, &reply(&grants), at(6));
    }
    for i in 200..500 {
        w.submit("x", checks_of(&config, &[0], &party(i), 1), at(7));
    }
    let out = w.next_call(at(7)).unwrap();
    let request: ReserveRequest = serde_json::from_slice(&out.body()).unwrap();
    assert_eq!(request.refunds.len(), MAX_ADJUSTMENTS);
    assert!(
        request.reservations.len() > 100
            && request.reservations[0].key.len() == quotagate_protocol::MAX_KEY
    );
    assert!(out.body().len() <= quotagate_protocol::MAX_BODY, "{}", out.body().len());
}

#[test]
fn call_stays_within_the_bounds_of_the_protocol() {
    let (mut w, config) = (worker("allow"), config("allow"));
    let mut tickets = Vec::new();
    for i in 0..3_000 {
        let party = format!("{i}{}", "x".repeat(500));
        tickets.push(w.submit("x", checks_of(&config, &[0], &party, 1), at(0)));
    }
    let mut seen = 0;
    while let Some(out) = w.next_call(at(6)) {
        assert!(out.body().len() <= quotagate_protocol::MAX_BODY);
        let request: ReserveRequest = serde_json::from_slice(&out.body()).unwrap();
        assert!(request.reservations.len() <= quotagate_protocol::MAX_ITEMS);
        assert!(request.reservations.iter().all(|r| r.check().is_ok()));
        seen += request.reservations.len();
        let grants: Vec<_> = request.reservations.iter().map(|_| grant(1, 1)).collect();
        w.replied(out.id, &reply(&grants), at(6));
    }
    assert_eq!((seen, decisions(&mut w).len()), (3_000, 3_000));
}

#[test]
fn request_with_more_policies_than_fit_a_call_is_decided() {
    for (on_failure, key, fit) in [("allow", 20, 1024), ("allow", 4000, 123), ("deny", 4000, 123)] {
        let policy = |i| {
            let name = format!("{i:0>40}");
            json!({"name": name, "partition_by": [], "quota": 5, "window": "1m"})
        };
        let document = json!({"domain": "d", "store": {"cluster": "s", "on_failure": on_failure},
            "policies": (0..1024).map(policy).collect::<Vec<_>>()});
        let config = Config::parse(document.to_string().as_bytes()).unwrap();
        let mut w: Worker<&str> = Worker::new(Arc::new(config), 1);
        let party = "x".repeat(key);
        let checks = |config: &Config| checks_of(config, &(0..1024).collect::<Vec<_>>(), &party, 1);
        let all = checks(w.config());
        assert!(matches!(w.submit("all", all, at(0)), Submitted::Waiting(_)));
        let out = w.next_call(at(0)).unwrap();
        let request: ReserveRequest = serde_json::from_slice(&out.body()).unwrap();
        assert!(out.body().len() <= quotagate_protocol::MAX_BODY);
        assert_eq!(request.reservations.len(), fit);
        w.replied(out.id, &reply(&vec![grant(1, 1); fit]), at(1));
        let decision = w.next_decision().unwrap().1;
        match decision {
            Decision::Admit(admission) => {
                assert_eq!((on_failure, admission.standings.len()), ("allow", fit));
                let beyond = admission.uncounted.map(|uncounted| uncounted.policy);
                assert_eq!(beyond, (fit < 1024).then_some(fit));
            }
            Decision::Unavailable(uncounted) => {
                assert_eq!((on_failure, uncounted.policy), ("deny", fit));
            }
            Decision::Refuse(_) => panic!("refused"),
        }
    }
}
