//! The documents for Istio and Envoy Gateway: every field is one that the APIs know, and what is in them for Envoy and
//! the filter works there. No cluster runs here; the files say so.

#![cfg(test)]

use std::path::PathBuf;
use std::process::Command;
use std::{fs, iter};

use anyhow::{Context, Result};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Namespace, core::v1::Service};
use kcr_extensions_istio_io::v1alpha1::wasmplugins::WasmPlugin;
use kcr_networking_istio_io::v1::destinationrules::DestinationRule;
use kcr_networking_istio_io::v1alpha3::envoyfilters::EnvoyFilter;
use kcr_security_istio_io::v1::authorizationpolicies::AuthorizationPolicy;
use kcr_security_istio_io::v1::requestauthentications::RequestAuthentication;
use quotagate_quota::config::Config;
use quotagate_support::envoy::{self, Envoy, EnvoyOptions};
use quotagate_support::http::{Client, Request};
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::{jwt, paths, yaml};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const STORE_CLUSTER: &str = "outbound|9180||quotagate-store.quotagate.svc.cluster.local";

/// Envoy Gateway's types are in no crate: the names of its API (`api/v1alpha1` of its source) for each object that the
/// documents have; what lies below `free` is not its own.
const ENVOY_GATEWAY: [(&str, &[&str]); 19] = [
    ("ClientTrafficPolicy", &["apiVersion", "kind", "metadata", "spec"]),
    (
        "ClientTrafficPolicy.spec",
        &["targetRefs", "targetSelectors", "timeout", "http1", "http2", "clientIPDetection"],
    ),
    ("ClientTrafficPolicy.spec.targetRefs", &["group", "kind", "name", "sectionName"]),
    (
        "ClientTrafficPolicy.spec.http2",
        &[
            "initialStreamWindowSize",
            "initialConnectionWindowSize",
            "maxConcurrentStreams",
            "onInvalidMessage",
        ],
    ),
    ("EnvoyExtensionPolicy", &["apiVersion", "kind", "metadata", "spec"]),
    ("EnvoyExtensionPolicy.spec", &["targetRefs", "targetSelectors", "mergeType", "wasm", "extProc", "lua"]),
    ("EnvoyExtensionPolicy.spec.targetRefs", &["group", "kind", "name", "sectionName"]),
    ("EnvoyExtensionPolicy.spec.wasm", &["name", "rootID", "code", "config", "failOpen", "env"]),
    ("EnvoyExtensionPolicy.spec.wasm.code", &["type", "http", "image", "pullPolicy"]),
    ("EnvoyExtensionPolicy.spec.wasm.code.image", &["url", "sha256", "pullSecretRef", "tls"]),
    ("SecurityPolicy", &["apiVersion", "kind", "metadata", "spec"]),
    (
        "SecurityPolicy.spec",
        &["targetRefs", "targetSelectors", "mergeType", "jwt", "authorization", "cors", "oidc"],
    ),
    ("SecurityPolicy.spec.targetRefs", &["group", "kind", "name", "sectionName"]),
    ("SecurityPolicy.spec.jwt", &["optional", "providers"]),
    (
        "SecurityPolicy.spec.jwt.providers",
        &[
            "name",
            "issuer",
            "audiences",
            "remoteJWKS",
            "localJWKS",
            "claimToHeaders",
            "recomputeRoute",
            "extractFrom",
        ],
    ),
    (
        "SecurityPolicy.spec.jwt.providers.remoteJWKS",
        &["uri", "backendRefs", "backendSettings", "cacheDuration"],
    ),
    ("EnvoyProxy", &["apiVersion", "kind", "metadata", "spec"]),
    ("EnvoyProxy.spec", &["provider", "logging", "telemetry", "bootstrap", "concurrency", "mergeGateways"]),
    ("EnvoyProxy.spec.bootstrap", &["type", "value", "jsonPatches"]),
];
/// And of its list of patches: RFC 6902's, and a query.
const JSON_PATCH: (&str, &[&str]) =
    ("EnvoyProxy.spec.bootstrap.jsonPatches", &["op", "path", "jsonPath", "from", "value"]);
