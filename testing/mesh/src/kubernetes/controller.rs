//! `quotagate controller` against the API server: documents that it publishes, and statuses.

use std::{fs, process::Command, thread::sleep, time::Duration};

use anyhow::{Context, Result, ensure};
use quotagate_support::{
    http::{self, Client, Request},
    paths, ports,
    process::Process,
    store::{StoreOptions, StoreProcess},
    wait,
};
use serde_json::{Value, json};

use super::{api_server::ApiServer, helm::Helm};
use crate::checks::Checks;

const GROUP: &str = "gateway.networking.k8s.io";
const DEFINITION: &str = "charts/quotagate/files/quotapolicies.yaml";
/// How long a status may take, on a busy machine. A Lease that a killed controller held takes 15 s.
const LIMIT: Duration = Duration::from_secs(120);
/// Two looks at the store and more.
const IDLE: Duration = Duration::from_secs(20);
/// Namespaces with this many QuotaPolicies each.
const NAMESPACES: usize = 50;
const OF_EACH: usize = 10;

/// Runs its checks.
pub fn run(helm: &Helm<'_>, checks: &mut Checks) {
    checks.check(
        "kubernetes.controller",
        "the controller publishes what good QuotaPolicies make, tells owners of bad ones, and goes on after it was killed",
        || set(helm, "ctl", objects),
    );
    checks.check(
        "kubernetes.controller_outages",
        "one of two controllers acts, and goes on where the other one was killed, the store was away, or the API server was",
        || set(helm, "out", outages),
    );
    checks.check(
        "kubernetes.controller_many",
        "500 QuotaPolicies in 50 namespaces: each has its status, a change is published, and without one no status is written",
        || set(helm, "many", many),
    );
}

/// A Gateway in a namespace of its own, for one check.
struct Stage<'h> {
    helm: &'h Helm<'h>,
    api: &'h ApiServer,
    /// How the names of its namespaces begin.
    name: &'static str,
}

