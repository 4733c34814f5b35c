//! A route of the native module is left alone, or has a policy document of its own.

use anyhow::Result;
use quotagate_support::envoy::{Envoy, EnvoyOptions, Form, edits, manager};
use quotagate_support::http::Request;
use quotagate_support::yaml;
use serde_json::{Value, json};

use crate::rig::{Rig, document, per_caller};

/// The configuration of a route, as Envoy takes it.
fn of_route(value: &Value) -> Value {
    json!({Form::Native.filter(): {
        "@type": format!("{}PerRoute", Form::Native.type_url()),
        "dynamic_module_config": {"name": "quotagate"},
        "filter_name": "quotagate",
        "filter_config": {"@type": "type.googleapis.com/google.protobuf.Struct", "value": value}
    }})
}

/// Adds a route with this configuration for each prefix.
fn with_routes(options: EnvoyOptions, routes: Vec<(&'static str, Value)>) -> EnvoyOptions {
    let names: Vec<_> = routes.iter().map(|(prefix, _)| (*prefix, *prefix)).collect();
    options.edit(edits::routes(&names)).edit(move |config| {
        let host = yaml::at(manager(config)?, "/route_config/virtual_hosts/0")?;
        for (route, (_, value)) in yaml::list(host, "routes")?.iter_mut().zip(&routes) {
            route["typed_per_filter_config"] = of_route(value);
        }
        Ok(())
    })
}

#[test]
fn route_is_left_alone_or_has_a_whole_document() -> Result<()> {
    if !Form::Native.is_under_test("configurations of routes")? {
        return Ok(());
    }
    let redis = quotagate_support::redis::Redis::start()?;
    let mut own = document(json!([per_caller(2)]));
    own["domain"] = json!("uploads");
    own["store"] = json!({"redis": redis.url(), "timeout": "60s", "on_failure": "deny"});
    let rig = Rig::start_with(document(json!([per_caller(5)])), |options| {
        with_routes(options, vec![("/free", json!({"disabled": true})), ("/uploads", own)])
    })?;
    let mut client = rig.client()?;
    let mut get = |path: &str| -> Result<(u16, Option<String>)> {
        let response = client.send(&Request::get(path))?;
        Ok((response.status, response.header("x-ratelimit-limit").map(str::to_owned)))
    };
    for _ in 0..8 {
        assert_eq!(get("/free")?, (200, None));
    }
    for status in [200, 200, 429] {
        assert_eq!(get("/uploads")?, (status, Some("2".to_owned())));
    }
    for status in [200, 200, 200, 200, 200, 429] {
        assert_eq!(get("/")?, (status, Some("5".to_owned())));
    }
    let keys = redis.cli(&["KEYS", "qg:uploads:*"])?.lines();
    assert!(keys.starts_with("qg:uploads:per-caller:{"), "{keys}");
    Ok(())
}

#[test]
fn faults_of_a_route_are_listed() -> Result<()> {
    if !Form::Native.is_under_test("configurations of routes")? {
        return Ok(());
    }
    let refused = |value: Value| -> Result<String> {
        let options = EnvoyOptions::new(1, 1).redis("redis://127.0.0.1:6379");
        let options = options.document(document(json!([per_caller(5)])));
        let config = with_routes(options, vec![("/", value)]).config()?;
        Ok(Envoy::validate(&config).expect_err("the configuration of the route is refused"))
    };
    for (value, expected) in [
        (json!({"disabled": false}), "disabled: must be true"),
        (json!({"disabled": true, "domain": "a"}), "must be {disabled: true} alone"),
        (json!({"domain": "a", "store": {"redis": "memory:"}}), "policies: is required"),
    ] {
        let log = refused(value)?;
        assert!(log.contains(expected), "{expected} is not in:\n{log}");
    }
    Ok(())
}
