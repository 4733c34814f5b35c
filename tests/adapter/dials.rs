//! Dials: how they are fetched, and that they are in force for the next request.

use serde_json::Value;

use crate::document::{document, grant, policy};
use crate::host::{FETCHES, configure, dials, end, host, queue, reply, request, response, tick};

fn start(policies: &str) {
    assert!(configure(&document(policies, "", r#","on_failure":"deny","token":"s3cret""#)));
}

fn fetches() -> usize {
    host(|h| h.fetches.len())
}

fn metric(name: &str) -> i64 {
    tick();
    host(|h| {
        h.metrics.iter().find(|(known, _)| known.ends_with(name)).map_or(0, |(_, count)| *count)
    })
}

#[test]
fn dials_are_fetched_with_the_first_request_and_a_report() {
    start(&format!("{},{}", policy("p", ""), policy("o", r#","mode":"off""#)));
    assert_eq!(fetches(), 0, "not without traffic");
    request(2);
    let (mut headers, report) = host(|h| h.fetches[0].clone());
    headers.sort();
    let expected = [
        (":authority", "quotagate"),
        (":method", "POST"),
        (":path", "/v1/telemetry?domain=d"),
        ("authorization", "Bearer s3cret"),
        ("content-type", "application/json"),
    ];
    assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let report: Value = serde_json::from_slice(&report).unwrap();
    let names: Vec<_> =
        report["policies"].as_array().unwrap().iter().map(|p| p["name"].clone()).collect();
    assert_eq!(names, ["p", "o"]);
    for id in 3..20 {
        request(id);
    }
    assert_eq!(fetches(), 1);
}

#[test]
fn a_dial_is_in_force_for_the_next_request_and_not_for_one_that_waits() {
    start(&policy("p", ""));
    request(2);
    dials(0, r#"{"policy":"p","mode":"off"}"#);
    assert!(request(3), "nothing counts it");
    reply(1, 200, &grant(0, 100));
    assert_eq!(host(|h| h.answered.clone()), [(2, 429)]);
    let body: Value = serde_json::from_str(&host(|h| h.answer.body.clone())).unwrap();
    assert_eq!(body["violated-policies"][0], "p", "who refuses is named");
    assert_eq!(host(|h| h.calls.len()), 1);
}

#[test]
fn the_quota_of_a_dial_is_asked_for_and_shown() {
    start(&policy("p", ""));
    request(2);
    dials(0, r#"{"policy":"p","quota":7}"#);
    reply(1, 200, &grant(1, 1));
    request(3);
    let call: Value = host(|h| serde_json::from_slice(&h.calls[1].1).unwrap());
    assert_eq!(call["reservations"][0]["quota"], 7);
    reply(2, 200, &grant(1, 2).replace("100", "7"));
    response(3, 200);
    let shown = |name: &str| host(|h| h.response_headers[name].clone());
    assert_eq!(
        (shown("x-ratelimit-limit"), shown("x-ratelimit-remaining")),
        ("7".into(), "5".into())
    );
}

#[test]
fn a_request_that_was_let_through_in_shadow_mode_shows_nothing_though_the_policy_is_enforced_now() {
    start(&policy("p", r#","mode":"shadow""#));
    assert!(request(2));
    dials(0, r#"{"policy":"p","mode":"enforce"}"#);
    reply(1, 200, &grant(1, 1));
    response(2, 200);
    end(2);
    assert!(host(|h| h.response_headers.is_empty()));
    assert!(!request(3), "the next one waits");
}

#[test]
fn while_all_policies_are_off_dials_are_fetched_all_the_same() {
    start(&policy("p", r#","mode":"off""#));
    assert!(request(2) && host(|h| h.ticking), "time is heard of");
    assert_eq!(fetches(), 0);
    tick();
    assert_eq!(fetches(), 1);
    dials(0, r#"{"policy":"p","mode":"enforce"}"#);
    assert!(!request(3), "it waits");
    for _ in 0..3 {
        tick();
    }
    assert_eq!((fetches(), host(|h| h.calls.len())), (1, 1));
}

#[test]
fn a_reply_that_tells_of_newer_dials_brings_the_next_fetch() {
    start(&policy("p", ""));
    request(2);
    dials(0, "");
    reply(1, 200, &grant(1, 1).replace(r#"{"grants""#, r#"{"dials":5,"grants""#));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(4);
    while fetches() < 2 {
        assert!(std::time::Instant::now() < deadline, "no fetch leaves before it were due anyway");
        tick();
    }
}

#[test]
fn a_fetch_that_fails_is_counted_and_told_and_holds_up_nobody() {
    start(&policy("p", ""));
    request(2);
    reply(FETCHES, 503, r#"{"error":"s3cret is down"}"#);
    reply(1, 200, &grant(1, 1));
    assert_eq!(host(|h| h.resumed.clone()), [2]);
    assert_eq!((metric("fetches_failed.d"), metric("calls.d.ok")), (1, 1));
    let line = "fetching dials failed, so the last known dials stay in force: it answered 503: \"[token] is down\"";
    assert_eq!(
        host(|h| h.log.iter().filter(|l| l.contains(line)).count()),
        1,
        "{:?}",
        host(|h| h.log.clone())
    );
}

#[test]
fn a_fetch_that_cannot_leave_is_counted_and_is_not_tried_with_each_request() {
    start(&policy("p", ""));
    host(|h| h.refuse_calls = true);
    for id in 2..6 {
        request(id);
        queue();
    }
    assert_eq!(metric("fetches_failed.d"), 1);
    assert_eq!(host(|h| h.answered.len()), 4);
}

#[test]
fn a_reply_that_is_none_changes_nothing() {
    start(&policy("p", ""));
    request(2);
    reply(FETCHES, 200, "<html>");
    assert_eq!(metric("fetches_failed.d"), 1);
    reply(1, 200, &grant(1, 1));
    assert_eq!(host(|h| h.resumed.clone()), [2]);
}
