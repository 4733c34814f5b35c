//! Envoy features around the filter: other filters, retries, mirrors, missing routes, ECDS and
//! upstream filters. `docs/operate/around-the-filter.md` lists what these tests cover.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use quotagate_support::envoy::{self, Envoy, EnvoyOptions, Form};
use quotagate_support::http::Request;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::{edits, http, http2, wait, yaml};
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::{Rig, document, per_caller};

const LIMIT: Duration = Duration::from_secs(20);
const ROUTE: &str = "/route_config/virtual_hosts/0/routes/0";
const EXTENSIONS: &str = "type.googleapis.com/envoy.extensions.filters.http";

/// Sets a field of the first route's action.
pub fn routed(field: &'static str, value: Value) -> impl Fn(&mut Value) -> Result<()> {
    move |config| {
        let action = yaml::at(envoy::manager(config)?, &format!("{ROUTE}/route"))?;
        action[field] = value.clone();
        Ok(())
    }
}

/// Three retries of each response with a 5xx status.
pub fn retries() -> impl Fn(&mut Value) -> Result<()> {
    routed("retry_policy", json!({"retry_on": "5xx", "num_retries": 3}))
}

pub fn failing() -> Request {
    Request::get("/").header("x-answer-status", "503")
}

#[test]
fn requests_without_a_route_are_counted() -> Result<()> {
    let rig = Rig::start_with(document(json!([per_caller(2)])), |options| {
        options.edit(|config| {
            *yaml::at(envoy::manager(config)?, &format!("{ROUTE}/match"))? =
                json!({"prefix": "/known"});
            Ok(())
        })
    })?;
    let requests = ["/unknown", "/known", "/unknown"].map(Request::get);
    assert_eq!(rig.statuses(&requests)?, [404, 200, 429]);
    Ok(())
}

#[test]
fn request_with_retries_is_counted_once() -> Result<()> {
    let rig = Rig::start_with(document(json!([per_caller(9)])), |options| options.edit(retries()))?;
    assert_eq!(rig.statuses(&[failing()])?, [503]);
    assert_eq!(rig.upstream.requests(), 4);
    inspect::settled(&rig.redis, "per-caller", 1)
}

#[test]
fn mirrored_request_is_counted_once() -> Result<()> {
    let mirror = routed("request_mirror_policies", json!([{"cluster": "upstream"}]));
    let rig = Rig::start_with(document(json!([per_caller(9)])), |options| options.edit(mirror))?;
    assert_eq!(rig.statuses(&[Request::get("/")])?, [200]);
    wait::until_true("the copy to arrive", LIMIT, || Ok(rig.upstream.requests() == 2))?;
    inspect::settled(&rig.redis, "per-caller", 1)
}

#[test]
fn upstream_filter_counts_each_attempt_and_its_refusal_is_not_retried() -> Result<()> {
    let rig = Rig::start_with(document(json!([per_caller(5)])), |options| {
        options.edit(retries()).edit(|config| {
            let filters = yaml::list(envoy::manager(config)?, "http_filters")?;
            let index = envoy::position(filters)?;
            let filter = filters.remove(index);
            let clusters = yaml::at(config, "/static_resources/clusters")?;
            yaml::named(clusters, "upstream")?["typed_extension_protocol_options"] = json!({
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                    "explicit_http_config": {"http_protocol_options": {}},
                    "http_filters": [filter, {
                        "name": "envoy.filters.http.upstream_codec",
                        "typed_config": {"@type": format!("{EXTENSIONS}.upstream_codec.v3.UpstreamCodec")}
                    }]
                }
            });
            Ok(())
        })
    })?;
    // The four attempts leave one unit.
    assert_eq!(rig.statuses(&[failing(), Request::get("/"), Request::get("/")])?, [503, 200, 429]);
    assert_eq!(rig.upstream.requests(), 5);
    inspect::settled(&rig.redis, "per-caller", 5)
}

#[test]
fn with_buffer_in_front_only_complete_requests_are_counted() -> Result<()> {
    let buffer = edits::before_filter(json!({
        "name": "envoy.filters.http.buffer",
        "typed_config": {"@type": format!("{EXTENSIONS}.buffer.v3.Buffer"), "max_request_bytes": 1000}
    }));
    let rig = Rig::start_with(document(json!([per_caller(9)])), |options| options.edit(buffer))?;
    assert_eq!(rig.client()?.send(&Request::post("/", &[b'a'; 5000]))?.status, 413);
    let mut half = rig.client()?;
    half.set_timeout(Duration::from_millis(500))?;
    let sent = half.exchange(b"POST / HTTP/1.1\r\nhost: shop\r\ncontent-length: 500\r\n\r\nabc");
    assert!(
        sent.is_err() || sent.is_ok_and(|bytes| bytes.is_empty()),
        "an incomplete request must get no answer"
    );
    drop(half);
    assert_eq!(rig.client()?.send(&Request::post("/", b"all of it"))?.status, 200);
    inspect::settled(&rig.redis, "per-caller", 1)
}

