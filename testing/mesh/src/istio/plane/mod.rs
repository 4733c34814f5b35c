//! The control plane: etcd, the API server, and istiod as Istio's own chart installs it.

pub mod api;
pub mod container;
pub mod pods;

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use quotagate_support::http;
use quotagate_support::tls::{Authority, Holder};
use quotagate_support::{wait, yaml};
use quotagate_workspace::{paths, task, tools};
use rcgen::DnType;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::binaries::{Binaries, Program};
use crate::kubernetes::api_server::ApiServer;

use crate::istio::network::PodNetwork;
use crate::istio::outside::{HOSTS, Outside};
use api::Api;
use container::{Container, Node, RunningContainer};

const START: Duration = Duration::from_secs(120);
const SYSTEM: &str = "istio-system";

/// The settings of Istio's chart. Upstream Envoy has none of the filters that Istio's own build
/// adds.
const SETTINGS: [&str; 4] = [
    "env.PILOT_ENABLE_METADATA_EXCHANGE=false",
    "env.PILOT_ENABLE_ALPN_FILTER=false",
    "telemetry.enabled=false",
    // Changes arrive at proxies sooner.
    "env.PILOT_DEBOUNCE_AFTER=20ms",
];

/// A running control plane, with the folder of the run.
pub struct ControlPlane {
    istiod: Mutex<Option<RunningContainer>>,
    deployment: Value,
    /// The API server.
    pub api: Api,
    /// What pods share.
    pub node: Node,
    /// Who signs the certificates of what is outside of the mesh.
    pub authority: Authority,
    /// What is outside of the mesh.
    pub outside: Outside,
    _server: ApiServer,
    /// A DNS server that never answers.
    _dns: UdpSocket,
    /// The networks of pods.
    pub network: PodNetwork,
    charts: PathBuf,
    helm: PathBuf,
    folder: TempDir,
}

impl ControlPlane {
    /// Starts all of it.
    ///
    /// # Errors
    /// When a program is missing, or does not come up.
    pub fn start(binaries: &Binaries) -> Result<Self> {
        let source = binaries.istio_source()?;
        let folder = tempfile::Builder::new().prefix("mesh").tempdir()?;
        let network = PodNetwork::new()?;
        let dns = network.hub.within(|| Ok(UdpSocket::bind((network.hub.address, 53))?))?;
        let authority = Authority::new(folder.path(), "authority")?;
        let outside = Outside::start(&network.hub, &authority, folder.path())?;
        let node = Node {
            programs: programs(binaries, folder.path())?,
            hosts: hosts(&network),
            dns: network.hub.address,
            authorities: authority.file().to_owned(),
            bootstrap: source.join("tools/packaging/common/envoy_bootstrap.json"),
        };
        let server = network.hub.within(|| ApiServer::start(binaries))?;
        let api = client(&server, &network)?;
        let (charts, helm) = (source.join("manifests/charts"), binaries.path(Program::Helm)?);
        let trusted = fs::read_to_string(server.authority().file())?;
        for name in [SYSTEM, "istio-ingress", "quotagate", "shop"] {
            for object in namespace(name, &trusted) {
                api.apply(&object)?;
            }
        }
        api.apply(&kubeconfig(&server)?)?;
        let render =
            |name: &str, chart: &str| template(&helm, name, SYSTEM, &charts.join(chart), &SETTINGS);
        let mut objects = yaml::read_all(&charts.join("base/files/crd-all.gen.yaml"))?;
        objects.extend(render("istio-base", "base")?);
        objects.extend(render("istiod", "istio-control/istio-discovery")?);
        let (webhooks, others): (Vec<_>, Vec<_>) = objects.iter().partition(|object| {
            object["kind"].as_str().is_some_and(|kind| kind.ends_with("WebhookConfiguration"))
        });
        for object in others {
            api.apply(object)?;
        }
        let deployment = objects.iter().find(|object| object["kind"] == "Deployment");
        let deployment = deployment.context("Istio's chart has no Deployment")?.clone();
        let istiod = istiod(&api, &node, &network, &deployment, folder.path())?;
        api.apply(&endpoints(
            ("istiod", SYSTEM),
            ("https-webhook", 15017),
            &[json!({"addresses": [network.hub.address], "conditions": {"ready": true}})],
        ))?;
        for webhook in webhooks {
            api.apply(webhook)?;
        }
        let plane = Self {
            istiod: Mutex::new(Some(istiod)),
            deployment,
            api,
            node,
            authority,
            outside,
            _server: server,
            _dns: dns,
            network,
            charts,
            helm,
            folder,
        };
        plane.wait_for_webhook()?;
        Ok(plane)
    }

