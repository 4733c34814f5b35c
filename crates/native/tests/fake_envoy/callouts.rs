//! `store.cluster`: calls by Envoy's callouts, with every end.

use std::thread;
use std::time::{Duration, Instant};

use crate::document::{behind_cluster, grant, policy};
use crate::host::{Envoy, OK, Request};

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
    envoy.never_time_out();
    let begun = Instant::now();
    let streams: Vec<_> = (0..5).map(|_| envoy.request(0, Request::get("/"))).collect();
    for stream in &streams {
        assert_eq!(stream.status(), 503);
    }
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn configuration_that_ends_on_a_worker_has_no_pending_callout() {
    for timeout in ["300ms", "1s"] {
        let mut envoy = start(&format!(r#","timeout":"{timeout}""#));
        let streams = [0; 3].map(|_| envoy.request(0, Request::get("/")));
        envoy.callout(0);
        assert!(envoy.pending() > 0);
        envoy.unconfigure();
        assert!(streams[0].is_held(), "its streams have it still");
        let begun = Instant::now();
        // The clients leave before the callout ends. The last one takes the configuration along.
        for stream in &streams {
            stream.end();
        }
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    }
}

#[test]
fn configuration_that_ends_on_the_main_thread_waits_for_nothing() {
    let mut envoy = start(r#","timeout":"60s""#);
    let stream = envoy.request(0, Request::get("/"));
    envoy.callout(0);
    stream.end();
    let begun = Instant::now();
    envoy.unconfigure();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn refunds_of_an_old_configuration_are_sent_by_its_successor() {
    let counted = r#","count":{"status":[401],"abandoned":"refund"}"#;
    let document = behind_cluster(&policy("p", 100, counted), "", "");
    let mut envoy = Envoy::start(1, &document);
    let stream = envoy.request(0, Request::get("/"));
    let call = envoy.callout(0);
    envoy.end_callout(call.number, 0, OK, &grant(1, 1, 100));
    assert_eq!(stream.status(), 0);
    envoy.update(&document).expect("it is accepted");
    // The main thread is busy, so the old configuration ends before its call is made.
    envoy.main.post(|| thread::sleep(Duration::from_millis(300)));
    stream.respond(200, &[], true);
    stream.end();
    // The new configuration has served nothing, so this is the old one's call.
    let call = envoy.callout(0);
    assert!(call.body.contains(r#""refunds":[{"key":"d:p:{*}""#), "{}", call.body);
    assert!(call.body.contains(r#""units":1"#), "{}", call.body);
}
