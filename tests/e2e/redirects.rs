//! Internal redirects: Envoy serves the request a second time, and each policy counts it once.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_support::envoy::{self, EnvoyOptions, Form, edits};
use quotagate_support::http::Request;
use quotagate_support::{wait, yaml};
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::{Rig, document};

/// Envoy follows the first redirect and passes the second one to the client.
fn redirecting(config: &mut Value) -> Result<()> {
    let route = yaml::at(envoy::manager(config)?, "/route_config/virtual_hosts/0/routes/0/route")?;
    route["internal_redirect_policy"] = json!({"max_internal_redirects": 1});
    Ok(())
}

/// [`redirecting`], and a route `/around` that the filter does not see.
fn redirecting_around(config: &mut Value) -> Result<()> {
    redirecting(config)?;
    let filter = Form::of_run()?.filter();
    let host = yaml::at(envoy::manager(config)?, "/route_config/virtual_hosts/0")?;
    let route = json!({
        "match": {"prefix": "/around"},
        "route": {"cluster": "upstream"},
        "typed_per_filter_config": {filter: {
            "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": true
        }}
    });
    yaml::list(host, "routes")?.insert(0, route);
    Ok(())
}

/// Another filter, before the one under test, answers `/denied`.
fn refusing() -> impl Fn(&mut Value) -> Result<()> {
    edits::before_filter(json!({
        "name": "envoy.filters.http.rbac",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
            "rules": {"action": "DENY", "policies": {"denied": {
                "permissions": [{"url_path": {"path": {"exact": "/denied"}}}],
                "principals": [{"any": true}]
            }}}
        }
    }))
}

/// A field of Envoy's connection manager.
fn manager_field(name: &'static str, value: Value) -> impl Fn(&mut Value) -> Result<()> {
    move |config| {
        envoy::manager(config)?[name] = value.clone();
        Ok(())
    }
}

/// The upstream answers `/first` with a redirect to this path.
fn redirected_to(path: &str) -> Request {
    let request = Request::get("/first").header("x-answer-status", "302");
    request.header("x-answer-header-location", format!("http://localhost{path}"))
}

/// A proxy that keeps its clients' request ids.
fn keeping_ids(options: EnvoyOptions) -> EnvoyOptions {
    let options = options.edit(redirecting_around).edit(refusing());
    options.edit(manager_field("use_remote_address", json!(false)))
}

/// A policy that counts `/first`, with these fields.
fn first(quota: u64, fields: &Value) -> Value {
    let mut policy = json!({
        "name": "first", "match": {"path": {"exact": "/first"}}, "partition_by": [],
        "quota": quota, "window": "366d"
    });
    for (name, value) in fields.as_object().expect("an object") {
        policy[name] = value.clone();
    }
    policy
}

/// Policies that decide by the answer what a request costs. One that is lost on its way to the
/// client counts.
fn by_answer() -> [Value; 2] {
    [
        json!({"count": {"status": [200], "abandoned": "count"}}),
        json!({"cost": {"reserve": 1, "settle": [{"response_header": "x-cost"}]}}),
    ]
}

#[test]
fn admission_of_a_redirected_request_serves_no_other_request() -> Result<()> {
    for way in ["/around", "/denied"] {
        let policies = document(json!([
            {"name": "all", "partition_by": [], "quota": 10, "window": "366d"}
        ]));
        let rig = Rig::start_with(policies, keeping_ids)?;
        let ids = || (0..10).map(|id| format!("id-{id}"));
        let banked: Vec<_> =
            ids().map(|id| redirected_to(way).header("x-request-id", &id)).collect();
        let status = if way == "/around" { 302 } else { 403 };
        assert_eq!(rig.statuses(&banked)?, [status; 10]);
        let again: Vec<_> =
            ids().map(|id| Request::get("/x").header("x-request-id", &id)).collect();
        assert_eq!(rig.statuses(&again)?, [429; 10], "{way}");
    }
    Ok(())
}

/// A redirected request may come back within 2 s, so its slot waits for it. The rest is for a busy
/// machine.
#[test]
fn slot_of_a_redirected_request_is_free_when_it_comes_back_or_never_does() -> Result<()> {
    let rig = &Rig::start_with(
        document(json!([{"name": "each", "partition_by": ["tenant"], "in_flight": 1}])),
        keeping_ids,
    )?;
    let case = |(way, status): (&'static str, u16)| -> Result<()> {
        // Each case has a slot of its own.
        let redirected = redirected_to(way).header("x-tenant", way);
        assert_eq!(rig.statuses(&[redirected])?, [status], "both passes need one slot");
        let next = Request::get("/x").header("x-tenant", way);
        wait::until_true("the slot to be free", Duration::from_secs(8), || {
            Ok(rig.statuses(std::slice::from_ref(&next))? == [200])
        })
        .context(way)
    };
    thread::scope(|scope| {
        let cases = [("/around", 302), ("/denied", 403), ("/second", 302)];
        let running: Vec<_> = cases.map(|of| scope.spawn(move || case(of))).into();
        running.into_iter().try_for_each(|case| case.join().expect("its panic was printed"))
    })
}

