//! Bodies: the real cost of a response, and reservations by the request's body.

use std::time::{Duration, Instant};

use crate::document::{behind_cluster, grant, in_memory, policy};
use crate::host::{Envoy, OK, Request, STOP_AND_WATERMARK, logged};

const SETTLED: &str =
    r#","cost":{"reserve":5,"settle":[{"usage":"total"}],"if_missing":"nothing"}"#;
const BY_BODY: &str = r#","cost":{"reserve":{"request_json":"max_tokens","default":2}}"#;
const CONTINUE: u32 = 0;

#[test]
fn usage_in_the_body_is_the_cost() {
    let envoy = Envoy::start(1, &behind_cluster(&policy("p", 9, SETTLED), "", ""));
    let stream = envoy.request(0, Request::get("/"));
    envoy.end_callout(envoy.callout(0).number, 0, OK, &grant(5, 5, 9));
    assert_eq!(stream.status(), 0);
    stream.respond(200, &[("content-type", "text/event-stream")], false);
    for (chunks, end) in [
        (&["data: {\"usage\": {\"prompt_", "tokens\": 1, "][..], false),
        (&["\"completion_tokens\": 2}}\n\n"], false),
        (&["data: [DONE]\n\n"], true),
    ] {
        assert_eq!(stream.response_body(chunks, end), CONTINUE);
    }
    let refund = envoy.callout(1);
    assert!(refund.body.contains(r#""window":1,"units":2}]"#), "{}", refund.body);
    envoy.end_callout(refund.number, 0, OK, r#"{"grants":[]}"#);
    stream.end();
    let _next = envoy.request(0, Request::get("/"));
    let next = envoy.callout(2);
    assert!(next.body.contains(r#""want":5"#) && !next.body.contains("units"), "{}", next.body);
}

#[test]
fn cost_in_nested_metadata_is_refused_with_what_helps() {
    let document = |path: &str| {
        let source = format!(r#"{{"metadata":{{"filter":"f","path":{path}}}}}"#);
        let cost = format!(r#","cost":{{"reserve":2,"settle":[{{"usage":"total"}},{source}]}}"#);
        in_memory("nested", &policy("p", 9, &cost), r#""on_wrong_document":"reject","#, "")
    };
    assert!(Envoy::new(1, &document(r#"["tokens"]"#)).is_ok());
    assert!(Envoy::new(1, &document(r#"["u","tokens"]"#)).is_err());
    let path =
        "configuration refused: policies[0].cost.settle[1].metadata.path: must have one name";
    assert!(logged(&[path, "header_mutation", "response_header"]));
}

#[test]
fn request_waits_for_its_body() {
    let envoy = Envoy::start(1, &behind_cluster(&policy("p", 900, BY_BODY), "", ""));
    let stream = envoy.request(0, Request::get("/").with_body());
    assert_eq!(stream.request_body(&["{\"max_", "tokens\""], false), STOP_AND_WATERMARK);
    assert_eq!(stream.request_body(&[": 300}"], true), STOP_AND_WATERMARK);
    let call = envoy.callout(0);
    assert!(call.body.contains(r#""want":300"#), "{}", call.body);
    envoy.end_callout(call.number, 0, OK, &grant(300, 300, 900));
    assert_eq!(stream.status(), 0);
    assert_eq!(stream.request_body(&["more"], true), CONTINUE);
}

#[test]
fn first_64_kib_of_a_body_are_read_whatever_its_pieces() {
    let envoy = Envoy::start(1, &behind_cluster(&policy("p", 900, BY_BODY), "", ""));
    let body = format!("{{\"max_tokens\": 300, \"prompt\": \"{}\"}}", "a".repeat(64 << 10));
    for (number, pieces) in [vec![&*body], vec![&body[..9], &body[9..]]].iter().enumerate() {
        let stream = envoy.request(0, Request::get("/").with_body());
        stream.request_body(pieces, true);
        let call = envoy.callout(number);
        assert!(call.body.contains(r#""want":300"#), "{}", call.body);
        envoy.end_callout(call.number, 0, OK, &grant(300, 300, 900));
        assert_eq!(stream.status(), 0);
    }
}

#[test]
fn buffer_holds_as_much_of_a_body_as_is_read() {
    let envoy = Envoy::start(1, &in_memory("buffer", &policy("p", 9, BY_BODY), "", ""));
    // To Envoy, 0 means no limit.
    for (limit, expected) in [(16 << 10, 64 << 10), (1 << 20, 1 << 20), (0, 0)] {
        let stream = envoy.request(0, Request::get("/").with_body().with_buffer_limit(limit));
        stream.request_body(&["{\"max_tokens\": 1}"], true);
        assert_eq!((stream.status(), stream.buffer_limit()), (0, expected));
    }
    // Nothing is read of this one.
    let stream = envoy.request(0, Request::get("/").with_buffer_limit(16 << 10));
    assert_eq!((stream.status(), stream.buffer_limit()), (0, 16 << 10));
}

#[test]
fn trailers_end_the_body_of_a_request() {
    let envoy = Envoy::start(1, &behind_cluster(&policy("p", 900, BY_BODY), "", ""));
    let stream = envoy.request(0, Request::get("/").with_body());
    stream.request_body(&["{\"max_tokens\": 300}"], false);
    assert_ne!(stream.request_trailers(), CONTINUE);
    assert!(envoy.callout(0).body.contains(r#""want":300"#));
}

#[test]
fn body_that_takes_too_long_costs_the_default() {
    let envoy = Envoy::start(1, &in_memory("late", &policy("p", 9, BY_BODY), "", ""));
    let stream = envoy.request(0, Request::get("/").with_body());
    stream.request_body(&["{\"max_"], false);
    let started = Instant::now();
    assert_eq!(stream.status(), 0);
    assert!(started.elapsed() > Duration::from_millis(500));
    stream.respond(200, &[], true);
    assert_eq!(stream.response_header("x-ratelimit-remaining").as_deref(), Some("7"));
    assert_eq!(stream.request_body(&["tokens\": 1}"], true), CONTINUE);
}

#[test]
fn streams_that_read_nothing_go_on_at_once() {
    let envoy = Envoy::start(1, &in_memory("plain", &policy("p", 9, ""), "", ""));
    let stream = envoy.request(0, Request::get("/").with_body());
    assert_eq!(stream.status(), 0);
    assert_eq!(stream.request_body(&["{"], true), CONTINUE);
    stream.respond(200, &[("content-type", "application/json")], false);
    assert_eq!(stream.response_body(&["{"], true), CONTINUE);
}
