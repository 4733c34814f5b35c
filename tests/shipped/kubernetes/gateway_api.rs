//! The names of Envoy Gateway's API, whose types are in no crate.

use serde_json::Value;

/// The field names of Envoy Gateway's API (`api/v1alpha1` of its source) for each object in the
/// documents. Fields below `free` belong to another API.
const ENVOY_GATEWAY: [(&str, &[&str]); 28] = [
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
    (
        "EnvoyExtensionPolicy.spec",
        &["targetRefs", "targetSelectors", "mergeType", "wasm", "extProc", "lua", "dynamicModule"],
    ),
    ("EnvoyExtensionPolicy.spec.targetRefs", &["group", "kind", "name", "sectionName"]),
    ("EnvoyExtensionPolicy.spec.wasm", &["name", "rootID", "code", "config", "failOpen", "env"]),
    ("EnvoyExtensionPolicy.spec.wasm.code", &["type", "http", "image", "pullPolicy"]),
    ("EnvoyExtensionPolicy.spec.wasm.code.image", &["url", "sha256", "pullSecretRef", "tls"]),
    (
        "EnvoyExtensionPolicy.spec.dynamicModule",
        &["name", "filterName", "config", "terminalFilter"],
    ),
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
    ("SecurityPolicy.spec.jwt.providers.claimToHeaders", &["header", "claim"]),
    ("EnvoyProxy", &["apiVersion", "kind", "metadata", "spec"]),
    (
        "EnvoyProxy.spec",
        &[
            "provider",
            "logging",
            "telemetry",
            "bootstrap",
            "concurrency",
            "mergeGateways",
            "dynamicModules",
        ],
    ),
    ("EnvoyProxy.spec.dynamicModules", &["name", "source", "doNotClose", "loadGlobally"]),
    ("EnvoyProxy.spec.dynamicModules.source", &["type", "local", "remote"]),
    ("EnvoyProxy.spec.dynamicModules.source.local", &["path"]),
    ("EnvoyProxy.spec.provider", &["type", "kubernetes"]),
    (
        "EnvoyProxy.spec.provider.kubernetes",
        &["envoyDeployment", "envoyDaemonSet", "envoyService", "envoyHpa", "envoyPdb"],
    ),
    (
        "EnvoyProxy.spec.provider.kubernetes.envoyDeployment.container",
        &["env", "image", "imageRepository", "resources", "securityContext", "volumeMounts"],
    ),
    (
        "EnvoyProxy.spec.provider.kubernetes.envoyDeployment",
        &["patch", "replicas", "strategy", "pod", "container", "initContainers", "name"],
    ),
    ("EnvoyProxy.spec.bootstrap", &["type", "value", "jsonPatches"]),
];

/// The fields of its list of patches: those of RFC 6902, and a query.
const JSON_PATCH: (&str, &[&str]) =
    ("EnvoyProxy.spec.bootstrap.jsonPatches", &["op", "path", "jsonPath", "from", "value"]);

const FREE: [&str; 6] = [
    "EnvoyExtensionPolicy.spec.dynamicModule.config",
    "ClientTrafficPolicy.metadata",
    "EnvoyExtensionPolicy.spec.wasm.config",
    "EnvoyProxy.spec.bootstrap.jsonPatches.value",
    "EnvoyExtensionPolicy.metadata",
    "EnvoyProxy.metadata",
];

/// The paths of the fields that the API does not know.
pub fn unknown_names(value: &Value, path: &str) -> Vec<String> {
    match value {
        _ if FREE.contains(&path) || path == "SecurityPolicy.metadata" => Vec::new(),
        Value::Array(items) => items.iter().flat_map(|item| unknown_names(item, path)).collect(),
        Value::Object(fields) => {
            let known = ENVOY_GATEWAY.iter().chain([&JSON_PATCH]).find(|(known, _)| *known == path);
            let Some((_, names)) = known else { return vec![format!("{path} is not in the list")] };
            let check = |(name, value): (&String, &Value)| {
                let path = format!("{path}.{name}");
                if names.contains(&name.as_str()) {
                    unknown_names(value, &path)
                } else {
                    vec![path]
                }
            };
            fields.iter().flat_map(check).collect()
        }
        _ => Vec::new(),
    }
}
