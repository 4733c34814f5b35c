//! When fetches leave.

use serde_json::json;

use super::*;

/// The times in ms at which fetches leave if requests arrive at `requests`. Each fetch is answered
/// at once.
fn fetches(requests: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut w = worker();
    let mut left = Vec::new();
    for ms in requests {
        w.observe_traffic(at(ms));
        if let Some(fetch) = w.next_fetch(at(ms)) {
            left.push(ms);
            w.call_ended(fetch.id, &ok(br#"{"version":0,"dials":[]}"#), at(ms));
        }
    }
    left
}

#[test]
fn dials_are_fetched_with_the_first_traffic_and_then_every_five_seconds() {
    assert_eq!(fetches((0..=17_000).step_by(10)), [0, 5_000, 10_000, 15_000]);
    assert_eq!(fetches([7, 5_006, 5_007, 60_000, 60_001, 64_999]), [7, 5_007, 60_000]);
    let mut w = worker();
    for ms in 0..20_000 {
        w.tick(at(ms));
        assert!(w.next_fetch(at(ms)).is_none() && w.is_idle(), "no fetch without traffic");
    }
}

/// A reply to another call carries this version.
fn hear(w: &mut Worker<()>, version: u64, ms: u64) {
    w.overrides.hear(version, at(ms));
}

#[test]
fn newer_version_is_fetched_at_once_but_at_most_twice_per_second() {
    let mut w = worker();
    fetched(&mut w, 0, &reply(1, json!([])));
    let mut left = Vec::new();
    // Each reply of the store carries a newer version than the one before.
    for ms in 1..=3_000 {
        hear(&mut w, ms, ms);
        if let Some(fetch) = w.next_fetch(at(ms)) {
            left.push(ms);
            w.call_ended(fetch.id, &ok(reply(ms, json!([])).to_string().as_bytes()), at(ms));
        }
    }
    assert_eq!(left, [500, 1_000, 1_500, 2_000, 2_500, 3_000]);
    hear(&mut w, 3_000, 4_000);
    assert!(w.next_fetch(at(4_000)).is_none(), "that version is known");
    hear(&mut w, 5_000, 4_001);
    assert!(w.next_fetch(at(4_001)).is_some(), "at once");
}

#[test]
fn one_fetch_is_under_way_at_a_time_and_newer_versions_wait_for_its_end() {
    let mut w = worker();
    w.observe_traffic(at(0));
    let first = w.next_fetch(at(0)).unwrap();
    hear(&mut w, 3, 10);
    assert!(w.next_fetch(at(900)).is_none());
    w.call_ended(first.id, &ok(reply(2, json!([])).to_string().as_bytes()), at(900));
    let second = w.next_fetch(at(900)).expect("the announced version has not arrived");
    hear(&mut w, 4, 910);
    w.call_ended(second.id, &ok(reply(4, json!([])).to_string().as_bytes()), at(920));
    assert!(w.next_fetch(at(2_000)).is_none(), "the announced version has arrived");
}

#[test]
fn store_that_announces_versions_and_fails_fetches_is_not_hammered() {
    let mut w = worker();
    let mut left = 0;
    for ms in 0..10_000 {
        w.observe_traffic(at(ms));
        hear(&mut w, u64::MAX, ms);
        if let Some(fetch) = w.next_fetch(at(ms)) {
            left += 1;
            w.call_not_sent(fetch.id, &CallFault::NoHost, at(ms));
        }
    }
    assert_eq!(left, 10, "one per second");
    assert_eq!(failures(&mut w), 10, "each is counted");
}

#[test]
fn lost_fetch_is_given_up_and_its_late_reply_is_ignored() {
    let mut w = worker();
    w.observe_traffic(at(0));
    let fetch = w.next_fetch(at(0)).unwrap();
    assert_eq!(fetch.timeout, Duration::from_secs(1), "although requests wait for at most 50 ms");
    w.tick(at(1_999));
    assert_eq!(failures(&mut w), 0);
    w.tick(at(2_000));
    assert_eq!(failures(&mut w), 1);
    w.call_ended(
        fetch.id,
        &ok(reply(1, json!([{"policy": "a", "quota": 8}])).to_string().as_bytes()),
        at(2_001),
    );
    assert_eq!(in_force(&w), CONFIGURED);
    w.observe_traffic(at(5_000));
    assert!(w.next_fetch(at(5_000)).is_some());
}

#[test]
fn lagging_store_is_ignored_and_restarted_store_is_accepted() {
    let mut w = worker();
    let eight = json!([{"policy": "a", "quota": 8}]);
    fetched(&mut w, 0, &reply(17, eight.clone()));
    fetched(&mut w, 5_000, &reply(16, json!([])));
    assert!(in_force(&w).starts_with("Enforce 8"));
    hear(&mut w, 17, 9_000);
    fetched(&mut w, 10_000, &reply(16, json!([])));
    assert!(
        in_force(&w).starts_with("Enforce 8"),
        "another reply carried version 17 one second ago"
    );
    fetched(&mut w, 19_000, &reply(1, json!([])));
    assert_eq!(in_force(&w), CONFIGURED);
    fetched(&mut w, 24_000, &reply(1, eight));
    assert!(in_force(&w).starts_with("Enforce 8"), "a fetch of an equal version applies, too");
}

#[test]
fn worker_with_a_policy_that_is_off_needs_ticks_until_its_fetch_left() {
    let mut w = worker();
    w.observe_traffic(at(0));
    assert!(!w.is_idle(), "only a tick sends it: requests that no policy counts cause no calls");
    w.next_fetch(at(0)).unwrap();
    assert!(w.is_idle());
    let text = r#"{"domain":"d","store":{"cluster":"c"},"policies":[{"name":"a","partition_by":[],"quota":5,"window":"1m"}]}"#;
    let mut w: Worker<()> = Worker::new(Arc::new(Config::parse(text.as_bytes()).unwrap()), 1);
    w.observe_traffic(at(0));
    assert!(w.is_idle(), "the fetch leaves with the first request that is counted");
}
