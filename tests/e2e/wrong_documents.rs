//! A policy document with faults costs no listener: Envoy takes the update, the last good document
//! stays in force, and without one `on_failure` decides.

use std::time::Duration;

use anyhow::Result;
use quotagate_support::envoy::{self, Envoy, EnvoyOptions, Form, ListenerFile, edits, manager};
use quotagate_support::http::{self, Request};
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::{ports, wait, yaml};
use serde_json::{Value, json};

use crate::inspect;
use crate::rig;

const LIMIT: Duration = Duration::from_secs(20);
/// The fault of [`wrong`].
const FAULT: &str = "configuration refused: policies[0].quota: ";

/// A document with this quota for everything but `/admin`.
fn document(quota: i64) -> Value {
    let mut policy = rig::per_caller(0);
    policy["quota"] = json!(quota);
    policy["match"] = json!({"not": {"path": {"prefix": "/admin"}}});
    rig::document(json!([policy]))
}

/// A document whose quota is no quota.
fn wrong(on_failure: &str) -> Value {
    let mut document = document(-1);
    document["store"]["on_failure"] = json!(on_failure);
    document
}

/// A filter that refuses `/admin`: a change of the listener that must not wait.
fn guarded() -> impl Fn(&mut Value) -> Result<()> {
    edits::before_filter(json!({
        "name": "envoy.filters.http.rbac",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
            "rules": {"action": "DENY", "policies": {"admin": {
                "permissions": [{"url_path": {"path": {"prefix": "/admin"}}}],
                "principals": [{"any": true}]
            }}}
        }
    }))
}

fn status(port: u16, path: &str) -> Result<u16> {
    Ok(http::get(port, path)?.status)
}

fn await_status(port: u16, path: &str, expected: u16) -> Result<()> {
    wait::until_true("the update to be served", LIMIT, || Ok(status(port, path)? == expected))
}

#[test]
fn update_with_a_wrong_document_takes_effect_and_the_old_quotas_still_count() -> Result<()> {
    let store = StoreProcess::start("memory:", &[])?;
    let upstream = Upstream::start()?;
    let file = ListenerFile::new()?;
    let options = |document: Value| {
        EnvoyOptions::new(upstream.port(), store.port()).concurrency(2).document(document)
    };
    let good = |quota: i64| options(document(quota));
    file.publish("1", &good(5).config()?)?;
    let envoy = Envoy::start(&good(5).edit(file.edit()))?;
    let port = envoy.port();
    for _ in 0..3 {
        assert_eq!(status(port, "/")?, 200);
    }
    file.publish("2", &options(wrong("deny")).edit(guarded()).config()?)?;
    await_status(port, "/admin", 403)?;
    assert!(envoy.log().contains(FAULT), "{}", envoy.log());
    let stays = "the last good document of the domain shop stays in force";
    assert!(envoy.log().contains(stays), "{}", envoy.log());
    assert_eq!(inspect::stat(&envoy, "^listener_manager.lds.update_rejected$")?, 0);
    let statuses = [(); 4].map(|()| status(port, "/"));
    assert_eq!(statuses.into_iter().collect::<Result<Vec<_>>>()?, [200, 200, 429, 429]);
    wait::until_true("the refused document to be counted", LIMIT, || {
        status(port, "/")?;
        let of_store = http::get(store.admin_port(), "/metrics")?.text();
        let reported = of_store
            .lines()
            .find_map(|line| line.strip_prefix("quotagate_documents_refused_total "));
        let counted = envoy.metric("quotagate_documents_refused", &[("domain", "shop")])?;
        Ok(counted.is_some_and(|count| count > 0)
            && reported.is_some_and(|count| count.parse().is_ok_and(|count: f64| count > 0.0)))
    })?;
    file.publish("3", &good(7).config()?)?;
    wait::until_true("the repaired document to be served", LIMIT, || {
        Ok(http::get(port, "/")?.header("x-ratelimit-limit") == Some("7"))
    })
}

#[test]
fn proxy_that_starts_with_a_wrong_document_listens_and_follows_on_failure() -> Result<()> {
    let store = StoreProcess::start("memory:", &[])?;
    let upstream = Upstream::start()?;
    for (on_failure, expected) in [("deny", 503), ("allow", 200), ("local", 200)] {
        let file = ListenerFile::new()?;
        let options =
            |document: Value| EnvoyOptions::new(upstream.port(), store.port()).document(document);
        let config = options(wrong(on_failure));
        file.publish("1", &config.clone().edit(guarded()).config()?)?;
        let envoy = Envoy::start(&config.edit(file.edit()))?;
        for _ in 0..3 {
            let response = http::get(envoy.port(), "/")?;
            let limit = response.header("x-ratelimit-limit");
            assert_eq!((response.status, limit), (expected, None), "{on_failure}");
        }
        assert_eq!(status(envoy.port(), "/admin")?, 403);
        assert!(envoy.log().contains(FAULT), "{}", envoy.log());
        let good = options(document(1));
        file.publish("2", &good.config()?)?;
        wait::until_true("the repaired document to be served", LIMIT, || {
            Ok(http::get(envoy.port(), "/")?.header("x-ratelimit-limit") == Some("1"))
        })?;
    }
    Ok(())
}

