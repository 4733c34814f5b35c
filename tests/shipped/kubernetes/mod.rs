//! The Helm chart, and the documents for Istio and Envoy Gateway that are rendered from it: the
//! APIs know every field, and the parts for Envoy and the filter work in Envoy. No cluster runs
//! here, and the files say so.

mod chart;
mod deployment;
mod in_envoy;
pub mod schemas;

use std::{fs, path::PathBuf};

use quotagate_quota::config::Config;
use quotagate_support::{envoy, paths, yaml};
use serde_json::Value;

pub const STORE_CLUSTER: &str = "outbound|9180||quotagate-store.quotagate.svc.cluster.local";

/// All files below `envoy/istio` and `envoy/gateway`.
pub fn files() -> Vec<PathBuf> {
    let directories = ["istio", "gateway"].map(|name| paths::root().join("envoy").join(name));
    let mut files: Vec<PathBuf> = directories
        .iter()
        .flat_map(|directory| fs::read_dir(directory).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort_unstable();
    files
}

/// The document of this kind in this file.
pub fn document(file: &str, kind: &str) -> Value {
    let documents = yaml::read_all(&paths::root().join("envoy").join(file)).unwrap();
    documents.into_iter().find(|document| document["kind"] == kind).unwrap()
}

#[test]
fn published_schemas_know_every_field_of_the_files() {
    for file in files() {
        for document in yaml::read_all(&file).unwrap() {
            let found = schemas::faults(&document);
            assert_eq!(found, Vec::<String>::new(), "{}", file.display());
        }
    }
}

#[test]
fn files_say_at_the_top_what_ran_them() {
    for file in files() {
        let text = fs::read_to_string(&file).unwrap();
        let head: String = text.lines().take_while(|line| line.starts_with('#')).collect();
        let head = head.replace('#', "");
        let says = ["under Envoy Gateway", "this file to istiod", "not run"];
        assert!(says.iter().any(|text| head.contains(text)), "{}: {head}", file.display());
    }
}

#[test]
fn stream_bounds_apply_to_named_listeners_and_equal_the_shipped_ones() {
    let patches =
        document("istio/envoyfilter.yaml", "EnvoyFilter")["spec"]["configPatches"].clone();
    let patch = |target: &str| {
        patches.as_array().unwrap().iter().find(|patch| patch["applyTo"] == target).unwrap()
    };
    let (route, manager) = (patch("HTTP_ROUTE"), patch("NETWORK_FILTER"));
    assert!(route["match"]["routeConfiguration"]["vhost"]["name"].is_string(), "{route}");
    assert!(manager["match"]["listener"]["portNumber"].is_number(), "{manager}");
    let mut own = yaml::read(&paths::envoy_config()).unwrap();
    let own = envoy::manager(&mut own).unwrap();
    assert_eq!(own["stream_idle_timeout"], Value::Null, "Envoy's default, for routes without one");
    let own_route = &own["route_config"]["virtual_hosts"][0]["routes"][0]["route"];
    assert_eq!(route["patch"]["value"]["route"]["idle_timeout"], own_route["idle_timeout"]);
    let windows = &manager["patch"]["value"]["typed_config"]["http2_protocol_options"];
    assert_eq!(*windows, own["http2_protocol_options"]);
    assert_eq!(windows["initial_connection_window_size"], 1 << 20);
    let limit = "max_request_headers_kb";
    assert!(own[limit].is_number());
    assert_eq!(manager["patch"]["value"]["typed_config"][limit], own[limit]);
}

#[test]
fn plugins_and_module_carry_a_valid_policy_document() {
    let istio = document("istio/wasmplugin.yaml", "WasmPlugin")["spec"]["pluginConfig"].clone();
    let gateway =
        document("gateway/quotas.yaml", "EnvoyExtensionPolicy")["spec"]["wasm"][0]["config"]
            .clone();
    let native = document("gateway/native.yaml", "EnvoyExtensionPolicy")["spec"]["dynamicModule"]
        [0]["config"]
        .clone();
    for document in [istio, gateway, native] {
        let config = Config::parse(document.to_string().as_bytes()).unwrap();
        let warnings: Vec<_> = config.warnings().iter().map(ToString::to_string).collect();
        assert_eq!(warnings, Vec::<String>::new());
    }
}

#[test]
fn examples_in_the_page_about_envoy_gateway_match_its_schema() {
    let page = paths::root().join("docs/operate/envoy-gateway.md");
    let text = fs::read_to_string(page).unwrap();
    let blocks = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut checked = 0;
    for block in blocks {
        let mut proxy = yaml::parse(block).unwrap();
        proxy["apiVersion"] = "gateway.envoyproxy.io/v1alpha1".into();
        proxy["kind"] = "EnvoyProxy".into();
        proxy["metadata"] = serde_json::json!({"name": "own"});
        assert_eq!(schemas::faults(&proxy), Vec::<String>::new(), "{block}");
        checked += 1;
    }
    assert_eq!(checked, 3);
}
