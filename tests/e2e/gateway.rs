//! The files for Envoy Gateway, in the filter chain that it makes of them: `jwt_authn` verifies
//! tokens only on routes whose SecurityPolicy says so.

use anyhow::{Context, Result};
use quotagate_support::envoy::{Form, filter, manager};
use quotagate_support::http::Request;
use quotagate_support::{jwt, paths, yaml};
use serde_json::{Value, json};

use crate::rig::Rig;

const JWT: &str = "envoy.filters.http.jwt_authn";

/// The object of this kind in a file of `envoy/gateway`.
fn object(file: &str, kind: &str) -> Result<Value> {
    let all = yaml::read_all(&paths::root().join("envoy/gateway").join(file))?;
    all.into_iter().find(|object| object["kind"] == kind).with_context(|| format!("no {kind}"))
}

/// Replaces the filters before the one under test by those that Envoy Gateway makes of these
/// objects, and lets `/secured` alone verify tokens.
fn as_gateway(config: &mut Value, security: &Value, extension: &Value) -> Result<()> {
    let provider = &security["spec"]["jwt"]["providers"][0];
    let under_test = filter(config)?.clone();
    let filters = yaml::at(manager(config)?, "/http_filters")?;
    let mut verified = yaml::named(filters, JWT)?.clone();
    let demo = yaml::at(&mut verified, "/typed_config/providers/demo")?;
    demo["payload_in_metadata"] = provider["name"].clone();
    let copied = provider["claimToHeaders"].as_array().into_iter().flatten();
    let copied =
        copied.map(|one| json!({"header_name": one["header"], "claim_name": one["claim"]}));
    demo["claim_to_headers"] = copied.collect();
    let settings = yaml::at(&mut verified, "/typed_config")?;
    let settings = settings.as_object_mut().context("no object")?;
    settings.remove("rules");
    settings.insert(
        "requirement_map".to_owned(),
        json!({"optional": {"requires_any": {"requirements": [
            {"provider_name": "demo"}, {"allow_missing": {}}
        ]}}}),
    );
    let scripts = extension["spec"]["lua"].as_array().into_iter().flatten().map(|script| {
        json!({"name": "envoy.filters.http.lua", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": script["inline"]}
        }})
    });
    let router = yaml::named(filters, "envoy.filters.http.router")?.clone();
    *filters = std::iter::once(verified).chain(scripts).chain([under_test, router]).collect();
    let host = yaml::at(manager(config)?, "/route_config/virtual_hosts/0")?;
    let routes = yaml::list(host, "routes")?;
    let mut secured = routes.first().context("no route")?.clone();
    secured["match"] = json!({"prefix": "/secured"});
    secured["typed_per_filter_config"] = json!({JWT: {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.PerRouteConfig",
        "requirement_name": "optional"
    }});
    routes.insert(0, secured);
    Ok(())
}

/// Starts the filter behind `jwt_authn`, with the shipped document after this change.
fn start(change: impl FnOnce(&mut Value)) -> Result<Rig> {
    let (file, document) = match Form::of_run()? {
        Form::Wasm => ("quotas.yaml", "/spec/wasm/0/config"),
        Form::Native => ("native.yaml", "/spec/dynamicModule/0/config"),
    };
    let (security, mut extension) =
        (object(file, "SecurityPolicy")?, object(file, "EnvoyExtensionPolicy")?);
    let mut document = yaml::at(&mut extension, document)?.take();
    document["store"]["timeout"] = json!("60s");
    document["store"]["on_failure"] = json!("deny");
    // So long that the window does not end during a test.
    document["policies"][0]["window"] = json!("366d");
    change(&mut document);
    Rig::start_with(document, |options| {
        options.edit(move |config| as_gateway(config, &security, &extension))
    })
}

/// Both forms of the filter count in the same counters.
#[test]
fn clients_of_envoy_gateway_are_whom_their_tokens_say_on_every_route() -> Result<()> {
    let rig = start(|_| {})?;
    let mut client = rig.client()?;
    let mut remaining = |request: Request| -> Result<String> {
        let response = client.send(&request)?;
        Ok(response.header("x-ratelimit-remaining").context("no quota")?.to_owned())
    };
    let alice = jwt::token("alice")?;
    let forged = |path: &str| Request::get(path).header("x-jwt-sub", "forged");
    assert_eq!(remaining(Request::get("/secured").bearer(&alice))?, "99");
    assert_eq!(remaining(forged("/secured").bearer(&alice))?, "98");
    assert_eq!(remaining(forged("/secured"))?, "99", "without a token, the address counts");
    assert_eq!(remaining(forged("/"))?, "98", "nothing verifies tokens here");
    assert_eq!(remaining(Request::get("/").bearer(&alice))?, "97");
    assert_eq!(rig.partitions("per-caller")?, ["ip=127.0.0.1", "jwt@issuer.sub=alice"]);
    Ok(())
}

#[test]
fn claims_of_every_type_name_the_same_partition_behind_envoy_gateway() -> Result<()> {
    let rig = start(|document| {
        let claim = |claim: Value, kind: &str| {
            let source = json!({"claim": claim, "payload": "issuer", "type": kind});
            json!([{ "jwt": source }])
        };
        document["identities"] = json!({
            "caller": claim(json!("sub"), "string"),
            "role": claim(json!(["realm", "roles", "2"]), "string"),
            "level": claim(json!("level"), "number"),
            "staff": claim(json!("staff"), "boolean"),
        });
        document["policies"][0]["partition_by"] = json!(["caller", "role", "level", "staff"]);
    })?;
    let token = jwt::token_with(&json!({
        "sub": "\"k\u{e4}se\" \\ \u{1f9c0}",
        "realm": {"roles": ["a", null, "b"], "none": {}},
        "level": 7.25, "staff": true, "odd": "\u{1}\n"
    }))?;
    assert_eq!(rig.statuses(&[Request::get("/secured").bearer(&token)])?, [200]);
    let expected = "jwt@issuer.sub=%22k%C3%A4se%22%20%5C%20%F0%9F%A7%80,\
        jwt@issuer.realm.roles.2=b,jwt@issuer.level=7.25,jwt@issuer.staff=true";
    assert_eq!(rig.partitions("per-caller")?, [expected]);
    Ok(())
}
