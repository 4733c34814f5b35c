//! `store.cluster`: calls by Envoy's callouts, with every end.

use std::time::{Duration, Instant};

use crate::document::{behind_cluster, grant, policy};
use crate::held::OK;
use crate::host::{Envoy, Request};

fn start(store: &str) -> Envoy {
    let store = format!(r#","on_failure":"deny"{store}"#);
    Envoy::start(1, &behind_cluster(&policy("p", 100, ""), "", &store))
}

#[test]
fn store_behind_a_cluster_is_called_with_the_token_and_its_grant_decides() {
    let envoy = start(r#","token":"c2VjcmV0""#);
    let stream = envoy.request(0, Request::get("/"));
    let call = envoy.callout(0);
    assert_eq!(call.cluster, "s");
    assert_eq!(call.header(":method"), Some("POST"));
    assert_eq!(call.header(":authority"), Some("quotagate"));
    assert_eq!(call.header("authorization"), Some("Bearer c2VjcmV0"));
    assert!(call.body.contains(r#""key":"d:p:{*}""#), "{}", call.body);
    assert!(call.timeout_ms <= 20_000);
    assert!(stream.is_held());
    envoy.end_callout(call.number, 0, OK, &grant(1, 40, 100));
    assert_eq!(stream.status(), 0);
    stream.respond(200, &[], true);
    assert_eq!(stream.response_header("x-ratelimit-remaining").as_deref(), Some("60"));
}

#[test]
fn every_end_of_a_callout_decides_the_request() {
    const BY_ENVOY: &[(&str, &str)] = &[(":status", "504")];
    const BUSY: &[(&str, &str)] = &[(":status", "503"), ("x-envoy-upstream-service-time", "1")];
    for (result, headers, body) in [
        (1, &[][..], ""),
        (0, &[], ""),
        (0, BY_ENVOY, "upstream request timeout"),
        (0, BUSY, "no"),
        (0, OK, ""),
        (0, OK, "<html>"),
        (0, OK, r#"{"grants":[]}"#),
        (0, &[(":status", "x")], ""),
    ] {
        let envoy = start("");
        let stream = envoy.request(0, Request::get("/"));
        let call = envoy.callout(0);
        envoy.end_callout(call.number, result, headers, body);
        assert_eq!(stream.status(), 503, "{result} {headers:?} {body}");
        // An end that comes twice, or belongs to no call, changes nothing.
        envoy.end_callout(call.number, result, headers, body);
        envoy.end_callout(999, 0, OK, "");
    }
}

#[test]
fn callout_that_does_not_start_decides_the_request() {
    for result in [1, 2, 3, 4] {
        let envoy = start("");
        envoy.refuse_callouts(Some(result));
        assert_eq!(envoy.request(0, Request::get("/")).status(), 503, "{result}");
    }
}

#[test]
fn invariant_2_callout_without_an_end_is_decided_by_the_deadline() {
    let envoy = start(r#","timeout":"300ms""#);
    let begun = Instant::now();
    let streams: Vec<_> = (0..5).map(|_| envoy.request(0, Request::get("/"))).collect();
    for stream in &streams {
        assert_eq!(stream.status(), 503);
    }
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn configuration_that_ends_during_a_callout_leaves_nothing_behind() {
    let mut envoy = start("");
    let stream = envoy.request(0, Request::get("/"));
    envoy.callout(0);
    envoy.unconfigure();
    assert!(stream.is_held(), "its stream has it still");
    stream.end();
}
