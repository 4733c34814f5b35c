//! Which proxies reach the store, who else does, and what proxies say about it.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use quotagate_support::http::{Client, Request};
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::checks::Checks;

use crate::istio::checks::stores::CLUSTER;
use crate::istio::mesh::{Mesh, PUSH, by, of_kind, shipped, with_document};

/// Runs the checks.
pub fn check(mesh: &Mesh, checks: &mut Checks) {
    checks.check("istio.patches", "every patch of envoyfilter.yaml is in force", || patches(mesh));
    checks.check("istio.callers", "only the gateway's namespace may call the store", || {
        let store = mesh.first()?.network.address;
        let own = std::net::IpAddr::V4(mesh.plane.network.hub.address);
        let ask = |port: u16, path: &str| {
            mesh.plane.network.hub.within(|| {
                Client::connect_from(own, (store, port).into())?.send(&Request::get(path))
            })
        };
        let call = ask(9180, "/healthz")?.status;
        let merged = ask(15020, "/stats/prometheus")?.text();
        ensure!(call == 403, "a call without a certificate is answered {call}");
        ensure!(merged.contains("quotagate_"), "port 15020 has no metrics of the store");
        let strict = json!({"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
            "metadata": {"name": "strict", "namespace": "quotagate"},
            "spec": {"mtls": {"mode": "STRICT"}}});
        mesh.plane.api.apply(&strict)?;
        let closed = wait::until_true("STRICT", PUSH, || Ok(ask(9181, "/metrics").is_err()));
        let still = ask(15020, "/stats/prometheus")?.text().contains("quotagate_");
        mesh.plane.api.delete(&strict)?;
        closed?;
        ensure!(still, "port 15020 has no metrics of the store under STRICT");
        Ok(format!("{call} without a certificate; under STRICT 9181 is closed, 15020 has metrics"))
    });
    checks.check("istio.access_log", "a provider and a Telemetry object log decisions", || {
        access_log(mesh)
    });
    checks.check("istio.statistics", "proxyStatsMatcher brings the store's health checks", || {
        let silent = mesh.gateway.admin("/stats?filter=outlier_detection")?;
        let annotated = mesh.gateway_with("statistics", |deployment| {
            let annotation = "gatewayTopology: {numTrustedProxies: 1}\n\
                proxyStatsMatcher: {inclusionRegexps: [\".*quotagate.*\"]}\n";
            let annotations = &mut deployment["spec"]["template"]["metadata"]["annotations"];
            annotations["proxy.istio.io/config"] = json!(annotation);
        });
        let mut annotated = annotated?;
        annotated.wait_until_ready()?;
        ensure!(!silent.contains("quotagate-store"), "{silent}");
        // Without mutual TLS, a store refuses them: istio.callers.
        let checked = |name: &str| -> Result<u64> {
            let stats = annotated.admin("/stats?filter=quotagate-store.*health_check")?;
            let line = stats.lines().find_map(|line| line.split_once(&format!("{name}: ")));
            Ok(line.with_context(|| format!("no {name} in {stats}"))?.1.parse()?)
        };
        wait::until_true("checks of both stores", PUSH, || {
            Ok(checked("health_check.success")? > 1 && checked("health_check.healthy")? == 2)
        })?;
        let (good, bad) = (checked("health_check.success")?, checked("health_check.failure")?);
        Ok(format!("none by default; with it, of the health checks: {good} good, {bad} bad"))
    });
    checks.check("istio.no_dns", "a gateway starts at once although no DNS answers", || {
        let cluster = own_cluster(mesh)?;
        mesh.plane.api.apply(&cluster)?;
        let start = Instant::now();
        let mut gateway = mesh.another_gateway("no-dns")?;
        gateway.wait_until_ready()?;
        let seconds = start.elapsed().as_secs_f64();
        let own = gateway.admin("/clusters")?.contains("quota_store::");
        let answer = mesh.connect_to(&gateway)?.send(&by("no-dns")?)?;
        mesh.plane.api.delete(&cluster)?;
        ensure!(own, "the gateway has no cluster quota_store");
        ensure!(answer.status == 200 && seconds < 30.0, "after {seconds:.1} s: {answer:?}");
        Ok(format!("ready after {seconds:.1} s, with the chart's own cluster"))
    });
    checks.check(
        "istio.waypoint",
        "the annotation brings the store's cluster to a waypoint",
        || waypoint(mesh),
    );
    let claim = "PILOT_FILTER_GATEWAY_CLUSTER_CONFIG needs the extension provider";
    checks.check("istio.filtered", claim, || filtered(mesh));
}

/// The cluster of the gateway's own, which the chart renders on demand.
fn own_cluster(mesh: &Mesh) -> Result<Value> {
    let rendered = mesh.plane.our_chart(
        "istio",
        &["filter.tuning.ownCluster=true", "istio.enabled=false"],
        &[],
    )?;
    let own = rendered.into_iter().find(|object| object["metadata"]["name"] == "quotagate-cluster");
    own.context("the chart renders no cluster")
}

