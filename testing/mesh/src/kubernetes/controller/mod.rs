//! `quotagate controller` against the API server: documents that it publishes, and statuses.

mod lifecycle;
mod many;
mod once;
mod walk;

use std::{fs, process::Command, thread::sleep, time::Duration};

use anyhow::{Context, Result};
use quotagate_support::{http, paths, ports, process::Process, store::StoreProcess, wait};
use serde_json::{Value, json};

use super::{api_server::ApiServer, helm::Helm};
use crate::checks::Checks;

const GROUP: &str = "gateway.networking.k8s.io";
const DEFINITION: &str = "charts/quotagate/files/quotapolicies.yaml";
/// How long a status may take, on a busy machine. A Lease that a killed controller held takes 15 s.
const LIMIT: Duration = Duration::from_secs(120);
/// Two looks at the store and more.
const IDLE: Duration = Duration::from_secs(20);

/// Runs its checks.
pub fn run(helm: &Helm<'_>, checks: &mut Checks) {
    checks.check(
        "kubernetes.controller",
        "the controller publishes what good QuotaPolicies make, tells owners of bad ones, and goes on after it was killed",
        || on_stage(helm, "ctl", lifecycle::objects),
    );
    checks.check(
        "kubernetes.controller_outages",
        "one of two controllers acts, and goes on where the other one was killed, the store was away, or the API server was",
        || on_stage(helm, "out", lifecycle::outages),
    );
    checks.check(
        "kubernetes.controller_leaves",
        "a leader that cannot reach its store lets another controller lead",
        || on_stage(helm, "hand", lifecycle::leaves),
    );
    checks.check(
        "kubernetes.controller_once",
        "--once publishes the documents of two domains and ends; SIGTERM ends a controller at once and frees its Lease",
        || on_stage(helm, "once", once::two_domains),
    );
    checks.check(
        "kubernetes.controller_without_grpc",
        "where the API server has no GRPCRoutes, the controller says so once and works",
        || on_stage(helm, "grpc", once::without_grpc),
    );
    checks.check(
        "kubernetes.controller_many",
        "500 QuotaPolicies in 50 namespaces: each has its status, a change is published and writes one status",
        || on_stage(helm, "many", many::run),
    );
    checks.check(
        "kubernetes.walk",
        "a quota of an object refuses a request at an Envoy; how long a changed quota takes, three ways",
        || on_stage(helm, "walk", walk::run),
    );
}

/// A Gateway in a namespace of its own, for one check.
struct Stage<'h> {
    helm: &'h Helm<'h>,
    api: &'h ApiServer,
    /// How the names of its namespaces begin.
    name: &'static str,
}

/// A running controller.
struct Controller {
    process: Process,
    metrics: u16,
}

impl Controller {
    fn metric(&self, name: &str) -> Result<f64> {
        let text = http::get(self.metrics, "/metrics")?.text();
        let name = format!("quotagate_controller_{name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        Ok(value.with_context(|| format!("no {name}in {text}"))?.trim().parse()?)
    }

    fn wait_for(&self, what: &str, name: &str, is: impl Fn(f64) -> bool) -> Result<()> {
        let found = wait::until_true(what, LIMIT, || Ok(is(self.metric(name)?)));
        found.with_context(|| self.process.log())
    }

    /// Statuses that were written, once no more are.
    fn settled(&self) -> Result<f64> {
        let mut last = self.metric("status_patches_total")?;
        loop {
            sleep(IDLE);
            let now = self.metric("status_patches_total")?;
            if now == last {
                return Ok(now);
            }
            last = now;
        }
    }

    /// Seconds of CPU that it has used.
    fn cpu(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.pid()))?;
        let fields = stat.rsplit_once(") ").context("no name in its stat")?.1;
        let ticks: Result<Vec<f64>, _> =
            fields.split(' ').skip(11).take(2).map(str::parse::<f64>).collect();
        // Linux counts in hundredths.
        Ok(ticks?.iter().sum::<f64>() / 100.0)
    }
}

