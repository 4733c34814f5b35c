//! Configurations of routes.

use crate::document::{ALL_LOG_FIELDS, behind_cluster, in_memory, policy};
use crate::host::{Envoy, Request, logged};

#[test]
fn disabled_route_counts_nothing() {
    let envoy = Envoy::start(1, &in_memory("disabled", &policy("p", 1, ""), ALL_LOG_FIELDS, ""));
    let route = envoy.route(r#"{"disabled": true}"#).expect("it is accepted");
    for _ in 0..3 {
        let stream = envoy.request(0, Request::get("/").route(&route));
        assert!(!stream.is_held());
        stream.respond(200, &[], true);
        stream.end();
        assert_eq!(stream.logged("quotagate.decision"), None);
    }
    assert_eq!(envoy.request(0, Request::get("/")).status(), 0, "nothing was counted");
}

#[test]
fn route_with_a_document_of_its_own_counts_by_it_alone() {
    let envoy = Envoy::start(1, &in_memory("listener", &policy("p", 1, ""), "", ""));
    let route = envoy.route(&in_memory("own", &policy("own", 2, ""), "", "")).expect("accepted");
    let statuses = [0; 3].map(|_| {
        let stream = envoy.request(0, Request::get("/").route(&route));
        let status = stream.status();
        stream.respond(200, &[], true);
        stream.end();
        status
    });
    assert_eq!(statuses, [0, 0, 429]);
    assert_eq!(envoy.request(0, Request::get("/")).status(), 0);
    assert_eq!(envoy.request(0, Request::get("/")).status(), 429);
    assert!(envoy.counter("quotagate_requests", &[("policy", "own")]) >= 3, "in the listener's");
}

#[test]
fn route_with_faults_or_a_cluster_is_refused() {
    let envoy = Envoy::start(1, &in_memory("routes", &policy("p", 1, ""), "", ""));
    for (document, fault) in [
        (r#"{"disabled": false, "on_wrong_document": "reject"}"#, "disabled"),
        (
            &*behind_cluster(&policy("p", 1, ""), r#""on_wrong_document":"reject","#, ""),
            "store.cluster: Envoy makes no calls",
        ),
    ] {
        assert!(envoy.route(document).is_err());
        assert!(logged(&["configuration refused", fault]), "{fault}");
    }
}