#[test]
fn with_grpc_web_in_front_the_status_in_trailers_counts() -> Result<()> {
    let mut policy = per_caller(2);
    policy["count"] = json!({"status": [401], "grpc_status": [16]});
    let grpc_web = edits::before_filter(json!({
        "name": "envoy.filters.http.grpc_web",
        "typed_config": {"@type": format!("{EXTENSIONS}.grpc_web.v3.GrpcWeb")}
    }));
    let rig = Rig::start_with(document(json!([policy])), |options| {
        options.edit(edits::http2_upstream).edit(grpc_web)
    })?;
    let mut client = http2::Http2Client::connect(rig.envoy.port())?;
    let call = |status: &str| {
        Request::post("/auth.Login/Login", b"\0\0\0\0\0")
            .header("content-type", "application/grpc-web+proto")
            .header("x-answer-header-content-type", "application/grpc")
            .header("x-answer-trailer-grpc-status", status)
    };
    for (status, used) in [("0", 0), ("16", 1), ("16", 2)] {
        assert_eq!(client.send(&call(status))?.response.status, 200);
        inspect::settled(&rig.redis, "per-caller", used)?;
    }
    let refused = client.send(&call("0"))?.response;
    assert_eq!((refused.status, refused.header("grpc-status")), (429, Some("14")));
    assert!(refused.header("retry-after").is_some());
    Ok(())
}

/// Writes a filter's configuration in the form that ECDS expects. Envoy only notices files that are
/// moved into place, so this writes a neighbouring file first and renames it.
pub fn publish(file: &Path, filter: &Value) -> Result<()> {
    let resource = json!({
        "@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
        "name": "quotagate",
        "typed_config": filter["typed_config"],
    });
    let beside = file.with_extension("new");
    fs::write(&beside, json!({"resources": [resource]}).to_string())?;
    Ok(fs::rename(beside, file)?)
}

/// The filter of a configuration whose one policy has this quota.
fn filter(options: &EnvoyOptions, quota: Value) -> Result<Value> {
    let mut policy = per_caller(5);
    policy["quota"] = quota;
    let mut config = options.clone().document(document(json!([policy]))).config()?;
    envoy::filter(&mut config).cloned()
}

/// A change to a configuration that reads its filter from this file.
pub fn discovers(file: &Path) -> Result<impl Fn(&mut Value) -> Result<()> + use<>> {
    let discovered = json!({
        "name": "quotagate",
        "config_discovery": {
            "config_source": {"path_config_source": {"path": file}, "resource_api_version": "V3"},
            "type_urls": [Form::of_run()?.type_url()]
        }
    });
    Ok(move |config: &mut Value| {
        config["node"] = json!({"id": "test", "cluster": "test"});
        let filters = yaml::list(envoy::manager(config)?, "http_filters")?;
        let index = envoy::position(filters)?;
        filters[index] = discovered.clone();
        Ok(())
    })
}

#[test]
fn ecds_changes_the_configuration_of_live_connections_and_keeps_a_good_one() -> Result<()> {
    let (store, upstream) = (StoreProcess::start("memory:", &[])?, Upstream::start()?);
    let options = EnvoyOptions::new(upstream.port(), store.port());
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("quotagate.json");
    publish(&file, &filter(&options, json!(5))?)?;
    let envoy = Envoy::start(&options.clone().edit(discovers(&file)?))?;
    let mut client = http::Client::connect(envoy.port())?;
    let mut limit = || -> Result<String> {
        let response = client.send(&Request::get("/"))?;
        Ok(response.header("x-ratelimit-limit").unwrap_or_default().to_owned())
    };
    assert_eq!(limit()?, "5");
    publish(&file, &filter(&options, json!(-1))?)?;
    wait::until_true("the bad configuration to be refused", LIMIT, || {
        Ok(envoy.log().contains("configuration refused: policies[0].quota: "))
    })?;
    assert_eq!(limit()?, "5", "the good configuration stays in use");
    let failures = inspect::stat(&envoy, "extension_config_discovery.*quotagate.config_fail$")?;
    assert_eq!(failures, 0, "a filter that is new to it would have no configuration");
    publish(&file, &filter(&options, json!(7))?)?;
    wait::until_true("the next good configuration to be served", LIMIT, || Ok(limit()? == "7"))?;
    Ok(())
}