const FREE: [&str; 5] = [
    "ClientTrafficPolicy.metadata",
    "EnvoyExtensionPolicy.spec.wasm.config",
    "EnvoyProxy.spec.bootstrap.jsonPatches.value",
    "EnvoyExtensionPolicy.metadata",
    "EnvoyProxy.metadata",
];

/// All files below `envoy/istio` and `envoy/gateway`.
fn files() -> Vec<PathBuf> {
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
fn document(file: &str, kind: &str) -> Value {
    let documents = yaml::read_all(&paths::root().join("envoy").join(file)).unwrap();
    documents.into_iter().find(|document| document["kind"] == kind).unwrap()
}

/// What the API does not know of a document, or knows otherwise.
fn faults(document: &Value) -> Vec<String> {
    let text = |field: &str| document[field].as_str().unwrap_or_default().to_owned();
    match (text("apiVersion").as_str(), text("kind").as_str()) {
        ("v1", "Namespace") => lost::<Namespace>(document),
        ("v1", "Service") => lost::<Service>(document),
        ("apps/v1", "Deployment") => lost::<Deployment>(document),
        ("extensions.istio.io/v1alpha1", "WasmPlugin") => lost::<WasmPlugin>(document),
        ("networking.istio.io/v1alpha3", "EnvoyFilter") => lost::<EnvoyFilter>(document),
        ("networking.istio.io/v1", "DestinationRule") => lost::<DestinationRule>(document),
        ("security.istio.io/v1", "AuthorizationPolicy") => lost::<AuthorizationPolicy>(document),
        ("security.istio.io/v1", "RequestAuthentication") => lost::<RequestAuthentication>(document),
        ("gateway.envoyproxy.io/v1alpha1", kind) => unknown_names(document, kind),
        (version, kind) => vec![format!("{version} {kind} is not checked")],
    }
}

/// Types that skip what they do not know show it when they are written back: it is gone.
fn lost<T: DeserializeOwned + Serialize>(document: &Value) -> Vec<String> {
    match serde_json::from_value::<T>(document.clone()) {
        Err(error) => vec![error.to_string()],
        Ok(typed) => missing(document, &serde_json::to_value(typed).unwrap(), ""),
    }
}

/// The paths of `wanted` that are not, or not so, in `found`.
fn missing(wanted: &Value, found: &Value, path: &str) -> Vec<String> {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            let child = |(key, value)| {
                missing(value, found.get(key).unwrap_or(&Value::Null), &format!("{path}.{key}"))
            };
            wanted.iter().flat_map(child).collect()
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            let pairs = iter::zip(wanted, found).enumerate();
            pairs.flat_map(|(i, (wanted, found))| missing(wanted, found, &format!("{path}[{i}]"))).collect()
        }
        _ if wanted == found => Vec::new(),
        _ => vec![format!("{path}: {wanted} became {found}")],
    }
}

