//! Policies that count by status hold units while a request runs, and redirects.

use std::sync::Arc;
use std::time::Duration;

use crate::document::{ALL_LOG_FIELDS, behind_cluster, grant, in_memory, policy};
use crate::host::{AsEnvoy, Envoy, OK, Request, Stream, eventually};

const COUNTED: &str = r#","count":{"status":[401],"grpc_status":[16],"abandoned":"refund"}"#;

fn start(name: &str) -> Envoy {
    Envoy::start(1, &in_memory(name, &policy("p", 1, COUNTED), ALL_LOG_FIELDS, ""))
}

/// Waits until the only unit is refunded, by taking it.
fn is_refunded(envoy: &Envoy) {
    eventually("the unit is refunded", || {
        let stream = envoy.request(0, Request::get("/"));
        let admitted = stream.status() == 0;
        stream.end();
        admitted.then_some(())
    });
}

fn admitted(envoy: &Envoy) -> Arc<Stream> {
    let stream = envoy.request(0, Request::get("/").header("x-request-id", "r1"));
    assert_eq!(stream.status(), 0);
    stream
}

#[test]
fn status_that_does_not_count_refunds_the_unit_once() {
    let envoy = start("status-refunds");
    let stream = admitted(&envoy);
    stream.respond(200, &[], true);
    assert_eq!(stream.response_header("x-ratelimit-remaining").as_deref(), Some("1"));
    stream.end();
    assert_eq!(stream.logged("quotagate.used").as_deref(), Some("0"));
    is_refunded(&envoy);
}

#[test]
fn grpc_status_in_trailers_decides() {
    let envoy = start("grpc-status");
    let stream = admitted(&envoy);
    stream.respond(200, &[("content-type", "application/grpc")], false);
    stream.trailers(&[("grpc-status", "0")]);
    stream.end();
    is_refunded(&envoy);
}

#[test]
fn client_that_leaves_gets_its_unit_back() {
    let envoy = start("abandoned");
    admitted(&envoy).end();
    is_refunded(&envoy);
}

#[test]
fn upstream_that_fails_inside_the_resumption_settles_the_unit() {
    let envoy = start("fails-inside");
    let as_envoy = AsEnvoy { answers_when_resumed: Some(503), ..AsEnvoy::default() };
    let stream = envoy.request(0, Request::get("/").with_envoy(as_envoy));
    assert_eq!(stream.status(), 0);
    is_refunded(&envoy);
}

#[test]
fn redirected_request_is_counted_once() {
    let envoy = Envoy::start(1, &in_memory("redirected", &policy("p", 2, ""), ALL_LOG_FIELDS, ""));
    let again = admitted(&envoy).redirect(Request::get("/b"));
    let other = envoy.request(0, Request::get("/").header("x-request-id", "r1"));
    assert_eq!(other.status(), 0, "another request with the same id");
    other.respond(200, &[], true);
    assert_eq!(other.response_header("x-ratelimit-remaining").as_deref(), Some("0"));
    let second = envoy.request(0, again);
    assert!(!second.is_held());
    let third = envoy.request(0, second.redirect(Request::get("/c")));
    third.respond(200, &[], true);
    assert_eq!(third.response_header("x-ratelimit-remaining").as_deref(), Some("1"));
    third.end();
    assert_eq!(third.logged("quotagate.decision").as_deref(), Some("admitted"));
    assert_eq!(envoy.request(0, Request::get("/")).status(), 429);
}

#[test]
fn redirected_request_that_no_filter_sees_again_ends_as_abandoned() {
    let envoy = start("redirected-abandoned");
    drop(admitted(&envoy).redirect(Request::get("/elsewhere")));
    is_refunded(&envoy);
}

#[test]
fn invariant_3_client_that_leaves_while_it_waits_gets_its_unit_back() {
    let envoy = Envoy::start(1, &behind_cluster(&policy("p", 9, ""), "", ""));
    let stream = envoy.request(0, Request::get("/"));
    let call = envoy.callout(0);
    assert!(stream.is_held());
    stream.end();
    envoy.end_callout(call.number, 0, OK, &grant(1, 1, 9));
    assert!(envoy.callout(1).body.contains(r#""units":1}"#), "a refund");
    assert!(!stream.is_decided());
}

#[test]
fn streams_that_end_inside_another_ones_answer_are_left_alone() {
    let envoy = Envoy::start(1, &behind_cluster(&policy("p", 9, ""), "", ""));
    let as_envoy = AsEnvoy { ends_when_answered: true, ..AsEnvoy::default() };
    let request = || Request::get("/").with_envoy(as_envoy);
    let first = envoy.request(0, request());
    let rest: Vec<_> = (0..3).map(|_| envoy.request(0, request())).collect();
    first.takes_along(&rest[0]);
    rest[1].takes_along(&rest[2]);
    // The rest waits for calls of its own.
    envoy.end_callout(envoy.callout(0).number, 0, OK, &grant(0, 9, 9));
    assert_eq!(first.status(), 429);
    for known in 1..=2 {
        if !rest[1].is_decided() {
            envoy.end_callout(envoy.callout(known).number, 0, OK, &grant(0, 9, 9));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    assert_eq!(rest[1].status(), 429);
    assert!(!rest[0].is_decided() && !rest[2].is_decided());
}