fn set(
    helm: &Helm<'_>,
    name: &'static str,
    judge: fn(&Stage<'_>) -> Result<String>,
) -> Result<String> {
    let stage = Stage { helm, api: helm.api, name };
    stage.api.apply_files(&[paths::root().join(DEFINITION)])?;
    stage.api.run(&["wait", "--for=condition=Established", "crd/quotapolicies.quotagate.io"])?;
    stage.api.run(&["create", "namespace", &stage.namespace("gateways")])?;
    stage.api.apply(&stage.gateway().to_string())?;
    let seen = judge(&stage);
    // The next check needs none, whatever happened.
    stage.api.run(&["delete", "crd/quotapolicies.quotagate.io"])?;
    seen
}

fn objects(stage: &Stage<'_>) -> Result<String> {
    let api = stage.api;
    stage.teams(&["a".to_owned(), "b".to_owned()])?;
    api.apply(&stage.policy("a", "good", 100, "platform/caller").to_string())?;
    api.apply(&stage.policy("b", "faulty", 100, "platform/nobody").to_string())?;
    stage.wait_older()?;
    api.apply(&stage.policy("a", "second", 5, "platform/caller").to_string())?;

    let store = StoreProcess::start("memory:", &[])?;
    let mut controller = stage.start(&store)?;
    stage.condition("a", "good", "Programmed", "published as number 1:")?;
    stage.condition("b", "faulty", "Accepted", "there is no identity platform/nobody")?;
    stage.condition("a", "second", "Accepted", "ctl-a/good has a policy per-caller")?;
    ensure!(quotas(&store)? == [100], "{:?}", quotas(&store)?);
    // As the filter of a proxy does that has taken it up.
    let digest = documents(&store)?["documents"][0]["digest"].clone();
    let report = json!({
        "proxy": "0000000000000001", "digest": digest, "number": 1, "in_force_s": 60, "live": true,
        "policies": [],
    });
    let report = Request::post("/v1/telemetry?domain=shop", report.to_string().as_bytes());
    let answer = Client::connect(store.port())?.send(&report)?;
    ensure!(answer.status == 200, "{}", answer.text());
    stage.condition("a", "good", "Enforced", "1 of 1 proxies")?;
    let table = api.run(&["get", "quotapolicies", "--all-namespaces"])?;
    ensure!(table.contains("100/1m"), "{table}");

    controller.process.kill()?;
    api.apply(&stage.policy("a", "good", 101, "platform/caller").to_string())?;
    let mut controller = stage.start(&store)?;
    stage.condition("a", "good", "Programmed", "published as number 2:")?;
    ensure!(quotas(&store)? == [101], "{:?}", quotas(&store)?);

    api.run(&["delete", "qp", "--all", "--all-namespaces"])?;
    wait::until_true("a withdrawal", LIMIT, || {
        let newest = &documents(&store)?["documents"][0];
        Ok(newest["number"] == 3 && newest["digest"].is_null())
    })?;
    controller.process.terminate(Duration::from_secs(20))?;
    Ok(format!(
        "a good, a faulty and a conflicting object have their status; a killed controller is replaced; without objects the document is withdrawn\n{table}"
    ))
}

fn outages(stage: &Stage<'_>) -> Result<String> {
    let api = stage.api;
    stage.teams(&["a".to_owned()])?;
    api.apply(&stage.policy("a", "good", 100, "platform/caller").to_string())?;
    let options = StoreOptions::new("memory:").admin(&format!("127.0.0.1:{}", ports::free()?));
    let mut store = StoreProcess::start_with(&options)?;
    let mut first = stage.start(&store)?;
    first.wait_for("the lead", "leader", |leads| leads == 1.0)?;
    let mut second = stage.start(&store)?;
    stage.condition("a", "good", "Programmed", "published as number 1:")?;
    wait::until_true("a ready second controller", LIMIT, || {
        Ok(http::get(second.metrics, "/readyz")?.status == 200)
    })?;
    ensure!(second.metric("leader")? == 0.0, "both lead");

    first.process.kill()?;
    api.apply(&stage.policy("a", "good", 101, "platform/caller").to_string())?;
    second.wait_for("the lead", "leader", |leads| leads == 1.0)?;
    stage.condition("a", "good", "Programmed", "published as number 2:")?;
    ensure!(quotas(&store)? == [101], "{:?}", quotas(&store)?);

    store.stop()?;
    stage.condition("a", "good", "Enforced", "does not answer the controller")?;
    stage.condition("a", "good", "Programmed", "published as number 2:")?;
    // In memory, it has forgotten everything.
    store = StoreProcess::start_with(&options)?;
    stage.condition("a", "good", "Programmed", "published as number 1:")?;
    ensure!(quotas(&store)? == [101], "{:?}", quotas(&store)?);

    api.freeze(true)?;
    let lost = second.wait_for("the loss of the lead", "leader", |leads| leads == 0.0);
    api.freeze(false)?;
    lost?;
    second.wait_for("the lead again", "leader", |leads| leads == 1.0)?;
    api.apply(&stage.policy("a", "good", 102, "platform/caller").to_string())?;
    stage.condition("a", "good", "Programmed", "published as number 2:")?;
    ensure!(quotas(&store)? == [102], "{:?}", quotas(&store)?);
    second.process.terminate(Duration::from_secs(20))?;
    Ok("the second controller goes on after the first was killed, an empty store gets the document again, and without the API server nobody leads".to_owned())
}

fn many(stage: &Stage<'_>) -> Result<String> {
    let api = stage.api;
    let teams: Vec<String> = (0..NAMESPACES).map(|team| format!("t{team}")).collect();
    stage.teams(&teams)?;
    let policies = teams.iter().flat_map(|team| {
        (0..OF_EACH).map(move |number| {
            let identity = if team == "t0" { "platform/nobody" } else { "platform/caller" };
            let mut policy = stage.policy(team, &format!("p{number}"), 100, identity);
            policy["spec"]["policies"][0]["name"] = json!(format!("q{number}"));
            policy
        })
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": policies.collect::<Vec<_>>()});
    api.apply(&list.to_string())?;
    let all = NAMESPACES * OF_EACH;
    let store = StoreProcess::start("memory:", &[])?;
    let mut controller = stage.start(&store)?;
    // Floats of this size are exact.
    #[expect(clippy::cast_precision_loss, reason = "500 is exact")]
    let wanted = all as f64;
    controller.wait_for("all statuses", "status_patches_total", |patches| patches >= wanted)?;
    controller.wait_for("the end of a pass", "pass_seconds_count", |passes| passes >= 1.0)?;
    let first = controller.metric("pass_seconds_sum")?;
    // Those of another team have an identity that there is not.
    ensure!(quotas(&store)?.len() == all - OF_EACH, "{} policies", quotas(&store)?.len());

    let before = controller.settled()?;
    sleep(IDLE);
    let idle = controller.metric("status_patches_total")? - before;
    ensure!(idle == 0.0, "{idle} statuses were written while nothing changed");
    let cpu = controller.cpu()?;
    sleep(IDLE);
    let cpu = controller.cpu()? - cpu;

    let passes = || -> Result<[f64; 2]> {
        Ok([controller.metric("pass_seconds_sum")?, controller.metric("pass_seconds_count")?])
    };
    let [sum, count] = passes()?;
    let mut changed = stage.policy("t7", "p3", 99, "platform/caller");
    changed["spec"]["policies"][0]["name"] = json!("q3");
    api.apply(&changed.to_string())?;
    stage.condition("t7", "p3", "Programmed", "published as number 2:")?;
    controller.wait_for("the end of its pass", "pass_seconds_count", |now| now > count)?;
    let [later, passes] = passes()?;
    let (pass, passes) = ((later - sum) / (passes - count), passes - count);
    controller.process.terminate(Duration::from_secs(20))?;
    Ok(format!(
        "the first pass, with {all} statuses, took {first:.2} s; after one change {passes} passes took {pass:.2} s each; without a change, no status was written in {} s, and {cpu:.2} s of CPU were used",
        IDLE.as_secs()
    ))
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

fn documents(store: &StoreProcess) -> Result<Value> {
    http::get(store.admin_port(), "/v1/documents?domain=shop")?.json()
}

/// The quotas of the published document.
fn quotas(store: &StoreProcess) -> Result<Vec<u64>> {
    let text: Value = http::get(store.admin_port(), "/v1/documents/text?domain=shop")?.json()?;
    let policies = text["document"]["policies"].as_array().cloned().unwrap_or_default();
    Ok(policies.iter().filter_map(|policy| policy["quota"].as_u64()).collect())
}

impl Stage<'_> {
    fn namespace(&self, part: &str) -> String {
        format!("{}-{part}", self.name)
    }

    /// Makes namespaces, each with a route that the Gateway has accepted.
    fn teams(&self, names: &[String]) -> Result<()> {
        let of = |object: fn(&Self, &str) -> Value| {
            let items: Vec<Value> = names.iter().map(|name| object(self, name)).collect();
            json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
        };
        self.api.apply(&of(|stage, name| {
            let name = stage.namespace(name);
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        }))?;
        self.api.apply(&of(Self::route))?;
        let status = json!({"status": {"parents": [{
            "parentRef": {
                "group": GROUP, "kind": "Gateway", "name": "public",
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

    fn start(&self, store: &StoreProcess) -> Result<Controller> {
        let (config, gateways) =
            (self.helm.folder().join("domains.yaml"), self.namespace("gateways"));
        let domains = json!({"domains": [{
            "domain": "shop", "gateways": [format!("{gateways}/public")], "store": {"cluster": "quota_store"},
            "identities": {"caller": [{"jwt": {"claim": "sub"}}]},
        }]});
        fs::write(&config, domains.to_string())?;
        let mut command = Command::new(paths::command());
        command.arg("controller").arg("--config").arg(&config);
        command.args(["--admin", &format!("127.0.0.1:{}", store.admin_port())]);
        let metrics = ports::free()?;
        command.args(["--metrics", &format!("127.0.0.1:{metrics}")]);
        command.args(["--lease-namespace", &gateways]);
        command.env("KUBECONFIG", self.api.kubeconfig());
        let log = self.helm.folder().join(format!("controller-{metrics}.log"));
        Ok(Controller { process: Process::spawn("controller", &mut command, &log)?, metrics })
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

    fn gateway(&self) -> Value {
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "Gateway",
            "metadata": {"namespace": self.namespace("gateways"), "name": "public"},
            "spec": {"gatewayClassName": "any", "listeners": [{
                "name": "http", "port": 80, "protocol": "HTTP",
                "allowedRoutes": {"namespaces": {"from": "All"}},
            }]},
        })
    }

    fn route(&self, team: &str) -> Value {
        let namespace = self.namespace(team);
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "HTTPRoute",
            "metadata": {"namespace": &namespace, "name": "r"},
            "spec": {
                "parentRefs": [{"name": "public", "namespace": self.namespace("gateways")}],
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