/// Looks at the gateway's configuration for what each patch changes.
fn patches(mesh: &Mesh) -> Result<String> {
    let routes = mesh.gateway.admin("/config_dump?resource=dynamic_route_configs")?;
    let listeners = mesh.gateway.admin("/config_dump?resource=dynamic_listeners")?;
    let clusters = mesh.gateway.admin("/config_dump?resource=dynamic_active_clusters")?;
    for (dump, part) in [
        (&routes, "\"idle_timeout\": \"60s\""),
        (&listeners, "\"max_request_headers_kb\": 32"),
        (&listeners, "\"initial_connection_window_size\": 1048576"),
        (&clusters, "\"path\": \"/healthz\""),
        (&clusters, "\"failure_percentage_threshold\": 30"),
        (&clusters, "\"enforcing_failure_percentage_local_origin\": 100"),
    ] {
        ensure!(dump.contains(part), "no {part}");
    }
    Ok("routes, listeners and the store's cluster".to_owned())
}

fn access_log(mesh: &Mesh) -> Result<String> {
    let log = json!({"path": "/dev/stdout", "logFormat": {"labels": {
        "status": "%RESPONSE_CODE%",
        "decision": "%FILTER_STATE(wasm.quotagate.decision:PLAIN)%"}}});
    mesh.plane.configure(|config| {
        config["extensionProviders"] = json!([{"name": "quotas", "envoyFileAccessLog": log}]);
    })?;
    let telemetry = json!({"apiVersion": "telemetry.istio.io/v1", "kind": "Telemetry",
        "metadata": {"name": "quotas", "namespace": "istio-ingress"},
        "spec": {"selector": {"matchLabels": {"istio": "ingress"}},
            "accessLogging": [{"providers": [{"name": "quotas"}]}]}});
    mesh.plane.api.apply(&telemetry)?;
    mesh.plane.api.apply(&with_document(|document| {
        document["access_log"] = json!(["decision"]);
    })?)?;
    let line = wait::until("a line with a decision", PUSH, || {
        mesh.ask(&by("access-log")?)?;
        let log = mesh.gateway.log();
        let mut lines = log.lines().filter(|line| line.contains("\"decision\":\""));
        Ok(lines.next_back().map(ToOwned::to_owned))
    });
    mesh.plane.api.delete(&telemetry)?;
    mesh.restore()?;
    line
}

/// Applies `waypoint.yaml`, and looks at the clusters that a waypoint gets with and without the
/// annotation. Upstream Envoy rejects a waypoint's listeners.
fn waypoint(mesh: &Mesh) -> Result<String> {
    let files = shipped("istio/waypoint.yaml")?;
    let filter = of_kind(&files, "EnvoyFilter")?;
    let proxy = mesh.waypoint("waypoint")?;
    let has = |expected: bool| {
        wait::until_true("the store's cluster, or its end", PUSH, || {
            Ok(proxy.admin("/clusters")?.contains(CLUSTER) == expected)
        })
    };
    let known = || Ok(proxy.admin("/clusters")?.contains("xds-grpc"));
    wait::until_true("the waypoint's Envoy", PUSH, known)?;
    for object in &files {
        mesh.plane.api.apply(object)?;
    }
    has(true).context("with the annotation")?;
    let mut without = filter.clone();
    without["metadata"]["annotations"] = json!({});
    mesh.plane.api.apply(&without)?;
    has(false).context("without the annotation")?;
    for object in &files {
        mesh.plane.api.delete(object)?;
    }
    Ok("it is there with the annotation, and not without".to_owned())
}

/// Starts istiod so that gateways get only clusters that they route to. Afterwards it runs as
/// before.
fn filtered(mesh: &Mesh) -> Result<String> {
    mesh.plane.kill_istiod();
    mesh.plane.start_istiod(&[("PILOT_FILTER_GATEWAY_CLUSTER_CONFIG", "true")])?;
    let mut gateway = mesh.another_gateway("filtered")?;
    gateway.wait_until_ready()?;
    let has = || Ok(gateway.admin("/clusters")?.contains(CLUSTER));
    let at_first = has()?;
    let changed = |seconds: u32| {
        for mut object in
            mesh.routes()?.into_iter().filter(|object| object["kind"] == "VirtualService")
        {
            object["spec"]["http"][0]["timeout"] = json!(format!("{seconds}s"));
            mesh.plane.api.apply(&object)?;
        }
        Ok::<_, anyhow::Error>(())
    };
    changed(20)?;
    let lost = wait::until_true("the end of the cluster", PUSH, || Ok(!has()?));
    let host = "quotagate-store.quotagate.svc.cluster.local";
    let provider = json!([{"name": "quotagate-store", "envoyExtAuthzHttp": {
        "service": format!("quotagate/{host}"), "port": 9180}}]);
    mesh.plane.configure(|config| config["extensionProviders"] = provider)?;
    let back = wait::until_true("the cluster, by the provider", PUSH, has);
    changed(21)?;
    wait::until_true("the push", PUSH, || {
        Ok(gateway.admin("/config_dump?resource=dynamic_route_configs")?.contains("\"21s\""))
    })?;
    let request = by("filtered")?;
    let answer = mesh.connect_to(&gateway)?.send(&request)?;
    let kept = has()?;
    mesh.plane.kill_istiod();
    mesh.plane.start_istiod(&[])?;
    lost?;
    back?;
    ensure!(at_first && kept, "at first {at_first}, after an update {kept}");
    ensure!(answer.header("x-ratelimit-limit").is_some(), "{answer:?}");
    Ok("with the annotation until the next change of a VirtualService, with the provider for good"
        .to_owned())
}