    /// The folder of the run.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The objects of Istio's chart for gateways.
    ///
    /// # Errors
    /// When Helm fails.
    pub fn gateway_chart(&self, name: &str, settings: &[&str]) -> Result<Vec<Value>> {
        template(&self.helm, name, "istio-ingress", &self.charts.join("gateway"), settings)
    }

    /// The objects of our chart with an example's values, and further ones: texts, and documents
    /// in JSON.
    ///
    /// # Errors
    /// When Helm fails.
    pub fn our_chart(
        &self,
        example: &str,
        settings: &[&str],
        documents: &[&str],
    ) -> Result<Vec<Value>> {
        let chart = paths::root().join("charts/quotagate");
        let values = chart.join(format!("examples/{example}.yaml"));
        let mut command = Command::new(&self.helm);
        command.args(["template", "quotagate"]).arg(&chart).args(["--namespace", "quotagate"]);
        command.arg("-f").arg(values);
        for document in documents {
            command.args(["--set-json", document]);
        }
        printed(&mut command, settings)
    }

    /// Kills istiod.
    pub fn kill_istiod(&self) {
        *self.istiod.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Starts istiod again, after it was killed, with these variables, too.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start_istiod(&self, further: &[(&str, &str)]) -> Result<()> {
        let Self { api, node, network, folder, .. } = self;
        let mut deployment = self.deployment.clone();
        let env = deployment.pointer_mut("/spec/template/spec/containers/0/env");
        let env = env.and_then(Value::as_array_mut).context("istiod has no environment")?;
        env.extend(further.iter().map(|(name, value)| json!({"name": name, "value": value})));
        let started = istiod(api, node, network, &deployment, folder.path())?;
        *self.istiod.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
        Ok(())
    }

    /// What istiod has logged.
    #[must_use]
    pub fn istiod_log(&self) -> String {
        let istiod = self.istiod.lock().unwrap_or_else(PoisonError::into_inner);
        istiod.as_ref().map_or_else(String::new, |istiod| istiod.process.log())
    }

    /// Changes the configuration of the mesh.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn configure(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        let map = self.api.find("ConfigMap", SYSTEM, "istio")?.context("no configuration")?;
        let text = map["data"]["mesh"].as_str().context("no configuration of the mesh")?;
        let mut config = yaml::parse(text)?;
        change(&mut config);
        let data = json!({"mesh": config.to_string()});
        let metadata = json!({"name": "istio", "namespace": SYSTEM});
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
        self.api.apply(&map).map(drop)
    }

    /// A counter of istiod, summed over its labels that contain `label`.
    ///
    /// # Errors
    /// When istiod does not answer.
    pub fn istiod_counter(&self, name: &str, label: &str) -> Result<f64> {
        let metrics = self.network.hub.within(|| http::get(15014, "/metrics"))?.text();
        let of_counter = |line: &&str| line.starts_with(name) && line.contains(label);
        let values = metrics.lines().filter(of_counter);
        Ok(values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// Waits until the API server can call the injector: istiod writes its own authority into the
    /// webhooks.
    fn wait_for_webhook(&self) -> Result<()> {
        wait::until("the injector", START, || {
            let pod = json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "probe", "namespace": "shop",
                    "labels": {"sidecar.istio.io/inject": "true"}},
                "spec": {"serviceAccountName": "default",
                    "containers": [{"name": "probe", "image": "none"}]}});
            let injected = self.api.apply(&pod)?;
            self.api.delete(&pod)?;
            Ok(injected.to_string().contains("istio-proxy").then_some(()))
        })
    }
}

/// The programs of all images, in one folder.
fn programs(binaries: &Binaries, folder: &Path) -> Result<PathBuf> {
    let programs = folder.join("programs");
    fs::create_dir(&programs)?;
    let given = [
        ("pilot-discovery", binaries.path(Program::PilotDiscovery)?),
        ("pilot-agent", binaries.path(Program::PilotAgent)?),
        ("envoy", tools::envoy()?),
        ("quotagate", paths::command()),
        ("ratelimit", paths::command()),
        ("libquotagate.so", paths::module()),
    ];
    for (name, path) in given {
        // A copy takes hundreds of megabytes, a link works in one file system only.
        let own = programs.join(name);
        fs::canonicalize(&path)
            .and_then(|path| {
                fs::hard_link(&path, &own).or_else(|_| fs::copy(&path, &own).map(drop))
            })
            .with_context(|| format!("no {}", path.display()))?;
    }
    Ok(programs)
}

