//! Dials: how the filter fetches them, and that they apply.

use serde_json::Value;

use crate::document::{DENY, document, grant, policy};
use crate::host::{FETCHES, configure, dials, host, lines, metric, reply, request, tick};

fn start(policies: &str) {
    assert!(configure(&document(policies, "", &format!(r#"{DENY},"token":"s3cret""#))));
}

fn fetches() -> usize {
    host(|h| h.fetches.len())
}

#[test]
fn first_request_fetches_dials_and_sends_a_report() {
    start(&format!("{},{}", policy("p", ""), policy("o", r#","mode":"off""#)));
    assert_eq!(fetches(), 0, "without traffic nothing is fetched");
    request(2);
    let (fetch, report) = host(|h| h.fetches[0].clone());
    let expected = |path| {
        [
            (":authority", "quotagate"),
            (":method", "POST"),
            (":path", path),
            ("authorization", "Bearer s3cret"),
            ("content-type", "application/json"),
        ]
    };
    for (mut headers, path) in
        [(fetch, "/v1/telemetry?domain=d"), (host(|h| h.call_headers.clone()), "/v1/reserve")]
    {
        headers.sort();
        let of = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        assert_eq!(headers, expected(path).map(of));
    }
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
fn failed_fetch_is_counted_and_logged_and_delays_no_request() {
    start(&policy("p", ""));
    request(2);
    reply(FETCHES, 503, r#"{"error":"s3cret is down"}"#);
    reply(1, 200, &grant(1, 1));
    assert_eq!(host(|h| h.resumed.clone()), [2]);
    tick();
    assert_eq!((metric("quotagate_fetches_failed.d"), metric("quotagate_calls.d.ok")), (1, 1));
    let line = "fetching dials failed, so the last known dials stay in force: it answered 503: \"[token] is down\"";
    assert_eq!(lines(line), 1, "{:?}", host(|h| h.log.clone()));
}
