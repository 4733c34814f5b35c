//! Dials: how the filter fetches them, and that they apply to the next request.

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
fn first_request_fetches_dials_and_sends_a_report() {
    start(&format!("{},{}", policy("p", ""), policy("o", r#","mode":"off""#)));
    assert_eq!(fetches(), 0, "without traffic nothing is fetched");
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
fn dial_applies_to_the_next_request_and_not_to_a_waiting_one() {
    start(&policy("p", ""));
    request(2);
    dials(0, r#"{"policy":"p","mode":"off"}"#);
    assert!(request(3), "no policy counts this request");
    reply(1, 200, &grant(0, 100));
    assert_eq!(host(|h| h.answered.clone()), [(2, 429)]);
    let body: Value = serde_json::from_str(&host(|h| h.answer.body.clone())).unwrap();
    assert_eq!(body["violated-policies"][0], "p", "the refusing policy is named");
    assert_eq!(host(|h| h.calls.len()), 1);
}

#[test]
fn quota_of_a_dial_is_requested_and_shown() {
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
fn request_admitted_in_shadow_mode_shows_no_headers_after_a_switch_to_enforce() {
    start(&policy("p", r#","mode":"shadow""#));
    assert!(request(2));
    dials(0, r#"{"policy":"p","mode":"enforce"}"#);
    reply(1, 200, &grant(1, 1));
    response(2, 200);
    end(2);
    assert!(host(|h| h.response_headers.is_empty()));
    assert!(!request(3), "the next request waits");
}

#[test]
fn dials_are_fetched_while_all_policies_are_off() {
    start(&policy("p", r#","mode":"off""#));
    assert!(request(2) && host(|h| h.ticking), "the worker must tick");
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
fn reply_with_a_newer_dials_version_starts_the_next_fetch() {
    start(&policy("p", ""));
    request(2);
    dials(0, "");
    reply(1, 200, &grant(1, 1).replace(r#"{"grants""#, r#"{"dials":5,"grants""#));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(4);
    while fetches() < 2 {
        assert!(std::time::Instant::now() < deadline, "no fetch was sent before its regular time");
        tick();
    }
}

#[test]
fn failed_fetch_is_counted_and_logged_and_delays_no_request() {
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
fn fetch_that_cannot_be_sent_is_counted_and_not_retried_with_each_request() {
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
fn malformed_reply_changes_nothing() {
    start(&policy("p", ""));
    request(2);
    reply(FETCHES, 200, "<html>");
    assert_eq!(metric("fetches_failed.d"), 1);
    reply(1, 200, &grant(1, 1));
    assert_eq!(host(|h| h.resumed.clone()), [2]);
}
