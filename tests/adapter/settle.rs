//! Bodies: the real cost of a response, and reservations by the request's body.

use std::thread;
use std::time::{Duration, Instant};

use crate::document::{document, grant, policy};
use crate::host::{
    CONTINUE, PAUSE, WATERMARK, body_and_trailers, call, configure, configure_with_bodies, end,
    headers, host, reply, request, request_body, response, response_body, response_head, tick,
};

const SETTLED: &str = r#","cost":{"reserve":5,"settle":[{"usage":"total"}],"if_missing":2}"#;
const BY_BODY: &str = r#","cost":{"reserve":{"request_json":"max_tokens","default":2}}"#;

/// Serves a request that reserves five units.
fn start() {
    assert!(configure_with_bodies(&document(&policy("p", SETTLED), "", "")));
    request(2);
    reply(1, 200, &grant(5, 5));
}

/// The body of the last call, after the next tick.
fn last_call() -> String {
    tick();
    tick();
    call(host(|h| h.calls.len()))
}

/// The units of the only refund or charge since the first call.
fn correction(kind: &str) -> Option<String> {
    let body = last_call();
    assert!(host(|h| h.calls.len()) <= 2, "it is settled once");
    let (_, list) = body.split_once(&format!(r#""{kind}":[{{"#))?;
    let (_, units) = list.split_once(r#""units":"#)?;
    Some(units.split_once('}')?.0.to_owned())
}

#[test]
fn usage_in_pieces_of_a_body_is_the_cost() {
    start();
    response_head(2, "text/event-stream");
    let remaining = host(|h| h.response_headers["x-ratelimit-remaining"].clone());
    assert_eq!(remaining, "95", "what is left before settling");
    for piece in ["data: {\"usage\": {\"total_tok", "ens\": 12}}\n", "\n"] {
        assert_eq!(response_body(2, piece, false), CONTINUE);
    }
    assert_eq!(response_body(2, "", true), CONTINUE);
    end(2);
    assert_eq!(correction("charges").as_deref(), Some("7"));
}

#[test]
fn other_bodies_are_not_fetched_after_their_first_bytes() {
    start();
    response_head(2, "text/html");
    response_body(2, "<html>", false);
    let before = host(|h| h.made);
    response_body(2, "{\"usage\": {\"total_tokens\": 1}}", false);
    assert_eq!(host(|h| h.made), before);
    end(2);
    assert_eq!(correction("refunds").as_deref(), Some("3"));
}

#[test]
fn streams_that_do_not_settle_make_no_host_call_for_bodies() {
    assert!(configure_with_bodies(&document(&policy("p", ""), "", "")));
    request(2);
    reply(1, 200, &grant(1, 1));
    response_head(2, "application/json");
    let before = host(|h| h.made);
    assert_eq!(response_body(2, "{", true), CONTINUE);
    assert_eq!(body_and_trailers(2), [CONTINUE, CONTINUE]);
    assert_eq!(host(|h| h.made), before);
}

#[test]
fn large_piece_is_fetched_in_parts() {
    start();
    response_head(2, "application/json");
    let text = "x".repeat(100_000);
    response_body(2, &format!(r#"{{"x": "{text}", "usage": {{"total_tokens": 1}}}}"#), true);
    assert!(host(|h| h.ticking));
    assert_eq!(correction("refunds").as_deref(), Some("4"));
}

#[test]
fn file_without_bodies_refuses_policies_that_read_them() {
    for fields in [SETTLED, BY_BODY] {
        // One host per thread.
        let refused = thread::spawn(move || {
            let reject = r#""on_wrong_document":"reject","#;
            assert!(!configure(&document(&policy("p", fields), reject, "")));
            assert!(host(|h| h.log.last().unwrap().contains("quotagate-bodies.wasm")));
        });
        refused.join().unwrap();
    }
    let by_header = SETTLED.replace(r#"{"usage":"total"}"#, r#"{"response_header":"x-cost"}"#);
    assert!(configure(&document(&policy("p", &by_header), "", "")));
    request(2);
    reply(1, 200, &grant(5, 5));
    host(|h| h.upstream_headers = vec![("x-cost".into(), b"4".into())]);
    response(2, 200);
    end(2);
    assert_eq!(correction("refunds").as_deref(), Some("1"));
}

/// A request whose body is read.
fn reading() {
    assert!(configure_with_bodies(&document(&policy("p", BY_BODY), "", "")));
    assert_eq!(headers(2, false), PAUSE);
    assert!(host(|h| h.calls.is_empty() && h.ticking));
}

#[test]
fn request_waits_for_its_body() {
    reading();
    assert_eq!(request_body(2, r#"{"max_to"#, false), WATERMARK);
    assert_eq!(request_body(2, r#"kens": 30}"#, true), WATERMARK);
    assert!(last_call().contains(r#""want":30"#));
    reply(1, 200, &grant(30, 30));
    assert_eq!(host(|h| h.resumed.clone()), [2]);
    assert_eq!(request_body(2, "more", true), CONTINUE);
}

#[test]
fn trailers_end_the_body_of_a_request() {
    reading();
    request_body(2, r#"{"max_tokens": 30}"#, false);
    assert_eq!(body_and_trailers(2)[1], PAUSE);
    assert!(last_call().contains(r#""want":30"#));
}

#[test]
fn request_without_a_body_costs_the_default_at_once() {
    assert!(configure_with_bodies(&document(&policy("p", BY_BODY), "", "")));
    request(2);
    assert!(last_call().contains(r#""want":2"#));
}

#[test]
fn body_that_takes_too_long_costs_the_default() {
    reading();
    request_body(2, r#"{"max_to"#, false);
    let started = Instant::now();
    while host(|h| h.calls.is_empty()) {
        assert!(started.elapsed() < Duration::from_secs(10));
        thread::sleep(Duration::from_millis(10));
        tick();
    }
    assert!(started.elapsed() > Duration::from_millis(800));
    assert!(last_call().contains(r#""want":2"#));
    assert_eq!(request_body(2, r#"kens": 1}"#, true), WATERMARK, "the decision is awaited");
    reply(1, 200, &grant(2, 2));
    assert_eq!(host(|h| h.resumed.clone()), [2]);
}

/// Whether a body that stops at a full buffer is decided before a shorter one that is as old.
fn full_buffer_comes_first() -> bool {
    reading();
    assert_eq!(headers(3, false), PAUSE);
    let piece = format!(r#"{{"max_tokens": 30, "prompt": "{}"#, "x".repeat(16 << 10));
    request_body(2, r#"{"max_tokens": 40, "#, false);
    request_body(3, &piece, false);
    let started = Instant::now();
    while host(|h| h.calls.is_empty()) {
        assert!(started.elapsed() < Duration::from_secs(10));
        thread::sleep(Duration::from_millis(10));
        tick();
    }
    assert!(started.elapsed() > Duration::from_millis(400), "more might come");
    let call = call(1);
    call.contains(r#""want":30"#) && !call.contains(r#""want":40"#)
}

#[test]
fn body_that_stops_at_a_full_buffer_is_decided_soon() {
    // A machine may be too busy to tell 500 ms from a second, but not each time.
    assert!((0..10).any(|_| thread::spawn(full_buffer_comes_first).join().unwrap()));
}