/// What the names of a cluster's DNS, and of hosts outside, lead to.
fn hosts(network: &PodNetwork) -> String {
    let names = ["istiod.istio-system.svc", "redis-1", "redis-2"].iter().chain(&HOSTS);
    let lines = names.map(|name| format!("{} {name}\n", network.hub.address));
    format!("127.0.0.1 localhost\n{}", lines.collect::<String>())
}

/// A client with all rights.
fn client(server: &ApiServer, network: &PodNetwork) -> Result<Api> {
    let holder = Holder::default().subject(DnType::OrganizationName, "system:masters");
    let own = server.authority().issue(&holder.subject(DnType::CommonName, "mesh"))?;
    let tls = server.authority().client(Some(&own))?;
    Ok(Api { port: server.address().port(), tls, hub: Arc::clone(&network.hub) })
}

/// What the controllers of a cluster make for each namespace.
fn namespace(name: &str, authority: &str) -> [Value; 3] {
    let named = |kind: &str, name: &str, namespace: Option<&str>| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}});
    let mut map = named("ConfigMap", "kube-root-ca.crt", Some(name));
    map["data"] = json!({"ca.crt": authority});
    [named("Namespace", name, None), named("ServiceAccount", "default", Some(name)), map]
}

/// How istiod reaches the API server: its kubeconfig, with the files that it names.
fn kubeconfig(server: &ApiServer) -> Result<Value> {
    let mut config: Value = serde_json::from_str(&fs::read_to_string(server.kubeconfig())?)?;
    let files = [
        ("/clusters/0/cluster", "certificate-authority"),
        ("/users/0/user", "client-certificate"),
        ("/users/0/user", "client-key"),
    ];
    for (part, name) in files {
        let part = config.pointer_mut(part).context("another form of kubeconfig")?;
        let file = part[name].as_str().with_context(|| format!("the kubeconfig has no {name}"))?;
        part[format!("{name}-data")] = json!(STANDARD.encode(fs::read(file)?));
        part[name] = json!("");
    }
    Ok(json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "istio-kubeconfig", "namespace": SYSTEM},
        "stringData": {"config": config.to_string()}}))
}

/// Starts istiod from its Deployment.
fn istiod(
    api: &Api,
    node: &Node,
    network: &PodNetwork,
    deployment: &Value,
    folder: &Path,
) -> Result<RunningContainer> {
    let spec = &deployment["spec"]["template"]["spec"];
    let pod = json!({
        "metadata": {"name": "istiod", "namespace": SYSTEM},
        "spec": spec,
        "status": {"podIP": network.hub.address},
    });
    let spec = spec.pointer("/containers/0").context("istiod has no container")?;
    let folder = &folder.join("istiod");
    let container = Container {
        pod: &pod,
        spec,
        program: "pilot-discovery",
        user: 1337,
        network: &network.hub,
        folder,
    };
    let mut istiod = node.start(api, &container)?;
    istiod.process.wait_until("istiod's readiness", START, |_| {
        let ready = network.hub.within(|| http::get(8080, "/ready"))?;
        Ok((ready.status == 200).then_some(()))
    })?;
    Ok(istiod)
}

/// The endpoints of a Service: no controller runs here that would find them. `service` is its name
/// and namespace, `port` the name and number of its target.
pub fn endpoints(service: (&str, &str), port: (&str, u16), endpoints: &[Value]) -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": service.0, "namespace": service.1,
            "labels": {"kubernetes.io/service-name": service.0}},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": port.0, "port": port.1, "protocol": "TCP"}]})
}

/// What `helm template` prints.
fn template(
    helm: &Path,
    name: &str,
    namespace: &str,
    chart: &Path,
    settings: &[&str],
) -> Result<Vec<Value>> {
    let mut command = Command::new(helm);
    command.args(["template", name]).arg(chart).args(["--namespace", namespace]);
    printed(&mut command, settings)
}

/// The objects that Helm prints.
fn printed(helm: &mut Command, settings: &[&str]) -> Result<Vec<Value>> {
    for setting in settings {
        helm.args(["--set", setting]);
    }
    let objects: Vec<Value> = yaml::parse_all(&task::printed(helm)?)?;
    Ok(objects.into_iter().filter(|object| !object.is_null()).collect())
}