fn unknown_names(value: &Value, path: &str) -> Vec<String> {
    match value {
        _ if FREE.contains(&path) || path == "SecurityPolicy.metadata" => Vec::new(),
        Value::Array(items) => items.iter().flat_map(|item| unknown_names(item, path)).collect(),
        Value::Object(fields) => {
            let known = ENVOY_GATEWAY.iter().chain([&JSON_PATCH]).find(|(known, _)| *known == path);
            let Some((_, names)) = known else { return vec![format!("{path} is not in the list")] };
            let check = |(name, value): (&String, &Value)| {
                let path = format!("{path}.{name}");
                if names.contains(&name.as_str()) { unknown_names(value, &path) } else { vec![path] }
            };
            fields.iter().flat_map(check).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn every_document_has_only_fields_that_its_api_knows() {
    for file in files() {
        for document in yaml::read_all(&file).unwrap() {
            assert_eq!(faults(&document), [""; 0], "{} in {}", document["kind"], file.display());
        }
    }
}

#[test]
fn a_field_that_the_api_does_not_know_is_found() {
    let cases = [
        ("istio/wasmplugin.yaml", "WasmPlugin", "/spec", "failStrategi", ".spec.failStrategi"),
        (
            "istio/store.yaml",
            "Deployment",
            "/spec/template/spec/containers/0",
            "comand",
            ".containers[0].comand",
        ),
        (
            "istio/store.yaml",
            "DestinationRule",
            "/spec/trafficPolicy/connectionPool",
            "htttp",
            ".connectionPool.htttp",
        ),
        ("istio/envoyfilter.yaml", "EnvoyFilter", "/spec/configPatches/0/patch", "oper", "[0].patch.oper"),
        (
            "istio/requestauthentication.yaml",
            "RequestAuthentication",
            "/spec/jwtRules/0",
            "jwkUri",
            "[0].jwkUri",
        ),
        (
            "gateway/quotas.yaml",
            "EnvoyExtensionPolicy",
            "/spec/wasm/0/code",
            "images",
            "spec.wasm.code.images",
        ),
        ("gateway/quotas.yaml", "EnvoyProxy", "/spec/bootstrap", "jsonPatch", "spec.bootstrap.jsonPatch"),
    ];
    for (file, kind, place, field, path) in cases {
        let mut document = document(file, kind);
        document.pointer_mut(place).unwrap()[field] = json!("x");
        let faults = faults(&document);
        assert!(matches!(faults.as_slice(), [fault] if fault.contains(path)), "{kind}: {faults:?}");
    }
    let mut wrong = document("istio/wasmplugin.yaml", "WasmPlugin");
    wrong["spec"]["failStrategy"] = json!("FAIL_RELAOD");
    assert!(faults(&wrong)[0].contains("FAIL_RELAOD"));
}

#[test]
fn what_was_not_run_says_so_at_the_top() {
    for file in files() {
        let text = fs::read_to_string(&file).unwrap();
        let head: String = text.lines().take_while(|line| line.starts_with('#')).collect();
        let head = head.replace('#', "");
        assert!(head.contains("not run"), "{}: {head}", file.display());
    }
}

#[test]
fn what_bounds_streams_is_for_named_listeners_and_routes_and_as_in_envoys_own_file() {
    let patches = document("istio/envoyfilter.yaml", "EnvoyFilter")["spec"]["configPatches"].clone();
    let patch =
        |target: &str| patches.as_array().unwrap().iter().find(|patch| patch["applyTo"] == target).unwrap();
    let (route, manager) = (patch("HTTP_ROUTE"), patch("NETWORK_FILTER"));
    assert!(route["match"]["routeConfiguration"]["vhost"]["name"].is_string(), "{route}");
    assert!(manager["match"]["listener"]["portNumber"].is_number(), "{manager}");
    let mut own = yaml::read(&paths::envoy_config()).unwrap();
    let own = envoy::manager(&mut own).unwrap();
    assert_eq!(own["stream_idle_timeout"], Value::Null, "Envoy's own, for routes that name none");
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
fn both_plugins_carry_a_good_document() {
    let istio = document("istio/wasmplugin.yaml", "WasmPlugin")["spec"]["pluginConfig"].clone();
    let gateway =
        document("gateway/quotas.yaml", "EnvoyExtensionPolicy")["spec"]["wasm"][0]["config"].clone();
    for document in [istio, gateway] {
        let config = Config::parse(document.to_string().as_bytes()).unwrap();
        assert!(config.warnings().is_empty(), "{:?}", config.warnings());
    }
}

#[test]
fn the_store_runs_without_rights_and_is_probed_where_it_answers() {
    let deployment = document("istio/store.yaml", "Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz?partial")] {
        assert_eq!(container[probe]["httpGet"], json!({"path": path, "port": "http-admin"}));
    }
    let port = |name: &str| {
        let ports = container["ports"].as_array().unwrap();
        ports.iter().find(|port| port["name"] == name).unwrap()["containerPort"].to_string()
    };
    let help = Command::new(paths::command()).args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for variable in container["env"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        let listed =
            [format!("[env: {name}="), format!("[env: {name}]")].iter().any(|text| help.contains(text));
        assert!(listed, "{name} is no variable of `quotagate serve`:\n{help}");
        match name {
            "QUOTAGATE_LISTEN" => assert_eq!(variable["value"], format!("0.0.0.0:{}", port("http-store"))),
            "QUOTAGATE_ADMIN" => assert_eq!(variable["value"], format!("0.0.0.0:{}", port("http-admin"))),
            "QUOTAGATE_ADMIN_TOKEN_FILE" => {
                let (mount, volume) = (&container["volumeMounts"][0], &pod["volumes"][0]);
                assert_eq!(mount["name"], volume["name"]);
                let file = &volume["secret"]["items"][0]["path"];
                let [folder, file] = [&mount["mountPath"], file].map(|part| part.as_str().unwrap());
                assert_eq!(variable["value"], format!("{folder}/{file}"));
            }
            _ => {}
        }
    }
    let names: Vec<_> =
        container["env"].as_array().unwrap().iter().map(|variable| &variable["name"]).collect();
    assert!(names.contains(&&json!("QUOTAGATE_ADMIN_TOKEN_FILE")), "every pod can reach the admin address");
    let service = document("istio/store.yaml", "Service");
    assert_eq!(service["spec"]["selector"], deployment["spec"]["template"]["metadata"]["labels"]);
    assert_eq!(service["spec"]["selector"], deployment["spec"]["selector"]["matchLabels"]);
    let [name, namespace] = ["name", "namespace"].map(|field| service["metadata"][field].as_str().unwrap());
    let host = format!("{name}.{namespace}.svc.cluster.local");
    assert_eq!(format!("outbound|{}||{host}", service["spec"]["ports"][0]["port"]), STORE_CLUSTER);
    assert_eq!(document("istio/store.yaml", "DestinationRule")["spec"]["host"], host);
}

/// A duration as these files write it: `10s`.
fn seconds(text: &str) -> u64 {
    text.trim().strip_suffix('s').and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn the_store_has_time_to_drain_before_it_and_its_sidecar_are_killed() {
    let template = document("istio/store.yaml", "Deployment")["spec"]["template"].clone();
    let environment = &template["spec"]["containers"][0]["env"];
    let variable = environment.as_array().unwrap().iter().find(|v| v["name"] == "QUOTAGATE_DRAIN").unwrap();
    let drain = seconds(variable["value"].as_str().unwrap());
    let last_answers = 5;
    let grace = template["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace > drain + last_answers, "{grace} s");
    let sidecar = template["metadata"]["annotations"]["proxy.istio.io/config"].as_str().unwrap();
    let sidecar = seconds(sidecar.strip_prefix("terminationDrainDuration: ").unwrap());
    assert!((drain + last_answers..=grace).contains(&sidecar), "{sidecar} s");
}

/// The shipped Envoy configuration with this plugin's document, and the claims where that control plane leaves them.
fn options(
    upstream: &Upstream,
    store: &StoreProcess,
    mut document: Value,
    payload: &'static str,
) -> EnvoyOptions {
    document["store"]["timeout"] = json!("10s");
    document["store"]["on_failure"] = json!("deny");
    // So long that no test meets its end.
    document["policies"][0]["window"] = json!("366d");
    EnvoyOptions::new(upstream.port(), store.port()).document(document).edit(move |config| {
        let filters = yaml::at(envoy::manager(config)?, "/http_filters")?;
        let jwt = yaml::named(filters, "envoy.filters.http.jwt_authn")?;
        *yaml::at(jwt, "/typed_config/providers/demo/payload_in_metadata")? = json!(payload);
        Ok(())
    })
}

/// Alice and Bob are counted, each for themselves.
fn assert_counts(envoy: &Envoy) -> Result<()> {
    let mut client = Client::connect(envoy.port())?;
    for (subject, remaining) in [("alice", "99"), ("alice", "98"), ("bob", "99")] {
        let response = client.send(&Request::get("/").bearer(&jwt::token(subject)?))?;
        assert_eq!((response.status, response.header("x-ratelimit-remaining")), (200, Some(remaining)));
    }
    Ok(())
}

#[test]
fn the_plugin_counts_through_a_cluster_of_istios_name() -> Result<()> {
    let (store, upstream) = (StoreProcess::start("memory:", &[])?, Upstream::start()?);
    let plugin = document("istio/wasmplugin.yaml", "WasmPlugin")["spec"]["pluginConfig"].clone();
    assert_eq!(plugin["store"]["cluster"], STORE_CLUSTER);
    let options = options(&upstream, &store, plugin, "payload").edit(|config| {
        let clusters = yaml::at(config, "/static_resources/clusters")?;
        *yaml::at(yaml::named(clusters, "quota_store")?, "/name")? = json!(STORE_CLUSTER);
        *yaml::at(yaml::named(clusters, STORE_CLUSTER)?, "/load_assignment/cluster_name")? =
            json!(STORE_CLUSTER);
        Ok(())
    });
    assert_counts(&Envoy::start(&options)?)
}

/// Puts a cluster of a document in place of the shipped one; only its address is the test's.
fn with_cluster(options: EnvoyOptions, cluster: &Value) -> EnvoyOptions {
    let cluster = cluster.clone();
    options.edit(move |config| {
        let clusters = yaml::at(config, "/static_resources/clusters")?;
        let shipped = yaml::named(clusters, "quota_store")?;
        let endpoints = shipped["load_assignment"]["endpoints"].clone();
        *shipped = cluster.clone();
        shipped["load_assignment"]["endpoints"] = endpoints;
        Ok(())
    })
}

#[test]
fn what_the_envoy_filter_brings_works_in_envoy() -> Result<()> {
    let (store, upstream) = (StoreProcess::start("memory:", &[])?, Upstream::start()?);
    let mut plugin = document("istio/wasmplugin.yaml", "WasmPlugin")["spec"]["pluginConfig"].clone();
    plugin["store"]["cluster"] = json!("quota_store");
    let patches = document("istio/envoyfilter.yaml", "EnvoyFilter")["spec"]["configPatches"].clone();
    let value = |target: &str| {
        let patch = patches.as_array().unwrap().iter().find(|patch| patch["applyTo"] == target).unwrap();
        patch["patch"]["value"].clone()
    };
    let (manager, route) =
        (value("NETWORK_FILTER")["typed_config"].clone(), value("HTTP_ROUTE")["route"].clone());
    let options = with_cluster(options(&upstream, &store, plugin, "payload"), &value("CLUSTER"));
    let options = options.edit(move |config| {
        let shipped = envoy::manager(config)?.as_object_mut().context("no object")?;
        shipped.extend(manager.as_object().context("no object")?.clone());
        let shipped = yaml::at(envoy::manager(config)?, "/route_config/virtual_hosts/0/routes/0/route")?;
        let shipped = shipped.as_object_mut().context("no object")?;
        shipped.extend(route.as_object().context("no object")?.clone());
        Ok(())
    });
    assert_counts(&Envoy::start(&options)?)
}

#[test]
fn what_envoy_gateway_is_given_works_in_envoy() -> Result<()> {
    let (store, upstream) = (StoreProcess::start("memory:", &[])?, Upstream::start()?);
    let plugin = document("gateway/quotas.yaml", "EnvoyExtensionPolicy")["spec"]["wasm"][0]["config"].clone();
    let provider =
        document("gateway/quotas.yaml", "SecurityPolicy")["spec"]["jwt"]["providers"][0]["name"].clone();
    assert_eq!(provider, "issuer");
    let patch = document("gateway/quotas.yaml", "EnvoyProxy")["spec"]["bootstrap"]["jsonPatches"][0].clone();
    assert_eq!((&patch["op"], &patch["path"]), (&json!("add"), &json!("/static_resources/clusters/-")));
    // Envoy Gateway passes the document on as a text.
    let options =
        with_cluster(options(&upstream, &store, plugin, "issuer"), &patch["value"]).edit(|config| {
            let configuration = yaml::at(envoy::filter(config)?, "/configuration")?;
            let text = configuration["value"].to_string();
            *configuration =
                json!({"@type": "type.googleapis.com/google.protobuf.StringValue", "value": text});
            Ok(())
        });
    assert_counts(&Envoy::start(&options)?)
}
