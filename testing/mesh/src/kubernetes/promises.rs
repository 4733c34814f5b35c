//! Single promises of the chart and its documents.

use std::{path::Path, process::Command};

use anyhow::{Result, ensure};
use quotagate_chart::cases::{everything, with_rate_limits};
use quotagate_support::paths;
use quotagate_workspace::task;
use serde_json::{Value, json};

use super::{
    api_server::output,
    helm::{Helm, RELEASE, chart},
};
use crate::checks::Checks;

const STORE: &str = "deployment/quotagate-store";
const ISTIO: &str = "istio.yaml";
const GATEWAY: &str = "envoy-gateway.yaml";

/// A check that installs what it needs, and the promise that it shows.
type Promise = (&'static str, &'static str, fn(&Helm<'_>) -> Result<String>);

const PROMISES: &[Promise] = &[
    (
        "kubernetes.autoscaling",
        "an upgrade leaves the number of stores to the autoscaler, a fresh release starts at its minimum, and a rollback to another number is refused",
        autoscaling,
    ),
    (
        "kubernetes.bodies_image",
        "the image of the filter follows the document: one that reads bodies gets the larger filter",
        bodies_image,
    ),
    (
        "kubernetes.target_ports",
        "the Services of the store name their targets by number",
        target_ports,
    ),
    (
        "kubernetes.headless",
        "switching the mesh on leaves the Service headless, unless it is deleted first",
        headless,
    ),
    (
        "kubernetes.pod_security",
        "the namespace is `restricted`, and a pod that is not is refused or warned of",
        pod_security,
    ),
    (
        "kubernetes.names",
        "a release whose name makes no name of a Service is refused, and `fullnameOverride` helps",
        names,
    ),
    (
        "kubernetes.identity",
        "the store has a ServiceAccount of its own without a token, and on OpenShift no user",
        identity,
    ),
    (
        "kubernetes.filter_check",
        "`filter.check`: a document with faults stops Helm before it changes anything",
        filter_check,
    ),
    (
        "kubernetes.helm_dry_run",
        "`--dry-run=server` of Helm lets the API server check no object, `kubectl` does",
        helm_dry_run,
    ),
    (
        "kubernetes.redis_storage",
        "charts/example refuses another `redis.storage` once the StatefulSet exists",
        redis_storage,
    ),
];

/// Runs all of them.
pub fn run(helm: &Helm<'_>, checks: &mut Checks) {
    for &(name, claim, promise) in PROMISES {
        checks.check(name, claim, || {
            let seen = promise(helm);
            let installed = helm.run(&["list", "-q"])?.contains(RELEASE);
            // The next check needs an empty cluster, whatever happened.
            let gone = if installed { helm.uninstall() } else { Ok(()) };
            seen.and_then(|seen| gone.map(|()| seen))
        });
    }
}

fn autoscaling(helm: &Helm<'_>) -> Result<String> {
    let on = json!({"store": {"autoscaling": {"enabled": true}}});
    let replicas = || helm.live(STORE, "/spec/replicas");
    helm.put("install", GATEWAY, &json!({"store": {"replicas": 5}}))?;
    helm.put("upgrade", GATEWAY, &on)?;
    let switched_on = replicas()?;
    helm.api.run(&["scale", STORE, "--replicas=4", "--namespace", RELEASE])?;
    helm.put("upgrade", GATEWAY, &on)?;
    let upgraded = replicas()?;
    helm.refused(&["rollback", RELEASE, "2"], &["conflict", ".spec.replicas"])?;
    let rolled_back = replicas()?;
    // What the documents say to do instead.
    helm.put("upgrade", GATEWAY, &on)?;
    let old_values = replicas()?;
    helm.uninstall()?;
    helm.put("install", GATEWAY, &on)?;
    let fresh = replicas()?;
    let seen = json!([switched_on, upgraded, rolled_back, old_values, fresh]);
    ensure!(seen == json!([5, 4, 4, 4, 2]), "replicas {seen} instead of [5,4,4,4,2]");
    Ok("5 stay 5 when switched on, 4 stay 4 on upgrade and with old values, a rollback to 5 is a conflict, fresh starts at 2"
        .into())
}

fn bodies_image(helm: &Helm<'_>) -> Result<String> {
    let reads = json!({"policy": {"policies": [{
        "name": "tokens", "partition_by": ["caller"], "quota": 1000, "window": "1m",
        "cost": {"reserve": 100, "settle": [{"usage": "total"}]},
    }]}});
    let image = || -> Result<String> {
        let plugin = helm.api.get(&["wasmplugin", "--namespace", "istio-ingress"])?;
        Ok(plugin["items"][0]["spec"]["url"].as_str().unwrap_or_default().to_owned())
    };
    helm.put("install", ISTIO, &json!({}))?;
    let small = image()?;
    helm.put("upgrade", ISTIO, &reads)?;
    let bodies = image()?;
    ensure!(small.contains("/quotagate-filter:"), "{small}");
    ensure!(bodies.contains("/quotagate-filter-bodies:"), "{bodies}");
    Ok(format!("{small}, with `settle: usage` {bodies}"))
}

fn target_ports(helm: &Helm<'_>) -> Result<String> {
    let front = json!({
        "store": {"tls": {"enabled": true, "existingSecret": "tls", "callers": ["proxy.internal"]}},
        "policy": {"store": {"cluster": "quota_store"}},
    });
    let mut seen = Vec::new();
    for values in [front, with_rate_limits(everything())] {
        helm.put("install", GATEWAY, &values)?;
        let services = helm.api.get(&["services", "--namespace", RELEASE])?;
        for service in services["items"].as_array().into_iter().flatten() {
            let name = service["metadata"]["name"].as_str().unwrap_or_default();
            if !name.starts_with("quotagate-store") {
                continue;
            }
            let ports = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
            for port in ports {
                let target = &port["targetPort"];
                ensure!(target.is_number(), "{name}: {target}");
                seen.push(target.to_string());
            }
        }
        helm.uninstall()?;
    }
    ensure!(seen.contains(&"9443".to_owned()), "no front: {seen:?}");
    Ok(seen.join(", "))
}

fn headless(helm: &Helm<'_>) -> Result<String> {
    helm.put("install", ISTIO, &json!({"istio": {"enabled": false, "redis": {"enabled": false}}}))?;
    let (chart, values) = (chart(), helm.values(ISTIO, &json!({}))?);
    let upgrade = ["upgrade", RELEASE, &chart, "-f", &values];
    helm.run(&upgrade)?;
    let address = || helm.live("service/quotagate-store", "/spec/clusterIP");
    ensure!(address()? == "None", "the upgrade changed the address");
    helm.api.run(&["delete", "service", "quotagate-store", "--namespace", RELEASE])?;
    helm.run(&upgrade)?;
    ensure!(address()? != "None", "still headless");
    Ok("the upgrade alone leaves the Service headless; deleted first, it gets an address".into())
}

fn pod_security(helm: &Helm<'_>) -> Result<String> {
    let loose = json!({"store": {"podSecurityContext": {"runAsNonRoot": false}}});
    let values = helm.values(GATEWAY, &loose)?;
    let errors = helm.errors(&["install", RELEASE, &chart(), "-f", &values])?;
    ensure!(errors.contains("would violate PodSecurity"), "no warning: {errors}");
    let pod = ["run", "loose", "--image=loose", "--dry-run=server", "--namespace", RELEASE];
    let refused = output(helm.api.kubectl().args(pod), "")?;
    let message = String::from_utf8_lossy(&refused.stderr);
    ensure!(message.contains("violates PodSecurity"), "accepted: {message}");
    Ok("a pod is refused; `runAsNonRoot: false` is warned of".into())
}

fn names(helm: &Helm<'_>) -> Result<String> {
    let (chart, example) = (chart(), helm.values(GATEWAY, &json!({}))?);
    let long = "a".repeat(49);
    for name in ["shop.eu", "1shop", &long] {
        helm.refused(&["install", name, &chart, "-f", &example], &["fullnameOverride"])?;
    }
    let left = helm.objects("helm.sh/chart")?;
    ensure!(left.is_empty(), "left: {left:?}");
    let named = ["install", "1shop", &chart, "-f", &example, "--set", "fullnameOverride=shop"];
    helm.run(&named)?;
    let found = helm.objects("app.kubernetes.io/instance=1shop")?;
    helm.run(&["uninstall", "1shop"])?;
    ensure!(found.contains(&"service/shop-store".to_owned()), "{found:?}");
    Ok("shop.eu, 1shop and 49 letters are refused; `fullnameOverride: shop` installs 1shop".into())
}

fn identity(helm: &Helm<'_>) -> Result<String> {
    let any = json!({"store": {"podSecurityContext": {"runAsUser": null, "runAsGroup": null}}});
    helm.put("install", GATEWAY, &any)?;
    let pod = helm.live(STORE, "/spec/template/spec")?;
    ensure!(pod["serviceAccountName"] == "quotagate-store", "{}", pod["serviceAccountName"]);
    let token = helm.live("serviceaccount/quotagate-store", "/automountServiceAccountToken")?;
    ensure!(token == Value::Bool(false), "token: {token}");
    let context = &pod["securityContext"];
    ensure!(context["runAsNonRoot"] == true && context["runAsUser"].is_null(), "{context}");
    Ok(format!("serviceAccountName quotagate-store, security context {context}"))
}

fn filter_check(helm: &Helm<'_>) -> Result<String> {
    // The schema takes it for a window, which has 366 days at most.
    let faulty = json!({"filter": {"check": true}, "policy": {"policies": [{
        "name": "per-caller", "partition_by": ["caller"], "quota": 100, "window": "900d",
    }]}});
    let good = json!({"filter": {"check": true}});
    let put = |verb| {
        let values = helm.values(ISTIO, &faulty)?;
        helm.refused(&[verb, RELEASE, &chart(), "-f", &values], &["quotagate-check"])
    };
    put("install")?;
    let failed = helm.live("job/quotagate-check", "/status/failed")?;
    ensure!(failed == json!(1), "no Job is left whose log could be read");
    let found = helm.objects("app.kubernetes.io/instance=quotagate")?;
    ensure!(found == ["job.batch/quotagate-check"], "installed: {found:?}");
    helm.run(&["uninstall", RELEASE])?;
    // Which also removes the Job of before.
    helm.put("install", ISTIO, &good)?;
    put("upgrade")?;
    let plugin = helm.api.get(&["wasmplugin", "--namespace", "istio-ingress"])?;
    let kept = &plugin["items"][0]["spec"]["pluginConfig"]["policies"][0];
    ensure!(kept["window"] == "1m", "the faulty document is in force: {kept}");
    helm.put("upgrade", ISTIO, &good)?;
    let found = helm.objects("app.kubernetes.io/instance=quotagate")?;
    let left = found.iter().find(|name| name.ends_with("quotagate-check"));
    ensure!(left.is_none(), "left: {left:?}");
    Ok("install and upgrade stop, the old document stays, the Job stays for its log; a good document removes it".into())
}

fn helm_dry_run(helm: &Helm<'_>) -> Result<String> {
    let values = helm.values(GATEWAY, &json!({"store": {"nodeSelector": {"disk": "a b"}}}))?;
    let chart = chart();
    let from = [RELEASE, &chart, "-f", &values];
    helm.run(&[&["install", "--dry-run=server"], &from[..]].concat())?;
    let objects = helm.run(&[&["template"], &from[..]].concat())?;
    let mut kubectl = helm.api.kubectl();
    let output = output(kubectl.args(["apply", "--dry-run=server", "-f", "-"]), &objects)?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && message.contains("nodeSelector"), "accepted: {message}");
    Ok("a faulty node selector: Helm says nothing, the server refuses it".into())
}

fn redis_storage(helm: &Helm<'_>) -> Result<String> {
    // As `helm dependency build` makes it.
    let charts = paths::root().join("charts");
    let example = helm.folder().join("example");
    let copy = |from: &str, to: &Path| {
        task::visibly(Command::new("cp").arg("-r").arg(charts.join(from)).arg(to))
    };
    copy("example", &example)?;
    std::fs::create_dir_all(example.join("charts"))?;
    copy("quotagate", &example.join("charts"))?;
    let chart = example.display().to_string();
    let set = ["--set", "quotagate.image.registry=registry.example.com"];
    helm.run(&[&["install", RELEASE, &chart], &set[..]].concat())?;
    helm.run(&[&["upgrade", RELEASE, &chart], &set[..]].concat())?;
    let other = ["--set", "redis.storage=2Gi"];
    let upgrade = [&["upgrade", RELEASE, &chart], &set[..], &other].concat();
    let message = helm.refused(&upgrade, &["redis.storage is 2Gi"])?;
    ensure!(!message.contains("forbidden"), "{message}");
    Ok("the upgrade is refused: redis.storage is 2Gi, but the volumes have 1Gi".into())
}