/// Runs a check on a stage of its own, and takes its objects away again.
fn on_stage(
    helm: &Helm<'_>,
    name: &'static str,
    judge: fn(&Stage<'_>) -> Result<String>,
) -> Result<String> {
    let stage = Stage { helm, api: helm.api, name };
    stage.api.apply_files(&[paths::root().join(DEFINITION)])?;
    stage.api.run(&["wait", "--for=condition=Established", "crd/quotapolicies.quotagate.io"])?;
    stage.api.run(&["create", "namespace", &stage.namespace("gateways")])?;
    stage.api.apply(&stage.gateway("public").to_string())?;
    let seen = judge(&stage);
    // The next check needs none, whatever happened.
    let cleaned = stage.api.run(&["delete", "crd/quotapolicies.quotagate.io"]);
    after_clean_up(seen, cleaned.map(drop))
}

/// What a check saw, if the clean-up after it worked, too. If both failed, the error names both
/// faults.
fn after_clean_up(seen: Result<String>, cleaned: Result<()>) -> Result<String> {
    match (seen, cleaned) {
        (Err(fault), Err(second)) => {
            Err(fault.context(format!("its clean-up failed as well ({second:#})")))
        }
        (seen, cleaned) => seen.and_then(|seen| cleaned.map(|()| seen)),
    }
}

fn documents(store: &StoreProcess) -> Result<Value> {
    documents_of(store, "shop")
}

fn documents_of(store: &StoreProcess, domain: &str) -> Result<Value> {
    http::get(store.admin_port(), &format!("/v1/documents?domain={domain}"))?.json()
}

/// The quotas of the published document.
fn quotas(store: &StoreProcess) -> Result<Vec<u64>> {
    quotas_of(store, "shop")
}

fn quotas_of(store: &StoreProcess, domain: &str) -> Result<Vec<u64>> {
    let path = format!("/v1/documents/text?domain={domain}");
    let text: Value = http::get(store.admin_port(), &path)?.json()?;
    let policies = text["document"]["policies"].as_array().cloned().unwrap_or_default();
    Ok(policies.iter().filter_map(|policy| policy["quota"].as_u64()).collect())
}

impl Stage<'_> {
    fn namespace(&self, part: &str) -> String {
        format!("{}-{part}", self.name)
    }

    /// Makes namespaces, each with a route that the Gateway has accepted.
    fn teams(&self, names: &[String]) -> Result<()> {
        self.teams_at("public", names)
    }

    /// The same, of this Gateway.
    fn teams_at(&self, gateway: &str, names: &[String]) -> Result<()> {
        let of = |object: &dyn Fn(&str) -> Value| {
            let items: Vec<Value> = names.iter().map(|name| object(name)).collect();
            json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
        };
        self.api.apply(&of(&|name| {
            let name = self.namespace(name);
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        }))?;
        self.api.apply(&of(&|name| self.route(name, gateway)))?;
        let status = json!({"status": {"parents": [{
            "parentRef": {
                "group": GROUP, "kind": "Gateway", "name": gateway,
                "namespace": self.namespace("gateways"),
            },
            "controllerName": "gateway.envoyproxy.io/gatewayclass-controller",
            "conditions": [{
                "type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        }]}});
        let patch = ["patch", "httproute", "r", "--subresource=status", "--type=merge", "-p"];
        for name in names {
            let namespace = self.namespace(name);
            let of = ["--namespace", &namespace];
            self.api.run(&[&patch[..], &[&status.to_string()], &of].concat())?;
        }
        Ok(())
    }

    /// The one with a later creation time yields. Such times are whole seconds.
    fn wait_older(&self) -> Result<()> {
        let at = |name: &str, namespace: &str| -> Result<Value> {
            let namespace = self.namespace(namespace);
            let object = self.api.get(&["qp", name, "--namespace", &namespace])?;
            Ok(object["metadata"]["creationTimestamp"].clone())
        };
        let good = at("good", "a")?;
        let mut number = 0;
        loop {
            number += 1;
            let name = format!("clock-{number}");
            self.api.apply(&self.policy("b", &name, 1, "platform/nobody").to_string())?;
            let now = at(&name, "b")?;
            self.api.run(&["delete", "qp", &name, "--namespace", &self.namespace("b")])?;
            if now != good {
                return Ok(());
            }
        }
    }

    /// Starts a controller of the domain `shop`.
    fn start(&self, store: &StoreProcess) -> Result<Controller> {
        self.start_of(&[("shop", "public")], store.admin_port())
    }

    /// Starts one of these domains, each with its Gateway, and with the store at this port.
    fn start_of(&self, domains: &[(&str, &str)], admin: u16) -> Result<Controller> {
        let metrics = ports::free()?;
        let mut command = self.command(domains, admin)?;
        command.args(["--metrics", &format!("127.0.0.1:{metrics}")]);
        let log = self.helm.folder().join(format!("controller-{metrics}.log"));
        Ok(Controller { process: Process::spawn("controller", &mut command, &log)?, metrics })
    }

    /// The command line of a controller of these domains.
    fn command(&self, domains: &[(&str, &str)], admin: u16) -> Result<Command> {
        let (config, gateways) =
            (self.helm.folder().join("domains.yaml"), self.namespace("gateways"));
        let domain = |(domain, gateway): &(&str, &str)| {
            json!({
                "domain": domain, "gateways": [format!("{gateways}/{gateway}")],
                "store": {"cluster": "quota_store"},
                "identities": {"caller": [{"jwt": {"claim": "sub"}}]},
                "response": {"headers": ["x_ratelimit"]},
            })
        };
        let domains: Vec<Value> = domains.iter().map(domain).collect();
        fs::write(&config, json!({"domains": domains}).to_string())?;
        let mut command = Command::new(paths::command());
        command.arg("controller").arg("--config").arg(&config);
        command.args(["--admin", &format!("127.0.0.1:{admin}")]);
        command.args(["--lease-namespace", &gateways]);
        command.env("KUBECONFIG", self.api.kubeconfig());
        Ok(command)
    }

    /// Waits until a condition of an object has this in its message.
    fn condition(&self, team: &str, name: &str, kind: &str, part: &str) -> Result<()> {
        let found = |object: &Value| {
            let conditions = object["status"]["ancestors"][0]["conditions"].as_array();
            conditions.into_iter().flatten().any(|found| {
                found["type"] == kind
                    && found["message"].as_str().is_some_and(|it| it.contains(part))
            })
        };
        let namespace = self.namespace(team);
        let object = ["qp", name, "--namespace", &namespace];
        self.api.wait_for(&format!("{kind} of {name}"), LIMIT, &object, found).with_context(
            || format!("{:?}", self.api.get(&object).map(|object| object["status"].clone())),
        )?;
        Ok(())
    }

    fn gateway(&self, name: &str) -> Value {
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "Gateway",
            "metadata": {"namespace": self.namespace("gateways"), "name": name},
            "spec": {"gatewayClassName": "any", "listeners": [{
                "name": "http", "port": 80, "protocol": "HTTP",
                "allowedRoutes": {"namespaces": {"from": "All"}},
            }]},
        })
    }

    fn route(&self, team: &str, gateway: &str) -> Value {
        let namespace = self.namespace(team);
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "HTTPRoute",
            "metadata": {"namespace": &namespace, "name": "r"},
            "spec": {
                "parentRefs": [{"name": gateway, "namespace": self.namespace("gateways")}],
                "hostnames": [format!("{namespace}.example.com")],
                "rules": [{"backendRefs": [{"name": "s", "port": 80}]}],
            },
        })
    }

    fn policy(&self, team: &str, name: &str, quota: u64, identity: &str) -> Value {
        json!({
            "apiVersion": "quotagate.io/v1alpha1", "kind": "QuotaPolicy",
            "metadata": {"namespace": self.namespace(team), "name": name},
            "spec": {
                "targetRefs": [{"group": GROUP, "kind": "HTTPRoute", "name": "r"}],
                "policies": [
                    {"name": "per-caller", "partitionBy": [identity], "quota": quota, "window": "1m"},
                ],
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn failed_clean_up_hides_no_fault() {
        let (seen, fault) = (|| Ok("seen".to_owned()), || Err(anyhow!("no answer")));
        let (cleaned, dirty) = (|| Ok(()), || Err(anyhow!("not deleted")));
        assert_eq!(after_clean_up(seen(), cleaned()).unwrap(), "seen");
        for (seen, cleaned, parts) in [
            (seen(), dirty(), &["not deleted"][..]),
            (fault(), cleaned(), &["no answer"]),
            (fault(), dirty(), &["no answer", "not deleted"]),
        ] {
            let error = format!("{:#}", after_clean_up(seen, cleaned).unwrap_err());
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
