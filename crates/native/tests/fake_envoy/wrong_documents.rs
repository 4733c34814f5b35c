//! Documents with faults: what is in force instead.

use crate::document::{behind_cluster, in_memory, policy};
use crate::host::{Envoy, Request, Route, logged};

/// The statuses of so many requests, 0 for those that go on.
fn statuses<const N: usize>(envoy: &Envoy, route: Option<&Route>) -> [u32; N] {
    [(); N].map(|()| {
        let request = Request::get("/");
        let request = match route {
            None => request,
            Some(route) => request.route(route),
        };
        let stream = envoy.request(0, request);
        let status = stream.status();
        stream.respond(200, &[], true);
        stream.end();
        status
    })
}

/// The same document with a fault.
fn wrong(document: &str) -> String {
    document.replace(r#""window":"1h""#, r#""window":"1h","qouta":1"#)
}

/// A document of a domain that no other test has.
fn document(domain: &str, quota: u64, store: &str) -> String {
    let document = in_memory(domain, &policy(domain, quota, ""), "", store);
    document.replace(r#""domain":"d""#, &format!(r#""domain":"{domain}""#))
}

#[test]
fn wrong_update_leaves_the_last_good_document_in_force() {
    let good = document("kept-good", 3, "");
    let mut envoy = Envoy::start(1, &good);
    assert_eq!(statuses(&envoy, None), [0; 2]);
    envoy.update(&wrong(&good)).expect("it is accepted");
    assert!(logged(&["configuration refused: policies[0].qouta: unknown field"]));
    assert!(logged(&["the last good document of the domain kept-good stays in force"]));
    assert_eq!(statuses(&envoy, None), [0, 429, 429], "the quota counts on");
    let refused = [("domain", "kept-good")];
    envoy.counter_reaches(1, "quotagate_documents_refused", &refused);
    envoy.update(&document("kept-good", 4, "")).expect("it is good");
    assert_eq!(statuses(&envoy, None), [0, 429]);
}

#[test]
fn without_a_good_document_on_failure_decides() {
    let good = document("never-good", 1, r#","on_failure":"deny""#);
    let mut envoy = Envoy::start(1, &wrong(&good));
    assert_eq!(statuses(&envoy, None), [503; 3]);
    envoy.counter_reaches(1, "quotagate_documents_refused", &[("domain", "never-good")]);
    envoy.update(&good).expect("it is good");
    assert_eq!(statuses(&envoy, None), [0, 429]);
    let envoy = Envoy::start(1, r#"{"domain":"Never!","#);
    assert_eq!(statuses(&envoy, None), [0; 2], "not even JSON");
    let redis =
        document("bad-url", 1, r#","on_failure":"deny""#).replace("memory:", "redis://[::1");
    assert_eq!(statuses(&Envoy::start(1, &redis), None), [503; 2]);
    assert!(logged(&["configuration refused: store.redis: "]));
}

#[test]
fn worker_without_a_document_tells_the_store_beside_envoy() {
    let envoy = Envoy::start(1, &wrong(&behind_cluster(&policy("untold", 1, ""), "", "")));
    assert_eq!(statuses(&envoy, None), [0]);
    let report = envoy.fetch();
    assert_eq!(report.header(":path"), Some("/v1/telemetry?domain=d"));
    assert!(
        report.body.contains(r#""wrong_document":{"fault":"policies[0].qouta: "#),
        "{}",
        report.body
    );
}

#[test]
fn validation_shows_the_faults_whatever_the_document_says() {
    let good = document("validated", 1, "");
    assert!(Envoy::validate(&good).is_ok());
    assert!(Envoy::validate(&wrong(&good)).is_err());
}

#[test]
fn wrong_document_of_a_route_keeps_what_the_route_had() {
    let envoy = Envoy::start(1, &in_memory("route-wrong", &policy("p", 9, ""), "", ""));
    let own = document("own-route", 2, r#","on_failure":"deny""#);
    let never = envoy.route(&wrong(&own)).expect("it is accepted");
    assert_eq!(statuses(&envoy, Some(&never)), [503; 2], "it has had none");
    let good = envoy.route(&own).expect("it is good");
    assert_eq!(statuses(&envoy, Some(&good)), [0]);
    let kept = envoy.route(&wrong(&own)).expect("it is accepted");
    assert_eq!(statuses(&envoy, Some(&kept)), [0, 429]);
    let other =
        document("other-route", 2, "").replace("other-route\",\"store", "own-route\",\"store");
    let another = envoy.route(&wrong(&other)).expect("it is accepted");
    assert_eq!(statuses(&envoy, Some(&another)), [0; 3], "it may not count as the first route");
    assert_eq!(statuses(&envoy, None), [0], "and the listener counts on");
}
