//! `mode: mark`: a request beyond its quota goes on, with a header that the upstream and the routes
//! see, and that no client can bring along.

use std::time::Duration;

use anyhow::Result;
use quotagate_support::envoy::{Form, manager};
use quotagate_support::http::{Request, Response};
use quotagate_support::{wait, yaml};
use serde_json::{Value, json};

use crate::rig::{Rig, document};

const MARK: &str = "x-quotagate-exceeded";

/// Marked requests take the route `overflow`, all others `main`. Responses show the route, and the
/// mark that the upstream got.
fn with_overflow(config: &mut Value) -> Result<()> {
    let host = yaml::at(manager(config)?, "/route_config/virtual_hosts/0")?;
    let show = |name: &str, value: &str| json!({"header": {"key": name, "value": value}});
    host["response_headers_to_add"] =
        json!([show("x-route", "%ROUTE_NAME%"), show("x-seen", "%REQ(X-QUOTAGATE-EXCEEDED)%")]);
    let condition = json!({"name": MARK, "present_match": true});
    let overflow = json!({"name": "overflow", "match": {"prefix": "/", "headers": [condition]},
        "route": {"cluster": "upstream"}});
    let routes = yaml::list(host, "routes")?;
    routes[0]["name"] = json!("main");
    routes.insert(0, overflow);
    Ok(())
}

fn start(policies: Value) -> Result<Rig> {
    Rig::start_with(document(policies), |options| options.edit(with_overflow))
}

fn budget(quota: u64, more: Value) -> Value {
    let mut policy = json!({"name": "budget", "partition_by": [], "quota": quota,
        "window": "366d", "mode": "mark"});
    policy.as_object_mut().expect("an object").extend(more.as_object().expect("fields").clone());
    policy
}

/// The route of a response, and the mark that the upstream got.
fn went(response: &Response) -> (u16, &str, Option<&str>) {
    (response.status, response.header("x-route").unwrap_or_default(), response.header("x-seen"))
}

const MAIN: (u16, &str, Option<&str>) = (200, "main", None);
const OVERFLOW: (u16, &str, Option<&str>) = (200, "overflow", Some("budget"));

#[test]
fn request_beyond_its_quota_takes_the_route_of_the_mark() -> Result<()> {
    let strict = json!({"name": "strict", "partition_by": [], "quota": 4, "window": "366d"});
    let rig = start(json!([budget(2, json!({})), strict]))?;
    let mut client = rig.client()?;
    for (left, expected) in [(3, MAIN), (2, MAIN), (1, OVERFLOW), (0, OVERFLOW)] {
        // The body waits with the headers, and no client can bring the mark along.
        let request = Request::post("/", b"body").header(MARK, "budget, strict");
        let response = client.send(&request)?;
        assert_eq!(went(&response), expected);
        let limit = response.header("ratelimit").expect("a RateLimit header");
        assert!(limit.starts_with(&format!("\"strict\";r={left}")), "only what refuses: {limit}");
        assert!(!limit.contains("budget"), "{limit}");
    }
    assert_eq!(client.send(&Request::get("/"))?.status, 429);
    assert_eq!(rig.upstream.requests(), 4);
    wait::until_true("the metrics", Duration::from_secs(30), || {
        let counted = |outcome| {
            let labels = [("domain", "shop"), ("policy", "budget"), ("outcome", outcome)];
            rig.envoy.metric("quotagate_requests", &labels)
        };
        Ok((counted("admitted")?, counted("marked")?) == (Some(2), Some(2)))
    })
}

#[test]
fn request_beyond_a_concurrency_limit_takes_the_route_of_the_mark() -> Result<()> {
    let rig = start(json!([
        {"name": "budget", "partition_by": [], "in_flight": 1, "mode": "mark"}
    ]))?;
    let mut running = rig.client()?;
    running.start(&Request::get("/").header("x-answer-delay-ms", "2000"))?;
    wait::until_true("the request to run", Duration::from_secs(20), || {
        Ok(rig.upstream.requests() == 1)
    })?;
    let mut client = rig.client()?;
    assert_eq!(went(&client.send(&Request::get("/"))?), OVERFLOW);
    assert_eq!(went(&running.finish()?), MAIN);
    wait::until_true("the slot to be free", Duration::from_secs(5), || {
        Ok(went(&client.send(&Request::get("/"))?) == MAIN)
    })
}

#[test]
fn known_spent_counter_marks_at_once() -> Result<()> {
    let rig = start(json!([budget(0, json!({}))]))?;
    let mut client = rig.client()?;
    for _ in 0..3 {
        assert_eq!(went(&client.send(&Request::get("/"))?), OVERFLOW);
    }
    Ok(())
}

#[test]
fn forged_mark_chooses_no_route_for_policies() -> Result<()> {
    let rig = start(json!([budget(2, json!({"match": {"routes": ["main"]}}))]))?;
    let mut client = rig.client()?;
    let forged = Request::get("/").header(MARK, "");
    let response = client.send(&forged)?;
    if Form::of_run()? == Form::Native {
        assert_eq!(went(&response), MAIN, "counted");
        assert_eq!(went(&client.send(&Request::get("/"))?), MAIN);
        assert_eq!(went(&client.send(&forged)?), OVERFLOW);
    } else {
        assert_eq!(response.status, 400, "Wasm: the route is that of the forged mark");
        assert_eq!(rig.upstream.requests(), 0);
        // Envoy closes the connection of a bad request.
        assert_eq!(went(&rig.client()?.send(&Request::get("/"))?), MAIN);
    }
    Ok(())
}

#[test]
fn failed_store_marks_by_the_failure_mode() -> Result<()> {
    for (on_failure, expected) in [("allow", [MAIN, MAIN]), ("local", [MAIN, OVERFLOW])] {
        let mut rig = start(json!([budget(1, json!({"on_failure": on_failure}))]))?;
        rig.kill_counting()?;
        let mut client = rig.client()?;
        for expected in expected {
            assert_eq!(went(&client.send(&Request::get("/"))?), expected, "{on_failure}");
        }
    }
    let mut rig = start(json!([budget(1, json!({"on_failure": "deny"}))]))?;
    rig.kill_counting()?;
    assert_eq!(rig.client()?.send(&Request::get("/"))?.status, 503);
    Ok(())
}
