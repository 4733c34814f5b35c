//! What is outside of the mesh: an issuer of tokens, and a registry with the filter's image. One
//! Envoy serves both over TLS.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_support::http::{Client, Request};
use quotagate_support::jwt::SigningKey;
use quotagate_support::process::Process;
use quotagate_support::tls::{Authority, Holder};
use quotagate_workspace::{paths, tools};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::istio::network::NetworkNamespace;

const START: Duration = Duration::from_secs(60);
/// The issuer of `requestauthentication.yaml`.
pub const ISSUER: SigningKey =
    SigningKey { name: "https://issuer.example.com", key: b"the key of the issuer of the mesh" };
/// The hosts that it serves.
pub const HOSTS: [&str; 2] = ["issuer.example.com", "registry.example.com"];

/// The issuer and the registry, ended when dropped.
#[derive(Debug)]
pub struct Outside {
    _process: Process,
    /// The digest of the filter's file.
    pub filter: String,
}

impl Outside {
    /// Starts them on port 443 of the hub, and the registry on port 80, too.
    ///
    /// # Errors
    /// When Envoy does not come up.
    pub fn start(hub: &NetworkNamespace, authority: &Authority, folder: &Path) -> Result<Self> {
        let [certificate, key] = ["outside.pem", "outside.key"].map(|name| folder.join(name));
        authority.issue(&Holder::names(&HOSTS))?.write(&certificate, &key)?;
        let filter = paths::filter();
        let module = fs::read(&filter).with_context(|| format!("no {}", filter.display()))?;
        let filter = hex(&module);
        let hosts = [
            host("issuer.example.com", &[answer("/.well-known/jwks.json", &ISSUER.jwks())]),
            host("registry.example.com", &registry(&module, &filter, folder)?),
        ];
        let listener = |port: u16, tls: Option<(&PathBuf, &PathBuf)>| listener(port, &hosts, tls);
        let listeners = [listener(443, Some((&certificate, &key))), listener(80, None)];
        let config = folder.join("outside.json");
        fs::write(&config, json!({"static_resources": {"listeners": listeners}}).to_string())?;
        let mut command = Command::new(tools::envoy()?);
        command.arg("-c").arg(&config).args(["--disable-hot-restart", "--concurrency", "1"]);
        let log = folder.join("outside.log");
        let mut process = hub.within(|| Process::spawn("the issuer", &mut command, &log))?;
        process.wait_until("its first answer", START, |_| {
            let request = Request::get("/.well-known/jwks.json").header("host", HOSTS[0]);
            let answer = hub.within(|| Client::connect(80)?.send(&request))?;
            Ok((answer.status == 200).then_some(()))
        })?;
        Ok(Self { _process: process, filter })
    }
}

/// The paths of a registry with an image of the filter in the form of an artifact.
fn registry(module: &[u8], digest: &str, folder: &Path) -> Result<Vec<Value>> {
    let blob = |kind: &str, bytes: &[u8]| json!({"mediaType": kind, "digest": format!("sha256:{}", hex(bytes)), "size": bytes.len()});
    let config = blob("application/vnd.module.wasm.config.v1+json", b"{}");
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": [config, blob("application/vnd.module.wasm.content.layer.v1+wasm", module)],
    })
    .to_string();
    let file = folder.join("plugin.wasm");
    fs::write(&file, module)?;
    let file = json!({"filename": file});
    let image = "/v2/quotagate-filter";
    let served = hex(manifest.as_bytes());
    let mut routes = vec![
        answer("/v2/", "{}"),
        answer(&format!("{image}/blobs/sha256:{}", hex(b"{}")), "{}"),
        respond(&format!("{image}/blobs/sha256:{digest}"), &file),
        respond("/quotagate.wasm", &file),
    ];
    for name in ["0.1.0", &format!("sha256:{served}")] {
        let mut route = answer(&format!("{image}/manifests/{name}"), &manifest);
        route["response_headers_to_add"] = json!([
            header("content-type", MANIFEST),
            header("docker-content-digest", &format!("sha256:{served}")),
        ]);
        routes.push(route);
    }
    Ok(routes)
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn header(name: &str, value: &str) -> Value {
    json!({"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"})
}

fn answer(path: &str, body: &str) -> Value {
    respond(path, &json!({"inline_string": body}))
}

fn respond(path: &str, body: &Value) -> Value {
    json!({"match": {"path": path}, "direct_response": {"status": 200, "body": body}})
}

fn host(name: &str, routes: &[Value]) -> Value {
    json!({"name": name, "domains": [name], "routes": routes})
}

fn listener(port: u16, hosts: &[Value], tls: Option<(&PathBuf, &PathBuf)>) -> Value {
    let routes = json!({
        "virtual_hosts": hosts,
        "max_direct_response_body_size_bytes": 64 << 20,
    });
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "outside",
        "route_config": routes,
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
    });
    let filter = json!({"name": "http", "typed_config": manager});
    let mut chain = json!({"filters": [filter]});
    if let Some((certificate, key)) = tls {
        let certificate = json!({
            "certificate_chain": {"filename": certificate}, "private_key": {"filename": key},
        });
        chain["transport_socket"] = json!({"name": "tls", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {"tls_certificates": [certificate]},
        }});
    }
    let address = json!({"socket_address": {"address": "0.0.0.0", "port_value": port}});
    json!({"name": format!("port-{port}"), "address": address, "filter_chains": [chain]})
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
