//! The API server, as `kubectl` sees it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quotagate_support::http::{Client, Request, Response};
use quotagate_support::wait;
use rustls::ClientConfig;
use serde_json::{Value, json};

use crate::istio::network::NetworkNamespace;

/// How long the API server may take to know a kind after its definition came.
const KIND: Duration = Duration::from_secs(30);

/// A client with all rights.
pub struct Api {
    /// Its port on loopback.
    pub port: u16,
    /// Whom to trust, and an administrator's certificate.
    pub tls: Arc<ClientConfig>,
    /// Where the API server runs.
    pub hub: Arc<NetworkNamespace>,
}

impl Api {
    /// Creates or changes an object, and returns it as the API server has it then.
    ///
    /// # Errors
    /// When the API server, or a webhook, refuses it.
    pub fn apply(&self, object: &Value) -> Result<Value> {
        let path = format!("{}?fieldManager=mesh&force=true", path_of(object)?);
        let patch = "application/apply-patch+yaml";
        let applied = wait::until(&format!("the kind of {path}"), KIND, || {
            let response = self.send("PATCH", &path, patch, object)?;
            let unknown = response.text().contains("could not find the requested resource");
            Ok((!unknown).then_some(response))
        })?;
        good(&path, &applied)
    }

    /// Removes an object.
    ///
    /// # Errors
    /// When it does not exist.
    pub fn delete(&self, object: &Value) -> Result<()> {
        let path = path_of(object)?;
        let options = json!({"gracePeriodSeconds": 0});
        good(&path, &self.send("DELETE", &path, "application/json", &options)?).map(drop)
    }

    /// Changes the status of an object.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn status(&self, object: &Value, status: &Value) -> Result<Value> {
        let path = format!("{}/status", path_of(object)?);
        let change = json!({ "status": status });
        good(&path, &self.send("PATCH", &path, "application/merge-patch+json", &change)?)
    }

    /// An object of Kubernetes' first API group, if it exists.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub fn find(&self, kind: &str, namespace: &str, name: &str) -> Result<Option<Value>> {
        let metadata = json!({"namespace": namespace, "name": name});
        let path = path_of(&json!({"apiVersion": "v1", "kind": kind, "metadata": metadata}))?;
        let response = self.send("GET", &path, "application/json", &Value::Null)?;
        if response.status == 404 { Ok(None) } else { good(&path, &response).map(Some) }
    }

    /// A token of a service account.
    ///
    /// # Errors
    /// When the account does not exist.
    pub fn token(&self, namespace: &str, account: &str, audience: Option<&str>) -> Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let audiences: Vec<&str> = audience.into_iter().collect();
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": audiences}});
        let answer = good(&path, &self.send("POST", &path, "application/json", &request)?)?;
        let token = answer["status"]["token"].as_str().context("no token")?;
        Ok(token.to_owned())
    }

    fn send(&self, method: &str, path: &str, content: &str, body: &Value) -> Result<Response> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::new(method, path)
            .header("content-type", content)
            .header("content-length", body.len().to_string())
            .body(body.as_bytes());
        self.hub.within(|| Client::connect_tls(self.port, &self.tls)?.send(&request))
    }
}

fn good(path: &str, response: &Response) -> Result<Value> {
    if response.status / 100 != 2 {
        bail!("{path} is answered {}: {}", response.status, response.text());
    }
    response.json()
}

/// The path of an object at the API server.
fn path_of(object: &Value) -> Result<String> {
    let field = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let version = field("/apiVersion").context("an object without apiVersion")?;
    let kind = field("/kind").context("an object without kind")?;
    let name = field("/metadata/name").with_context(|| format!("a {kind} without a name"))?;
    let group = if version.contains('/') { "apis" } else { "api" };
    let namespace = field("/metadata/namespace")
        .map_or_else(String::new, |namespace| format!("/namespaces/{namespace}"));
    Ok(format!("/{group}/{version}{namespace}/{}/{name}", plural(kind)))
}

/// A kind as paths name it.
fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    match kind.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'o']) => format!("{stem}ies"),
        _ if kind.ends_with('s') => format!("{kind}es"),
        _ => format!("{kind}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_plural_of_their_definitions() {
        let kinds = ["Pod", "Gateway", "AuthorizationPolicy", "GatewayClass", "EndpointSlice"];
        let plurals =
            ["pods", "gateways", "authorizationpolicies", "gatewayclasses", "endpointslices"];
        assert_eq!(kinds.map(plural), plurals);
    }

    #[test]
    fn path_follows_group_and_namespace() {
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "a"}});
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/a";
        assert_eq!(path_of(&role).unwrap(), path);
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "n"}});
        assert_eq!(path_of(&pod).unwrap(), "/api/v1/namespaces/n/pods/a");
    }
}
