//! Checks objects against the published schemas: those of Kubernetes, and those of the CRDs of
//! Istio, Envoy Gateway and the Prometheus Operator.

use std::{
    collections::HashMap,
    fs,
    sync::{Arc, LazyLock, Mutex},
};

use jsonschema::Validator;
use quotagate_support::paths;
use serde_json::{Value, json};

use super::document;

/// The oldest version of Kubernetes that the chart installs on, one in between, and the newest.
pub const KUBERNETES: [&str; 3] = ["1.27.0", "1.32.0", "1.37.0"];

/// What each version of Kubernetes, or the CRD, finds wrong.
pub fn faults(object: &Value) -> Vec<String> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    if let Some((group, version)) = version.split_once('/').filter(|_| is_custom(version)) {
        let mut found = errors(&custom(group, version, kind), &object["spec"]);
        found.extend(metadata(object));
        return found;
    }
    let versions = KUBERNETES.iter().filter(|release| !is_newer(object, release));
    let mut found: Vec<String> =
        versions.flat_map(|release| errors(&builtin(release, version, kind), object)).collect();
    found.dedup();
    found
}

/// Whether an object uses a field that came after this version.
fn is_newer(object: &Value, release: &str) -> bool {
    // The chart says at store.tls (sidecars) and store.trafficDistribution what they need.
    let newer = ["/spec/template/spec/initContainers/0/restartPolicy", "/spec/trafficDistribution"];
    release == "1.27.0" && newer.iter().any(|field| object.pointer(field).is_some())
}

fn is_custom(version: &str) -> bool {
    ["istio.io/", "envoyproxy.io/", "coreos.com/"].iter().any(|group| version.contains(group))
}

/// Custom objects have the metadata of all others.
fn metadata(object: &Value) -> Vec<String> {
    let same = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": object["metadata"]});
    faults(&same)
}

fn errors(validator: &Validator, value: &Value) -> Vec<String> {
    let line = |error: jsonschema::ValidationError| format!("{}: {error}", error.instance_path());
    validator.iter_errors(value).map(line).collect()
}

type Validators = Mutex<HashMap<String, Arc<Validator>>>;
static VALIDATORS: LazyLock<Validators> = LazyLock::new(Validators::default);

fn cached(name: String, schema: impl FnOnce() -> Value) -> Arc<Validator> {
    let mut validators = VALIDATORS.lock().unwrap();
    let make = || Arc::new(jsonschema::validator_for(&schema()).unwrap());
    Arc::clone(validators.entry(name).or_insert_with(make))
}

fn custom(group: &str, version: &str, kind: &str) -> Arc<Validator> {
    let name = format!("{group}_{version}_{kind}.json");
    let folder = paths::root().join("tests/shipped/kubernetes/schemas");
    cached(name.clone(), || {
        let text = fs::read_to_string(folder.join(&name)).unwrap_or_else(|error| {
            panic!("{name}: {error}. strip.py beside it makes it from the CRD")
        });
        serde_json::from_str(&text).unwrap()
    })
}

fn builtin(release: &str, version: &str, kind: &str) -> Arc<Validator> {
    let (group, version) = version.split_once('/').unwrap_or(("core", version));
    let group = group.split('.').next().unwrap();
    let definition = format!("io.k8s.api.{group}.{version}.{kind}");
    cached(format!("{release} {definition}"), || {
        let text = fs::read_to_string(quotagate_chart::kubernetes(release).unwrap()).unwrap();
        let text = text.replace("/api/_definitions.json#", "#");
        let mut schema: Value = serde_json::from_str(&text).unwrap();
        assert!(schema["$defs"][&definition].is_object(), "{release} has no {definition}");
        schema.as_object_mut().unwrap().remove("$id");
        schema["$ref"] = json!(format!("#/$defs/{definition}"));
        schema
    })
}

#[test]
fn unknown_field_is_a_fault() {
    let cases = [
        ("istio/wasmplugin.yaml", "WasmPlugin", "/spec", "failStrategi"),
        ("istio/trafficextension.yaml", "TrafficExtension", "/spec/wasm", "phase"),
        ("istio/store.yaml", "Service", "/spec", "selectors"),
        ("istio/store.yaml", "Deployment", "/spec/template/spec/containers/0", "comand"),
        ("istio/store.yaml", "DestinationRule", "/spec/trafficPolicy/connectionPool", "htttp"),
        ("istio/store.yaml", "ServiceEntry", "/spec/ports/0", "protocols"),
        ("istio/envoyfilter.yaml", "EnvoyFilter", "/spec/configPatches/0/patch", "oper"),
        ("istio/requestauthentication.yaml", "RequestAuthentication", "/spec/jwtRules/0", "jwkUri"),
        ("gateway/quotas.yaml", "EnvoyExtensionPolicy", "/spec/wasm/0/code", "images"),
        ("gateway/quotas.yaml", "EnvoyProxy", "/spec/bootstrap", "jsonPatch"),
        ("gateway/quotas.yaml", "SecurityPolicy", "/spec/jwt/providers/0", "remoteJwks"),
        ("gateway/native.yaml", "EnvoyProxy", "/spec/dynamicModules/0", "library"),
        ("gateway/native.yaml", "EnvoyExtensionPolicy", "/spec/lua/0", "script"),
    ];
    for (file, kind, pointer, field) in cases {
        let mut document = document(file, kind);
        document.pointer_mut(pointer).unwrap()[field] = json!("x");
        let faults = faults(&document);
        let [fault] = &faults[..] else { panic!("{kind}: {faults:?}") };
        let path = pointer.strip_prefix("/spec").unwrap();
        assert!(fault.contains(path) && fault.contains(field), "{kind}: {fault}");
    }
}

#[test]
fn value_of_a_wrong_type_is_a_fault() {
    let cases = [
        ("istio/wasmplugin.yaml", "WasmPlugin", "/spec/failStrategy", json!("FAIL_RELAOD")),
        ("istio/store.yaml", "Service", "/spec/ports/0/port", json!("http")),
        ("istio/store.yaml", "Deployment", "/spec/replicas", json!("two")),
        ("istio/store.yaml", "Deployment", "/metadata/labels/app.kubernetes.io~1name", json!(1)),
        ("istio/wasmplugin.yaml", "WasmPlugin", "/metadata/name", json!(1)),
        ("istio/envoyfilter.yaml", "EnvoyFilter", "/spec/configPatches/0/applyTo", json!("ROUTE")),
        ("gateway/quotas.yaml", "EnvoyExtensionPolicy", "/spec/wasm/0/failOpen", json!("no")),
    ];
    for (file, kind, pointer, wrong) in cases {
        let mut document = document(file, kind);
        *document.pointer_mut(pointer).unwrap() = wrong;
        assert_eq!(faults(&document).len(), 1, "{kind} {pointer}: {:?}", faults(&document));
    }
}
