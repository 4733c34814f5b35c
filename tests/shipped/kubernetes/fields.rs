//! Every field of the documents, against the types of the APIs.

use std::iter;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Namespace, core::v1::Service};
use kcr_extensions_istio_io::v1alpha1::wasmplugins::WasmPlugin;
use kcr_networking_istio_io::v1::destinationrules::DestinationRule;
use kcr_networking_istio_io::v1alpha3::envoyfilters::EnvoyFilter;
use kcr_security_istio_io::v1::authorizationpolicies::AuthorizationPolicy;
use kcr_security_istio_io::v1::requestauthentications::RequestAuthentication;
use quotagate_support::yaml;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{document, files, gateway_api::unknown_names};

/// The fields of a document that the API does not know or that have another type.
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
        ("security.istio.io/v1", "RequestAuthentication") => {
            lost::<RequestAuthentication>(document)
        }
        ("gateway.envoyproxy.io/v1alpha1", kind) => unknown_names(document, kind),
        (version, kind) => vec![format!("{version} {kind} is not checked")],
    }
}

/// Types that ignore unknown fields lose them when they are serialized again.
fn lost<T: DeserializeOwned + Serialize>(document: &Value) -> Vec<String> {
    match serde_json::from_value::<T>(document.clone()) {
        Err(error) => vec![error.to_string()],
        Ok(typed) => missing(document, &serde_json::to_value(typed).unwrap(), ""),
    }
}

/// The paths of `wanted` that are missing or different in `found`.
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
            pairs
                .flat_map(|(i, (wanted, found))| missing(wanted, found, &format!("{path}[{i}]")))
                .collect()
        }
        _ if wanted == found => Vec::new(),
        _ => vec![format!("{path}: {wanted} became {found}")],
    }
}

#[test]
fn every_field_is_known_to_its_api() {
    for file in files() {
        for document in yaml::read_all(&file).unwrap() {
            assert_eq!(faults(&document), [""; 0], "{} in {}", document["kind"], file.display());
        }
    }
}

#[test]
fn unknown_field_is_a_fault() {
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
        (
            "istio/envoyfilter.yaml",
            "EnvoyFilter",
            "/spec/configPatches/0/patch",
            "oper",
            "[0].patch.oper",
        ),
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
        (
            "gateway/quotas.yaml",
            "EnvoyProxy",
            "/spec/bootstrap",
            "jsonPatch",
            "spec.bootstrap.jsonPatch",
        ),
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