#[test]
fn admission_of_one_client_serves_no_other_client() -> Result<()> {
    let cost = json!({"header": {"name": "x-cost", "default": 1, "max": 100}});
    let policies = document(json!([
        {"name": "each", "partition_by": ["tenant"], "quota": 100, "cost": cost, "window": "366d"}
    ]));
    let rig = Rig::start_with(policies, keeping_ids)?;
    let ids = || (0..5).map(|id| format!("id-{id}"));
    let mallory = |id: String| {
        redirected_to("/around").header("x-tenant", "mallory").header("x-request-id", &id)
    };
    assert_eq!(rig.statuses(&ids().map(mallory).collect::<Vec<_>>())?, [302; 5]);
    let bob = |id: String| {
        let request = Request::get("/x").header("x-tenant", "bob").header("x-cost", "100");
        request.header("x-request-id", &id)
    };
    assert_eq!(rig.statuses(&[bob("other".to_owned())])?, [200]);
    assert_eq!(rig.statuses(&ids().map(bob).collect::<Vec<_>>())?, [429; 5]);
    Ok(())
}

#[test]
fn redirected_request_is_counted_once_without_an_id() -> Result<()> {
    let policies = document(json!([
        {"name": "all", "partition_by": [], "quota": 10, "window": "366d"}
    ]));
    let rig = Rig::start_with(policies, |options| {
        options.edit(redirecting).edit(manager_field("generate_request_id", json!(false)))
    })?;
    assert_eq!(rig.statuses(&[redirected_to("/second"), redirected_to("/second")])?, [302; 2]);
    assert_eq!(rig.upstream.requests(), 4);
    inspect::settled(&rig.redis, "all", 2)
}

#[test]
fn redirect_to_another_partition_counts_in_both() -> Result<()> {
    let policies = document(json!([
        {"name": "each", "partition_by": ["path"], "quota": 2, "window": "366d"}
    ]));
    let rig = Rig::start_with(policies, |options| options.edit(redirecting))?;
    let request = redirected_to("/second");
    assert_eq!(rig.statuses(&[request.clone(), request])?, [302; 2]);
    let second = Request::get("/second");
    assert_eq!(rig.statuses(&[second.clone(), second])?, [429; 2], "it was served there twice");
    Ok(())
}

#[test]
fn request_that_reached_the_upstream_counts_although_its_redirect_is_refused() -> Result<()> {
    for fields in by_answer() {
        let spent = json!({
            "name": "second", "match": {"path": {"exact": "/spent"}}, "partition_by": [],
            "quota": 1, "window": "366d"
        });
        let missing = json!({
            "name": "known", "match": {"path": {"exact": "/known"}}, "partition_by": ["tenant"],
            "on_missing": "deny", "quota": 1, "window": "366d"
        });
        for (path, refusal) in [("/spent", 429), ("/known", 401)] {
            let policies = document(json!([first(3, &fields), spent, missing]));
            let rig = Rig::start_with(policies, |options| options.edit(redirecting))?;
            assert_eq!(rig.statuses(&[Request::get("/spent")])?, [200]);
            let statuses = rig.statuses(&vec![redirected_to(path); 20])?;
            assert_eq!(statuses, [&[refusal; 3][..], &[429; 17]].concat());
            assert_eq!(rig.upstream.requests(), 1 + 3, "{path} {fields}");
            inspect::settled(&rig.redis, "first", 3)?;
        }
    }
    Ok(())
}

#[test]
fn redirected_requests_that_never_come_back_count() -> Result<()> {
    for fields in by_answer() {
        let policies = document(json!([first(70, &fields)]));
        let rig = Rig::start_with(policies, |options| options.edit(redirecting_around))?;
        let statuses = rig.statuses(&vec![redirected_to("/around"); 300])?;
        let admitted = statuses.iter().filter(|status| **status == 302).count();
        assert_eq!(admitted, 70, "{fields}");
        inspect::settled(&rig.redis, "first", 70)?;
    }
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
