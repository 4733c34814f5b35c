//! `quotagate controller` against the API server: documents that it publishes, and statuses.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use quotagate_support::{paths, ports, process::Process, store::StoreProcess};
use serde_json::{Value, json};

use super::{api_server::ApiServer, helm::Helm};
use crate::checks::Checks;

const GROUP: &str = "gateway.networking.k8s.io";
const DEFINITION: &str = "charts/quotagate/files/quotapolicies.yaml";
/// How long a status may take, on a busy machine. A Lease that a killed controller held takes 15 s.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs its check.
pub fn run(helm: &Helm<'_>, checks: &mut Checks) {
    checks.check(
        "kubernetes.controller",
        "the controller publishes what good QuotaPolicies make, tells owners of bad ones, and goes on after it was killed",
        || judge(helm),
    );
}

fn judge(helm: &Helm<'_>) -> Result<String> {
    let api = helm.api;
    api.apply_files(&[paths::root().join(DEFINITION)])?;
    api.run(&["wait", "--for=condition=Established", "crd/quotapolicies.quotagate.io"])?;
    for name in ["ctl-gateways", "ctl-a", "ctl-b"] {
        api.run(&["create", "namespace", name])?;
    }
    for object in [gateway(), route("ctl-a"), route("ctl-b")] {
        api.apply(&object.to_string())?;
    }
    for namespace in ["ctl-a", "ctl-b"] {
        let status = json!({"status": {"parents": [{
            "parentRef": {"group": GROUP, "kind": "Gateway", "name": "public", "namespace": "ctl-gateways"},
            "controllerName": "gateway.envoyproxy.io/gatewayclass-controller",
            "conditions": [{
                "type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        }]}});
        let patch = ["patch", "httproute", "r", "--subresource=status", "--type=merge", "-p"];
        let of = ["--namespace", namespace];
        api.run(&[&patch[..], &[&status.to_string()], &of].concat())?;
    }
    api.apply(&policy("ctl-a", "good", 100, "platform/caller").to_string())?;
    api.apply(&policy("ctl-b", "faulty", 100, "platform/nobody").to_string())?;
    wait_older(api)?;
    api.apply(&policy("ctl-a", "second", 5, "platform/caller").to_string())?;

    let store = StoreProcess::start("memory:", &[])?;
    let mut controller = start(helm, &store)?;
    condition(api, "ctl-a", "good", "Programmed", "published as number 1:")?;
    condition(api, "ctl-b", "faulty", "Accepted", "there is no identity platform/nobody")?;
    condition(api, "ctl-a", "second", "Accepted", "ctl-a/good has a policy per-caller")?;
    let table = api.run(&["get", "qp", "--all-namespaces"])?;
    ensure!(table.contains("100/1m"), "{table}");

    controller.kill()?;
    api.apply(&policy("ctl-a", "good", 101, "platform/caller").to_string())?;
    let mut controller = start(helm, &store)?;
    condition(api, "ctl-a", "good", "Programmed", "published as number 2:")?;

    api.run(&["delete", "qp", "--all", "--all-namespaces"])?;
    let withdrawn = "withdrew the published document";
    controller.wait_until("a withdrawal", LIMIT, |controller| {
        Ok(controller.log().contains(withdrawn).then_some(()))
    })?;
    controller.terminate(Duration::from_secs(20))?;
    api.run(&["delete", "crd/quotapolicies.quotagate.io"])?;
    Ok("a good, a faulty and a conflicting object have their status; a killed controller is replaced; without objects the document is withdrawn".to_owned())
}

/// The one with a later creation time yields. Such times are whole seconds.
fn wait_older(api: &ApiServer) -> Result<()> {
    let at = |name: &str, namespace: &str| -> Result<Value> {
        Ok(api.get(&["qp", name, "--namespace", namespace])?["metadata"]["creationTimestamp"]
            .clone())
    };
    let good = at("good", "ctl-a")?;
    let mut number = 0;
    loop {
        number += 1;
        let name = format!("clock-{number}");
        api.apply(&policy("ctl-b", &name, 1, "platform/nobody").to_string())?;
        let now = at(&name, "ctl-b")?;
        api.run(&["delete", "qp", &name, "--namespace", "ctl-b"])?;
        if now != good {
            return Ok(());
        }
    }
}

fn start(helm: &Helm<'_>, store: &StoreProcess) -> Result<Process> {
    let config = helm.folder().join("domains.yaml");
    let domains = json!({"domains": [{
        "domain": "shop", "gateways": ["ctl-gateways/public"], "store": {"cluster": "quota_store"},
        "identities": {"caller": [{"jwt": {"claim": "sub"}}]},
    }]});
    fs::write(&config, domains.to_string())?;
    let mut command = Command::new(paths::command());
    command.arg("controller").arg("--config").arg(&config);
    command.args(["--admin", &format!("127.0.0.1:{}", store.admin_port())]);
    command.args(["--metrics", &format!("127.0.0.1:{}", ports::free()?)]);
    command.args(["--lease-namespace", "ctl-gateways"]);
    command.env("KUBECONFIG", helm.api.kubeconfig());
    Process::spawn("controller", &mut command, &helm.folder().join("controller.log"))
}

/// Waits until a condition of an object has this in its message.
fn condition(api: &ApiServer, namespace: &str, name: &str, kind: &str, part: &str) -> Result<()> {
    let found = |object: &Value| {
        let conditions = object["status"]["ancestors"][0]["conditions"].as_array();
        conditions.into_iter().flatten().any(|found| {
            found["type"] == kind && found["message"].as_str().is_some_and(|it| it.contains(part))
        })
    };
    let object = ["qp", name, "--namespace", namespace];
    api.wait_for(&format!("{kind} of {name}"), LIMIT, &object, found).with_context(|| {
        format!("{:?}", api.get(&object).map(|object| object["status"].clone()))
    })?;
    Ok(())
}

fn gateway() -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "Gateway",
        "metadata": {"namespace": "ctl-gateways", "name": "public"},
        "spec": {"gatewayClassName": "any", "listeners": [{
            "name": "http", "port": 80, "protocol": "HTTP",
            "allowedRoutes": {"namespaces": {"from": "All"}},
        }]},
    })
}

fn route(namespace: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "HTTPRoute",
        "metadata": {"namespace": namespace, "name": "r"},
        "spec": {
            "parentRefs": [{"name": "public", "namespace": "ctl-gateways"}],
            "hostnames": [format!("{namespace}.example.com")],
            "rules": [{"backendRefs": [{"name": "s", "port": 80}]}],
        },
    })
}

fn policy(namespace: &str, name: &str, quota: u64, identity: &str) -> Value {
    json!({
        "apiVersion": "quotagate.io/v1alpha1", "kind": "QuotaPolicy",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "targetRefs": [{"group": GROUP, "kind": "HTTPRoute", "name": "r"}],
            "policies": [
                {"name": "per-caller", "partitionBy": [identity], "quota": quota, "window": "1m"},
            ],
        },
    })
}
