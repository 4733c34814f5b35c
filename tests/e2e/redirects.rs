//! Internal redirects: Envoy serves the request a second time, and each policy counts it once.

use anyhow::Result;
use quotagate_support::envoy;
use quotagate_support::http::Request;
use quotagate_support::yaml;
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::{Rig, document};

/// Envoy follows the first redirect and passes the second one to the client.
fn redirecting(config: &mut Value) -> Result<()> {
    let route = yaml::at(envoy::manager(config)?, "/route_config/virtual_hosts/0/routes/0/route")?;
    route["internal_redirect_policy"] = json!({"max_internal_redirects": 1});
    Ok(())
}

#[test]
fn redirected_request_is_counted_once_by_each_policy() -> Result<()> {
    let policy = |name: &str, fields: Value| {
        let mut policy = json!({"name": name, "partition_by": [], "quota": 10, "window": "366d"});
        policy
            .as_object_mut()
            .expect("an object")
            .extend(fields.as_object().expect("an object").clone());
        policy
    };
    let rig = Rig::start_with(
        document(json!([
            policy("all", json!({})),
            policy("first", json!({"match": {"path": {"exact": "/first"}}})),
            policy("second", json!({"match": {"path": {"exact": "/second"}}})),
            policy("found", json!({"count": {"status": [302]}})),
            policy("fine", json!({"count": {"status": [200]}})),
            policy(
                "leased",
                json!({"quota": 10_000, "precision": "lease", "lease": {"ahead": "1s"}})
            ),
            policy("trial", json!({"mode": "shadow"})),
        ])),
        |options| options.edit(redirecting),
    )?;
    let request = Request::get("/first").header("x-answer-status", "302");
    let request = request.header("x-answer-header-location", "http://localhost/second");
    for round in 1..=3 {
        let response = rig.client()?.send(&request)?;
        assert_eq!((response.status, rig.upstream.requests()), (302, 2 * round));
        let listed = response.header("ratelimit").unwrap_or_default().to_owned();
        let left = 10 - round;
        for name in ["all", "first", "second", "found"] {
            assert!(
                listed.contains(&format!("\"{name}\";r={left};")),
                "{name} in round {round}: {listed}"
            );
        }
        for (policy, units) in [
            ("all", round),
            ("first", round),
            ("second", round),
            ("found", round),
            ("fine", 0),
            ("trial", round),
        ] {
            inspect::settled(&rig.redis, policy, units)?;
        }
    }
    Ok(())
}

#[test]
fn redirect_into_a_spent_quota_is_refused() -> Result<()> {
    let second = json!({
        "name": "second", "partition_by": [], "quota": 1, "window": "366d", "match": {"path": {"exact": "/second"}}
    });
    let all = json!({"name": "all", "partition_by": [], "quota": 10, "window": "366d"});
    let rig = Rig::start_with(document(json!([all, second])), |options| options.edit(redirecting))?;
    let request = Request::get("/first").header("x-answer-status", "302");
    let request = request.header("x-answer-header-location", "http://localhost/second");
    assert_eq!(rig.statuses(&[request.clone(), request])?, [302, 429]);
    inspect::settled(&rig.redis, "all", 2)
}
