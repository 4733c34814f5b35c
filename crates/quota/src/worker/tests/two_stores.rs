//! One of two stores is dead: only the calls that it gets fail.

use quotagate_protocol::Reservation;

use super::*;
use crate::testing::invariants::Random;

/// What ten seconds of requests meet behind a proxy that asks a dead store and a healthy one.
#[derive(Debug, Default)]
struct TwoStoresRun {
    failed_calls: u64,
    /// The units that these calls asked for, which is one for each request.
    failed_units: u64,
    suspensions: u64,
    requests: u64,
    lost: u64,
}

/// `rate` requests a second. A call of the healthy store takes 5 ms, one of the dead store fails
/// after `fails_after` ms. Like Envoy's `LEAST_REQUEST`, the proxy chooses the store with fewer
/// calls under way, or either.
fn beside_a_dead_store(rate: u64, fails_after: u64) -> TwoStoresRun {
    let mut w = edited("deny", |config| config.policies[0].quota = 1_000_000);
    let (mut random, mut seen) = (Random(rate), TwoStoresRun::default());
    let mut ends: Vec<(u64, CallId, Option<Vec<u8>>)> = Vec::new();
    let count = |seen: &mut TwoStoresRun, decision: &Decision| {
        seen.requests += 1;
        seen.lost += u64::from(!matches!(decision, Decision::Admit(_)));
    };
    for ms in 0..10_000 {
        if random.fraction() * 1_000.0 < rate as f64
            && let Submitted::Decided(decision) = ask(&mut w, "x", &[0], 1, ms)
        {
            count(&mut seen, &decision);
        }
        if ms % 10 == 0 {
            w.tick(at(ms));
        }
        let due;
        (due, ends) = ends.into_iter().partition(|(end, ..)| *end <= ms);
        for (_, id, body) in due {
            let was_closed = w.calls.breaker.lets_through(at(ms));
            match body {
                Some(body) => w.replied(id, &body, at(ms)),
                None => w.call_failed(id, at(ms)),
            }
            let is_closed = w.calls.breaker.lets_through(at(ms));
            seen.suspensions += u64::from(was_closed && !is_closed);
        }
        while let Some(sent) = w.next_call(at(ms)) {
            let dead = ends.iter().filter(|(.., body)| body.is_none()).count();
            let healthy = ends.len() - dead;
            let request: ReserveRequest = serde_json::from_slice(&sent.body()).unwrap();
            if dead < healthy || (dead == healthy && random.fraction() < 0.5) {
                seen.failed_calls += 1;
                seen.failed_units += request.reservations.iter().map(|r| r.want).sum::<u64>();
                ends.push((ms + fails_after, sent.id, None));
                continue;
            }
            let whole = |wanted: &Reservation| {
                let (granted, quota) = (wanted.want, 1_000_000);
                let (used, reset_ms) = (granted, 30_000);
                Ok(Grant { granted, used, quota, reset_ms, window: 9, ..Grant::default() })
            };
            let grants: Vec<_> = request.reservations.iter().map(whole).collect();
            ends.push((ms + 5, sent.id, Some(reply(&grants))));
        }
        for (_, decision) in decisions(&mut w) {
            count(&mut seen, &decision);
        }
    }
    seen
}

#[test]
fn dead_store_beside_a_healthy_one_fails_only_its_own_calls() {
    for (rate, fails_after) in [(20, 0), (100, 0), (900, 0), (20, 50), (100, 50), (900, 50)] {
        let seen = beside_a_dead_store(rate, fails_after);
        let case = format!("{rate} requests/s, failing after {fails_after} ms: {seen:?}");
        assert!(seen.failed_calls > 50 && seen.requests >= rate * 9, "{case}");
        assert_eq!(seen.suspensions, 0, "{case}");
        assert!(seen.lost <= seen.failed_units && seen.lost < seen.requests, "{case}");
    }
}
