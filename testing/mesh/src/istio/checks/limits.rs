//! The rate limit service in a mesh: [`envoy/ratelimit/istio.yaml`](../../../../envoy/ratelimit).

use anyhow::{Context, Result};
use quotagate_support::wait;
use quotagate_support::yaml;
use quotagate_workspace::paths;
use serde_json::json;

use crate::checks::Checks;

use crate::istio::mesh::{Mesh, PUSH, get, shipped};
use crate::istio::plane::pods::{self, Pod};

/// The limit of `rules.yaml`, by the minute and the client's address.
const LIMIT: usize = 5;
const SENT: usize = 60;

/// Runs the checks.
pub fn check(mesh: &Mesh, checks: &mut Checks) {
    let claim = "the rate limit service by an EnvoyFilter: exact limit";
    checks.check("istio.ratelimit", claim, || exact(mesh));
}

fn exact(mesh: &Mesh) -> Result<String> {
    let rules = paths::root().join("envoy/ratelimit/config/rules.yaml");
    let rules = format!("rateLimit.rules.shop\\.yaml={}", yaml::read(&rules)?);
    let objects = mesh.plane.our_chart("istio", &["rateLimit.enabled=true"], &[&rules])?;
    let named = |kind: &str| {
        let found = objects.iter().find(|object| {
            object["kind"] == kind && object["metadata"]["name"] == "quotagate-ratelimit"
        });
        found.with_context(|| format!("the chart renders no {kind} of the service"))
    };
    for object in &objects {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if name.starts_with("quotagate-ratelimit") {
            mesh.plane.api.apply(object)?;
        }
    }
    let service =
        Pod::service(&mesh.plane, "ratelimit", named("Deployment")?, "ratelimit", "ratelimit")?;
    let pods = [service];
    let ready = pods::endpoints("quotagate-ratelimit", ("grpc-ratelimit", 8081), &pods);
    mesh.plane.api.apply(&ready)?;
    let gateway = older_gateway(mesh)?;
    for object in shipped("ratelimit/istio.yaml")? {
        mesh.plane.api.apply(&object)?;
    }
    let limited = |address: &str| {
        let answer = mesh.connect_to(&gateway)?.send(&get("/").from_address(address))?;
        Ok(answer.header("x-ratelimit-limit").is_some())
    };
    wait::until_true("a limited request", PUSH, || limited("203.0.113.40"))?;
    let verdicts = mesh.burst_to(&gateway, &get("/").from_address("203.0.113.41"), SENT)?;
    crate::istio::exact::exactly(LIMIT, &verdicts)
}

/// A gateway with the label that the file names: that of the older layout.
fn older_gateway(mesh: &Mesh) -> Result<Pod> {
    const LABEL: &str = "ingressgateway";
    for mut object in mesh.routes()? {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        object["metadata"]["name"] = json!("older");
        match kind.as_str() {
            "Gateway" => object["spec"]["selector"]["istio"] = json!(LABEL),
            "VirtualService" => object["spec"]["gateways"] = json!(["older"]),
            _ => continue,
        }
        mesh.plane.api.apply(&object)?;
    }
    let mut gateway = mesh.gateway_with("older", |deployment| {
        deployment["spec"]["template"]["metadata"]["labels"]["istio"] = json!(LABEL);
    })?;
    gateway.wait_until_ready()?;
    Ok(gateway)
}
