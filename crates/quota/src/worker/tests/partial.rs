//! A part of the store is down: only the counters of that part fail.

use std::collections::VecDeque;

use quotagate_protocol::Reservation;

use super::*;

/// How long a call takes.
const CALL: u64 = 1;
/// Of ten requests, the number for counters that the store cannot count.
const DEAD: u64 = 9;

/// The requests for counters that the store can count, and how many were not admitted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Healthy {
    requests: u64,
    lost: u64,
}

/// Two seconds of `rate` requests a second, nine of ten of them for the part that is down.
fn skewed(rate: u64) -> Healthy {
    let mut w = edited("deny", |config| config.policies[0].quota = 1_000_000);
    let quota = w.config.policies[0].quota;
    let mut healthy = Healthy::default();
    let mut count = |who: &'static str, decision: &Decision| {
        if who == "healthy" {
            healthy.requests += 1;
            healthy.lost += u64::from(!matches!(decision, Decision::Admit(_)));
        }
    };
    let mut replies: VecDeque<(u64, CallId, Vec<u8>)> = VecDeque::new();
    let mut arrived = 0;
    for ms in 0..2_000 {
        while arrived * 1_000 < ms * rate {
            let user = arrived % 10;
            let who = if user < DEAD { "dead" } else { "healthy" };
            let checks = checks_of(&w.config, &[0], &format!("{who}{user}"), 1);
            if let Submitted::Decided(decision) = w.submit(who, checks, at(ms)) {
                count(who, &decision);
            }
            arrived += 1;
        }
        if ms % 10 == 0 {
            w.tick(at(ms));
        }
        while let Some((due, id, body)) = replies.pop_front() {
            if due > ms {
                replies.push_front((due, id, body));
                break;
            }
            w.replied(id, &body, at(ms));
        }
        while let Some(call) = w.next_call(at(ms)) {
            let request: ReserveRequest = serde_json::from_slice(&call.body()).unwrap();
            let answer = |wanted: &Reservation| {
                if wanted.key.contains("{dead") {
                    return Err("backend unreachable".into());
                }
                let granted = wanted.want;
                Ok(Grant {
                    granted,
                    used: granted,
                    quota,
                    reset_ms: 30_000,
                    window: 9,
                    ..Grant::default()
                })
            };
            let grants: Vec<_> = request.reservations.iter().map(answer).collect();
            replies.push_back((ms + CALL, call.id, reply(&grants)));
        }
        for (who, decision) in decisions(&mut w) {
            count(who, &decision);
        }
    }
    healthy
}

/// Invariant 7.
#[test]
fn partial_store_failure_affects_only_the_counters_of_that_part() {
    for rate in [20, 200, 2_000] {
        let healthy = skewed(rate);
        println!("{rate} requests/s: {healthy:?}");
        assert!(healthy.requests * 10 >= rate, "{rate} requests/s: {healthy:?}");
        assert_eq!(healthy.lost, 0, "{rate} requests/s: {healthy:?}");
    }
}

#[test]
fn reply_heals_the_breaker_even_if_its_only_reservation_failed() {
    let mut w = worker("deny");
    for _ in 0..crate::worker::call::breaker::LIMIT {
        submit(&mut w, "x", 0);
        let (id, _) = call(&mut w, 0);
        w.call_failed(id, at(0));
    }
    decisions(&mut w);
    submit(&mut w, "probe", 250);
    let (id, _) = call(&mut w, 250);
    assert!(w.calls.breaker.is_probing());
    answer(&mut w, id, &[Err("down".into())], 251);
    assert!(w.calls.breaker.lets_through(at(251)));
    assert_eq!(summary(&mut w), "probe=!");
    for _ in 0..2 * crate::worker::call::breaker::LIMIT {
        submit(&mut w, "x", 252);
        let (id, _) = call(&mut w, 252);
        answer(&mut w, id, &[Err("down".into())], 252);
        assert!(w.calls.breaker.lets_through(at(252)));
    }
}
