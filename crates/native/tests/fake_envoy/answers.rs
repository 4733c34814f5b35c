//! What clients, access logs and metrics see.

use crate::document::{ALL_LOG_FIELDS, in_memory, policy};
use crate::host::{AsEnvoy, Envoy, Request, load, logged};
use crate::panics::alone;

#[test]
fn module_names_the_callback_that_envoy_lacks_and_refuses_to_load() {
    // The linker does not export this program's callbacks, so that the module cannot find them.
    let Some(lines) =
        alone("answers::module_names_the_callback_that_envoy_lacks_and_refuses_to_load")
    else {
        assert_eq!(load(), None);
        return;
    };
    let sentences: Vec<_> =
        lines.lines().filter(|line| line.contains("this Envoy lacks")).collect();
    assert_eq!(sentences.len(), 1, "{lines}");
    assert!(sentences[0].contains("envoy_dynamic_module_callback_log, "), "{lines}");
    assert!(sentences[0].contains("run Envoy 1.38 or later, or the Wasm form"), "{lines}");
}

#[test]
fn name_of_the_proxy_is_logged() {
    let _envoy = Envoy::start(1, &in_memory("named", &policy("p", 2, ""), "", ""));
    assert!(logged(&["quotagate: the name of this proxy is "]));
}

#[test]
fn request_waits_and_goes_on_or_is_refused() {
    let envoy = Envoy::start(1, &in_memory("waits", &policy("p", 2, ""), ALL_LOG_FIELDS, ""));
    for remaining in ["1", "0"] {
        let stream = envoy.request(0, Request::get("/"));
        assert!(stream.decision().is_none());
        stream.respond(200, &[("x-app", "1")], true);
        assert_eq!(stream.response_header("x-ratelimit-limit").as_deref(), Some("2"));
        assert_eq!(stream.response_header("x-ratelimit-remaining").as_deref(), Some(remaining));
        stream.end();
        assert_eq!(stream.logged("quotagate.decision").as_deref(), Some("admitted"));
        assert_eq!(stream.logged("quotagate.policy").as_deref(), Some("p"));
    }
    for ends_when_answered in [false, true] {
        let as_envoy = AsEnvoy { ends_when_answered, ..AsEnvoy::default() };
        let stream = envoy.request(0, Request::get("/").with_envoy(as_envoy));
        let answer = stream.decision().expect("refused");
        assert_eq!((answer.status, &*answer.details), (429, "request_rate_limited"));
        assert!(answer.header("retry-after").is_some() && !answer.body.is_empty(), "{answer:?}");
        stream.end();
        assert_eq!(stream.logged("quotagate.decision").as_deref(), Some("refused"));
    }
    assert_eq!(envoy.request(0, Request::get("/")).status(), 429, "at once");
}

#[test]
fn request_that_no_policy_counts_goes_on_at_once() {
    let policies = policy("p", 1, r#","match":{"path":{"exact":"/counted"}}"#);
    let envoy = Envoy::start(1, &in_memory("uncounted", &policies, ALL_LOG_FIELDS, ""));
    let stream = envoy.request(0, Request::get("/"));
    assert!(!stream.is_held());
    assert_eq!(stream.status(), 0);
    stream.respond(200, &[], true);
    stream.end();
    assert_eq!(stream.response_header("x-ratelimit-limit"), None);
    assert_eq!(stream.logged("quotagate.decision"), None);
}

#[test]
fn request_without_an_identity_is_answered_401() {
    let policies = policy("p", 1, r#","partition_by":["tenant"],"on_missing":"deny""#);
    let envoy = Envoy::start(1, &in_memory("missing", &policies, ALL_LOG_FIELDS, ""));
    let stream = envoy.request(0, Request::get("/"));
    assert_eq!(stream.status(), 401);
    stream.end();
    assert_eq!(stream.logged("quotagate.decision").as_deref(), Some("missing_identity"));
    let counted = envoy.counter_reaches(1, "quotagate_missing_identity", &[("policy", "p")]);
    assert_eq!(counted, 1);
}

#[test]
fn grpc_client_gets_a_grpc_status_and_a_pushback() {
    let envoy = Envoy::start(1, &in_memory("grpc", &policy("p", 1, ""), "", ""));
    assert_eq!(envoy.request(0, Request::get("/")).status(), 0);
    for (content_type, status) in [("application/grpc+proto", Some("8")), ("text/plain", None)] {
        let stream = envoy.request(0, Request::get("/").header("content-type", content_type));
        let answer = stream.decision().expect("refused");
        assert_eq!(answer.header("grpc-status"), status);
        assert_eq!(answer.header("grpc-retry-pushback-ms").is_some(), status.is_some());
    }
}

#[test]
fn counters_have_labels_and_are_complete_soon_after_the_last_stream() {
    let policies = [policy("p", 3, ""), policy("shadow", 1, r#","mode":"shadow""#)].join(",");
    let envoy = Envoy::start(2, &in_memory("counters", &policies, "", ""));
    for _ in 0..5 {
        for worker in [0, 1] {
            let stream = envoy.request(worker, Request::get("/"));
            stream.decision();
            stream.respond(200, &[], true);
            stream.end();
        }
    }
    let count = |policy, outcome| {
        envoy.counter(
            "quotagate_requests",
            &[("domain", "d"), ("policy", policy), ("outcome", outcome)],
        )
    };
    let refused = [("policy", "p"), ("outcome", "refused")];
    envoy.counter_reaches(7, "quotagate_requests", &refused);
    assert_eq!((count("p", "admitted"), count("p", "refused")), (3, 7));
    assert_eq!(count("shadow", "admitted"), 1);
    assert!(count("shadow", "shadow_refused") >= 2);
    assert!(envoy.counter("quotagate_calls", &[("domain", "d"), ("outcome", "ok")]) >= 3);
}

#[test]
fn all_faults_of_a_document_are_logged_and_it_is_refused() {
    let document = r#"{"domain":"Faulty!","store":{"redis":"memory:"},"on_wrong_document":"reject",
        "policies":[{"name":"a","quota":-77,"window":"1x"}]}"#;
    assert!(Envoy::new(1, document).is_err());
    for path in ["domain", "policies[0].quota", "policies[0].window", "policies[0].partition_by"] {
        assert!(logged(&["configuration refused", path]), "{path}");
    }
    assert!(Envoy::validate(document).is_err());
    let reject = r#""on_wrong_document":"reject","#;
    let url = in_memory("x", &policy("p", 1, ""), reject, "").replace("memory:", "redis://[::1");
    assert!(Envoy::new(1, &url).is_err());
    assert!(logged(&["configuration refused: store.redis: "]));
}

#[test]
fn refused_update_keeps_the_configuration() {
    let mut envoy = Envoy::start(1, &in_memory("kept", &policy("p", 1, ""), "", ""));
    assert!(envoy.update(r#"{"domain":"?","on_wrong_document":"reject"}"#).is_err());
    assert_eq!(envoy.request(0, Request::get("/")).status(), 0);
    assert_eq!(envoy.request(0, Request::get("/")).status(), 429);
}
