//! The other forms of the filter, and what becomes of a gateway that cannot fetch it.

use anyhow::{Context, Result, ensure};
use quotagate_support::wait;
use quotagate_support::yaml;
use quotagate_workspace::paths;
use serde_json::{Value, json};

use crate::checks::Checks;

use crate::istio::exact::{SENT, counted, exact};
use crate::istio::mesh::{Mesh, PUSH, Verdict, Verdicts, by, of_kind, shipped, with_document};

/// Runs the checks. Afterwards the filter is the shipped plugin again.
pub fn check(mesh: &Mesh, checks: &mut Checks) {
    checks.check("istio.extension", "TrafficExtension: exact quota", || {
        without_plugin(mesh)?;
        mesh.plane.api.apply(&extension()?)?;
        counted(mesh)?;
        exact(&mesh.burst(&by("extension")?, SENT)?)
    });
    checks.check("istio.twice", "WasmPlugin beside TrafficExtension counts twice", || {
        mesh.plane.api.apply(&with_document(|_| {})?)?;
        let both = |filters: &[String]| own(filters) == 2;
        wait::until_true("both filters", PUSH, || Ok(both(&mesh.filters()?)))?;
        let verdicts = mesh.burst(&by("twice")?, SENT)?;
        mesh.plane.api.delete(&extension()?)?;
        wait::until_true("one filter", PUSH, || Ok(own(&mesh.filters()?) == 1))?;
        // At most: a request may get the last unit from one filter, and none from the other.
        let admitted = verdicts.get(&Verdict::Counted).copied().unwrap_or_default();
        ensure!((1..=50).contains(&admitted), "{verdicts:?}");
        Ok(format!("{admitted} of {SENT} admitted"))
    });
    checks.check("istio.http", "an image by http:// and the digest of its file", || {
        let digest = mesh.plane.outside.filter.clone();
        let plugin = |quota: usize, digest: &str| {
            let mut plugin =
                with_document(|document| document["policies"][0]["quota"] = json!(quota))?;
            plugin["spec"]["url"] = json!("http://registry.example.com/quotagate.wasm");
            plugin["spec"]["sha256"] = json!(digest);
            Ok::<_, anyhow::Error>(plugin)
        };
        mesh.plane.api.apply(&plugin(101, &digest)?)?;
        mesh.until_quota(101)?;
        mesh.plane.api.apply(&plugin(100, &digest)?)?;
        mesh.until_quota(100)?;
        exact(&mesh.burst(&by("http")?, SENT)?)
    });
    checks.check(
        "istio.fetch",
        "an image that cannot be fetched: 403 for all, and a series",
        || {
            unfetched(mesh, "FAIL_RELOAD", Verdict::Refused(403))?;
            let metrics = mesh.gateway.get(15020, "/stats/prometheus")?.text();
            let series = metrics.lines().find(|line| {
                line.starts_with("istio_agent_wasm_config_conversion_count")
                    && line.contains("fetch_failure")
            });
            Ok(format!(
                "{SENT} of {SENT} answered 403; {}",
                series.context("no series of the alert")?
            ))
        },
    );
    checks.check("istio.fail_open", "the same with FAIL_OPEN: all pass uncounted", || {
        unfetched(mesh, "FAIL_OPEN", Verdict::Uncounted)?;
        mesh.restore()?;
        Ok(format!("{SENT} of {SENT} answered 200"))
    });
    checks.check("istio.native", "the native module by an EnvoyFilter: exact quota", || {
        without_plugin(mesh)?;
        mesh.plane.api.apply(&native("quotagate")?)?;
        counted(mesh)?;
        exact(&mesh.burst(&by("native")?, SENT)?)
    });
    checks.check(
        "istio.no_module",
        "without the module: the old listener stays, and it shows",
        || {
            let before = mesh.plane.istiod_counter("pilot_total_xds_rejects", "lds")?;
            mesh.plane.api.apply(&native("absent")?)?;
            wait::until_true("a rejected listener", PUSH, || {
                Ok(mesh.plane.istiod_counter("pilot_total_xds_rejects", "lds")? > before)
            })?;
            let seen = exact(&mesh.burst(&by("no-module")?, SENT)?)?;
            mesh.plane.api.delete(&native("absent")?)?;
            mesh.restore()?;
            Ok(format!("pilot_total_xds_rejects{{type=\"lds\"}} grows; the old listener: {seen}"))
        },
    );
}

/// How many filters of ours are among these.
fn own(filters: &[String]) -> usize {
    filters.iter().filter(|name| name.contains("quotagate")).count()
}

fn extension() -> Result<Value> {
    Ok(of_kind(&shipped("istio/trafficextension.yaml")?, "TrafficExtension")?.clone())
}

/// Removes the plugin, and waits until the gateway has no filter.
fn without_plugin(mesh: &Mesh) -> Result<()> {
    mesh.plane.api.delete(&with_document(|_| {})?)?;
    wait::until_true("no filter", PUSH, || Ok(own(&mesh.filters()?) == 0))
}

/// Gives the filter an image that does not exist. All requests then have this verdict.
fn unfetched(mesh: &Mesh, strategy: &str, verdict: Verdict) -> Result<()> {
    let mut plugin = with_document(|_| {})?;
    plugin["spec"]["url"] = json!("oci://registry.example.com/quotagate-filter:missing");
    plugin["spec"]["failStrategy"] = json!(strategy);
    mesh.plane.api.apply(&plugin)?;
    let request = by(strategy)?;
    mesh.until("a failed fetch", &request, |answer| Verdict::of(answer) == verdict)?;
    let verdicts = mesh.burst(&request, SENT)?;
    ensure!(verdicts == Verdicts::from([(verdict, SENT)]), "{verdicts:?}");
    Ok(())
}

/// An EnvoyFilter with the filters of `native.yaml`, the policies of the plugin, and this module.
fn native(module: &str) -> Result<Value> {
    let envoy = yaml::read(&paths::native_config())?;
    let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    let filters = envoy.pointer(&format!("{manager}/http_filters")).context("no filters")?;
    let filter = |part: &str| {
        let mut filters = filters.as_array().into_iter().flatten();
        let found =
            filters.find(|filter| filter["name"].as_str().is_some_and(|n| n.contains(part)));
        found.cloned().with_context(|| format!("no filter {part}"))
    };
    let mut own = filter("dynamic_modules")?;
    own["name"] = json!("quotagate.native");
    own["typed_config"]["dynamic_module_config"]["name"] = json!(module);
    let mut document = with_document(|_| {})?["spec"]["pluginConfig"].clone();
    document["store"] = json!({"redis": "redis://redis-1:6379", "on_failure": "allow"});
    own["typed_config"]["filter_config"]["value"] = document;
    let patch = |filter: Value| {
        let router = json!({"name": "envoy.filters.network.http_connection_manager",
            "subFilter": {"name": "envoy.filters.http.router"}});
        json!({"applyTo": "HTTP_FILTER",
            "match": {"context": "GATEWAY", "listener": {"filterChain": {"filter": router}}},
            "patch": {"operation": "INSERT_BEFORE", "value": filter}})
    };
    Ok(json!({"apiVersion": "networking.istio.io/v1alpha3", "kind": "EnvoyFilter",
        "metadata": {"name": "native", "namespace": "istio-ingress"},
        "spec": {"workloadSelector": {"labels": {"istio": "ingress"}},
            "configPatches": [patch(filter("set_filter_state")?), patch(own)]}}))
}
