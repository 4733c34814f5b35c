//! Bodies: the real cost of a response, and reservations by the request's body.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::document::{behind_cluster, grant, in_memory, policy};
use crate::host::{Envoy, Request, STOP_AND_WATERMARK, Stream, logged};

const SETTLED: &str =
    r#","cost":{"reserve":5,"settle":[{"usage":"total"}],"if_missing":"nothing"}"#;
const BY_BODY: &str = r#","cost":{"reserve":{"request_json":"max_tokens","default":2}}"#;
const CONTINUE: u32 = 0;

fn start(name: &str) -> Envoy {
    Envoy::start(1, &in_memory(name, &policy("p", 9, SETTLED), "", ""))
}

fn admitted(envoy: &Envoy) -> Arc<Stream> {
    let stream = envoy.request(0, Request::get("/"));
    assert_eq!(stream.status(), 0);
    stream
}

/// Waits until the counter of nine units holds so many.
fn uses(envoy: &Envoy, used: u64) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut last = String::new();
    while Instant::now() < deadline {
        // Too much to be admitted unless nothing is used.
        let stream = envoy.request(0, Request::get("/"));
        let admitted = stream.status() == 0;
        if admitted {
            stream.respond(200, &[], true);
            last = stream.response_header("x-ratelimit-remaining").unwrap_or_default();
        }
        stream.end();
        if admitted && last == (9 - used - 5).to_string() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{last} units are left after a reservation of 5");
}

#[test]
fn usage_in_the_body_is_the_cost() {
    let envoy = start("settled");
    let stream = admitted(&envoy);
    stream.respond(200, &[("content-type", "text/event-stream")], false);
    for (chunks, end) in [
        (&["data: {\"usage\": {\"prompt_", "tokens\": 1, "][..], false),
        (&["\"completion_tokens\": 2}}\n\n"], false),
        (&["data: [DONE]\n\n"], true),
    ] {
        assert_eq!(stream.response_body(chunks, end), CONTINUE);
    }
    uses(&envoy, 3);
    stream.end();
    uses(&envoy, 3);
}

#[test]
fn trailers_end_a_body_too() {
    let envoy = start("trailers");
    let stream = admitted(&envoy);
    stream.respond(200, &[("content-type", "application/json")], false);
    stream.response_body(&[r#"{"usage": {"total_tokens": 2}}"#], false);
    stream.trailers(&[("x", "y")]);
    uses(&envoy, 2);
    stream.end();
}

#[test]
fn response_that_breaks_off_is_settled_at_the_end() {
    let envoy = start("breaks");
    let stream = admitted(&envoy);
    stream.respond(200, &[("content-type", "application/json")], false);
    stream.response_body(&[r#"{"usage": {"total_"#], false);
    stream.end();
    uses(&envoy, 0);
}

#[test]
fn compressed_body_is_not_read() {
    let envoy = start("gzip");
    let stream = admitted(&envoy);
    let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
    stream.respond(200, &headers, false);
    stream.response_body(&[r#"{"usage": {"total_tokens": 2}}"#], true);
    stream.end();
    uses(&envoy, 0);
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
    envoy.end_callout(call.number, 0, crate::held::OK, &grant(300, 300, 900));
    assert_eq!(stream.status(), 0);
    assert_eq!(stream.request_body(&["more"], true), CONTINUE);
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
fn client_that_leaves_in_the_middle_of_its_body_takes_nothing() {
    let envoy = Envoy::start(1, &in_memory("leaves", &policy("p", 2, BY_BODY), "", ""));
    let stream = envoy.request(0, Request::get("/").with_body());
    stream.request_body(&["{\"max_"], false);
    stream.end();
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(envoy.request(0, Request::get("/")).status(), 0, "two units are left");
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