#[test]
fn text_that_is_no_document_leaves_the_last_good_one_in_force() -> Result<()> {
    let store = StoreProcess::start("memory:", &[])?;
    let upstream = Upstream::start()?;
    let file = ListenerFile::new()?;
    let options = EnvoyOptions::new(upstream.port(), store.port());
    let options = options.document(document(5));
    file.publish("1", &options.config()?)?;
    let envoy = Envoy::start(&options.clone().edit(file.edit()))?;
    assert_eq!(status(envoy.port(), "/")?, 200);
    let text = json!({
        "@type": "type.googleapis.com/google.protobuf.StringValue",
        "value": "{\"domain\": \"shop\","
    });
    let unreadable = options.edit(guarded()).edit(move |config| {
        let typed = yaml::at(envoy::filter(config)?, "/typed_config")?;
        let field = if Form::of_run()? == Form::Native {
            &mut typed["filter_config"]
        } else {
            &mut typed["config"]["configuration"]
        };
        *field = text.clone();
        Ok(())
    });
    file.publish("2", &unreadable.config()?)?;
    await_status(envoy.port(), "/admin", 403)?;
    assert!(envoy.log().contains("configuration refused: configuration: must be JSON"));
    let response = http::get(envoy.port(), "/")?;
    assert_eq!(response.header("x-ratelimit-remaining"), Some("3"), "the old counter goes on");
    Ok(())
}

#[test]
fn document_that_says_reject_keeps_the_whole_update_out() -> Result<()> {
    let store = StoreProcess::start("memory:", &[])?;
    let upstream = Upstream::start()?;
    let file = ListenerFile::new()?;
    let options =
        |document: Value| EnvoyOptions::new(upstream.port(), store.port()).document(document);
    let good = options(document(5));
    file.publish("1", &good.config()?)?;
    let envoy = Envoy::start(&good.edit(file.edit()))?;
    let mut rejected = wrong("deny");
    rejected["on_wrong_document"] = json!("reject");
    file.publish("2", &options(rejected.clone()).edit(guarded()).config()?)?;
    wait::until_true("the update to be rejected", LIMIT, || {
        Ok(inspect::stat(&envoy, "^listener_manager.lds.update_rejected$")? == 1)
    })?;
    assert!(envoy.log().contains(FAULT), "{}", envoy.log());
    let response = http::get(envoy.port(), "/admin")?;
    assert_eq!(response.status, 200, "the filter that came with it is not there");
    assert_eq!(http::get(envoy.port(), "/")?.header("x-ratelimit-limit"), Some("5"));
    let refused = Envoy::start(&options(rejected)).expect_err("a new Envoy does not start");
    assert!(format!("{refused:#}").contains(FAULT), "{refused:#}");
    Ok(())
}

#[test]
fn successor_of_a_hot_restart_has_no_good_document_and_follows_on_failure() -> Result<()> {
    let store = StoreProcess::start("memory:", &[])?;
    let upstream = Upstream::start()?;
    let port = ports::free()?;
    let options = |document: Value| {
        let mut options = EnvoyOptions::new(upstream.port(), store.port()).document(document);
        options.port = port;
        options
    };
    let mut old = Envoy::start(&options(document(500)))?;
    assert_eq!(status(port, "/")?, 200);
    let new = old.successor(&options(wrong("deny")))?;
    wait::until_true("the old process to leave", Duration::from_secs(30), || {
        Ok(old.check().is_err())
    })?;
    assert_eq!(status(new.port(), "/")?, 503);
    assert!(new.log().contains("this process has no good document"), "{}", new.log());
    Ok(())
}

/// Gives the prefix `/own` a route with this document.
fn own_route(own: &Value) -> impl Fn(&mut Value) -> Result<()> + use<> {
    let (add, own) = (edits::routes(&[("own", "/own")]), own.clone());
    move |config| {
        add(config)?;
        let host = yaml::at(manager(config)?, "/route_config/virtual_hosts/0")?;
        yaml::list(host, "routes")?[0]["typed_per_filter_config"] = json!({Form::Native.filter(): {
            "@type": format!("{}PerRoute", Form::Native.type_url()),
            "dynamic_module_config": {"name": "quotagate"},
            "filter_config": {"@type": "type.googleapis.com/google.protobuf.Struct", "value": own}
        }});
        Ok(())
    }
}

#[test]
fn wrong_document_of_a_route_affects_neither_the_listener_nor_other_routes() -> Result<()> {
    if !Form::Native.is_under_test("configurations of routes")? {
        return Ok(());
    }
    let redis = Redis::start()?;
    let upstream = Upstream::start()?;
    let file = ListenerFile::new()?;
    let with_own = |mut own: Value| {
        own["store"]["redis"] = json!(redis.url());
        own["store"].as_object_mut().expect("an object").remove("cluster");
        let options = EnvoyOptions::new(upstream.port(), 1).redis(&redis.url());
        options.document(document(9)).edit(own_route(&own))
    };
    let of_route = |quota: i64| {
        let mut own = wrong("deny");
        own["domain"] = json!("uploads");
        own["policies"][0]["quota"] = json!(quota);
        own
    };
    file.publish("1", &with_own(of_route(-1)).config()?)?;
    let envoy = Envoy::start(&with_own(of_route(-1)).edit(file.edit()))?;
    let port = envoy.port();
    assert_eq!((status(port, "/own")?, status(port, "/")?), (503, 200), "no good document yet");
    file.publish("2", &with_own(of_route(2)).config()?)?;
    await_status(port, "/own", 200)?;
    file.publish("3", &with_own(of_route(-1)).edit(guarded()).config()?)?;
    await_status(port, "/admin", 403)?;
    let mut client = http::Client::connect(port)?;
    let mut statuses = [0; 3];
    for status in &mut statuses {
        *status = client.send(&Request::get("/own"))?.status;
    }
    assert!([[200, 429, 429], [429; 3]].contains(&statuses), "quota 2 counts on: {statuses:?}");
    assert_eq!(status(port, "/")?, 200);
    Ok(())
}
