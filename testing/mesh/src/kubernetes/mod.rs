//! kube-apiserver and Helm: the chart's lifecycle.

pub mod api_server;
mod combinations;
mod helm;
mod policies;
mod promises;

use anyhow::Result;

use crate::{
    binaries::{Binaries, ENVOY_GATEWAY, ISTIO_API, PROMETHEUS_OPERATOR},
    checks::Checks,
};
use api_server::ApiServer;
use helm::{Helm, RELEASE};

/// Runs the checks of the chart. No pod runs: they show what the API server and Helm accept.
///
/// # Errors
/// When the API server or Helm cannot be started.
pub fn run(binaries: &Binaries, checks: &mut Checks) -> Result<()> {
    let api = ApiServer::start(binaries)?;
    let mut helm = Helm::new(&api, binaries)?;
    define(&helm)?;
    helm.discover()?;
    promises::run(&helm, checks);
    policies::run(&helm, checks);
    combinations::run(&helm, checks);
    Ok(())
}

/// The definitions of all kinds that the chart knows, from Go modules, and the namespaces.
fn define(helm: &Helm<'_>) -> Result<()> {
    let api = helm.api;
    let chart = ENVOY_GATEWAY.folder()?.join("charts/gateway-crds-helm").display().to_string();
    let on = ["--set", "crds.gatewayAPI.enabled=true,crds.envoyGateway.enabled=true"];
    api.apply(&helm.run(&[&["template", "crds", &chart], &on[..]].concat())?)?;
    let operator = PROMETHEUS_OPERATOR.folder()?.join("example/prometheus-operator-crd");
    api.apply_files(&[
        ISTIO_API.folder()?.join("kubernetes/customresourcedefinitions.gen.yaml"),
        operator.join("monitoring.coreos.com_servicemonitors.yaml"),
        operator.join("monitoring.coreos.com_prometheusrules.yaml"),
    ])?;
    api.run(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"])?;
    for name in [RELEASE, "istio-ingress", "shop"] {
        api.run(&["create", "namespace", name])?;
    }
    let security =
        ["enforce", "warn"].map(|mode| format!("pod-security.kubernetes.io/{mode}=restricted"));
    let [enforce, warn] = &security;
    api.run(&["label", "namespace", RELEASE, enforce, warn])?;
    // A controller would make it. The pod of `helm test` uses it.
    api.run(&["create", "serviceaccount", "default", "--namespace", RELEASE])?;
    Ok(())
}
