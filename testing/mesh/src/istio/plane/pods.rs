//! Pods of the mesh, started from what the injector made of them: gateways, and stores with a
//! sidecar.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quotagate_support::http::{self, Response};
use quotagate_support::wait;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::container::{Container, RunningContainer};
use super::{ControlPlane, endpoints as slice};
use crate::istio::network::NetworkNamespace;

/// How long a proxy may take until it is ready.
pub const READY: Duration = Duration::from_secs(60);
/// The label of waypoints.
pub const WAYPOINT: &str = "gateway.istio.io/managed";
const AGENT: &str = "pilot-agent";
const PROXY_USER: u32 = 1337;
const STORE_USER: u32 = 65_532;

/// A pod with Istio's agent and Envoy, and what else its object names.
pub struct Pod {
    /// Its proxy: the agent, and Envoy.
    pub proxy: RunningContainer,
    /// The store, if it is one.
    pub store: Option<RunningContainer>,
    object: Value,
    folder: PathBuf,
    /// Its network.
    pub network: NetworkNamespace,
}

impl Pod {
    /// A gateway from a Deployment of Istio's chart. It may not be ready yet.
    ///
    /// # Errors
    /// When the API server refuses the pod, or the agent cannot be started.
    pub fn gateway(plane: &ControlPlane, name: &str, deployment: &Value) -> Result<Self> {
        let (object, network) = created(plane, name, deployment)?;
        let folder = plane.folder().join(name);
        let mut spec = container(&object, "istio-proxy")?.clone();
        if object["metadata"]["labels"].get(WAYPOINT).is_some() {
            let words = spec["args"].as_array_mut().into_iter().flatten();
            words.filter(|word| **word == "router").for_each(|word| *word = json!("waypoint"));
        }
        let proxy = Container {
            pod: &object,
            spec: &spec,
            program: AGENT,
            user: PROXY_USER,
            network: &network,
            folder: &folder,
        };
        let proxy = plane.node.start(&plane.api, &proxy)?;
        Ok(Self { proxy, store: None, object, folder, network })
    }

    /// A store with its sidecar, ready.
    ///
    /// # Errors
    /// When the API server refuses the pod, or a part does not come up.
    pub fn store(plane: &ControlPlane, name: &str, deployment: &Value) -> Result<Self> {
        Self::service(plane, name, deployment, "store", "quotagate")
    }

    /// A pod whose container runs one of our programs, with its sidecar, ready.
    ///
    /// # Errors
    /// When the API server refuses the pod, or a part does not come up.
    pub fn service(
        plane: &ControlPlane,
        name: &str,
        deployment: &Value,
        container_name: &str,
        program: &str,
    ) -> Result<Self> {
        let (object, network) = created(plane, name, deployment)?;
        let folder = plane.folder().join(name);
        let start = |part: &str, program: &str, user: u32| {
            let spec = container(&object, part)?;
            let (pod, network, folder) = (&object, &network, folder.as_path());
            plane.node.start(&plane.api, &Container { pod, spec, program, user, network, folder })
        };
        let mut rules = start("istio-init", AGENT, 0)?;
        wait::until_true("the rules of iptables", READY, || Ok(!rules.process.is_running()?))?;
        let proxy = start("istio-proxy", AGENT, PROXY_USER)?;
        let store = start(container_name, program, STORE_USER)?;
        let mut pod = Self { proxy, store: Some(store), object, folder, network };
        pod.wait_until_ready()?;
        pod.wait_for_store()?;
        Ok(pod)
    }

    /// Starts the store again, after it ended.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn restart_store(&mut self, plane: &ControlPlane) -> Result<()> {
        self.store = None;
        let spec = container(&self.object, "store")?;
        let store = Container {
            pod: &self.object,
            spec,
            program: "quotagate",
            user: STORE_USER,
            network: &self.network,
            folder: &self.folder,
        };
        self.store = Some(plane.node.start(&plane.api, &store)?);
        self.wait_for_store()
    }

    /// Sends a signal to the store.
    ///
    /// # Errors
    /// When it has ended, or there is none.
    pub fn signal_store(&self, signal: Signal) -> Result<()> {
        self.store.as_ref().context("this pod has no store")?.signal(signal)
    }

    fn wait_for_store(&self) -> Result<()> {
        wait::until_true("the store", READY, || {
            Ok(self.network.within(|| http::get(9181, "/readyz?partial"))?.status == 200)
        })
    }

    /// Waits until its proxy is ready.
    ///
    /// # Errors
    /// When the agent ends, or it takes too long.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let network = &self.network;
        self.proxy.process.wait_until("its readiness", READY, |_| {
            let ready = network.within(|| http::get(15021, "/healthz/ready"))?;
            Ok((ready.status == 200).then_some(()))
        })
    }

    /// Its answer to `GET` at the port of Envoy's administration.
    ///
    /// # Errors
    /// When it does not answer 200.
    pub fn admin(&self, path: &str) -> Result<String> {
        let response = self.get(15000, path)?;
        ensure!(response.status == 200, "{path}: {}", response.text());
        Ok(response.text())
    }

    /// Its answer to `GET` at a port.
    ///
    /// # Errors
    /// When nothing answers.
    pub fn get(&self, port: u16, path: &str) -> Result<Response> {
        self.network.within(|| http::get(port, path))
    }

    /// What its proxy has logged.
    #[must_use]
    pub fn log(&self) -> String {
        self.proxy.process.log()
    }
}

/// Makes a pod from the template of a Deployment: its object, with an address, and its network.
fn created(
    plane: &ControlPlane,
    name: &str,
    deployment: &Value,
) -> Result<(Value, NetworkNamespace)> {
    let mut object = deployment["spec"]["template"].clone();
    object["apiVersion"] = json!("v1");
    object["kind"] = json!("Pod");
    object["metadata"]["name"] = json!(name);
    object["metadata"]["namespace"] = deployment["metadata"]["namespace"].clone();
    let identity = object.clone();
    plane.api.apply(&object)?;
    let network = plane.network.pod()?;
    let status = json!({
        "phase": "Running", "podIP": network.address, "podIPs": [{"ip": network.address}],
        "hostIP": plane.network.hub.address,
        "conditions": [{"type": "Ready", "status": "True"}],
    });
    let object = plane.api.status(&identity, &status)?;
    fs::create_dir_all(plane.folder().join(name))?;
    Ok((object, network))
}

/// A container of a pod. A native sidecar is among the first ones.
fn container<'a>(pod: &'a Value, name: &str) -> Result<&'a Value> {
    let lists = ["containers", "initContainers"].iter();
    let mut all = lists.filter_map(|list| pod["spec"][list].as_array()).flatten();
    all.find(|container| container["name"] == name)
        .with_context(|| format!("the pod has no container {name}"))
}

/// The endpoints of a Service of the namespace `quotagate`.
pub fn endpoints(service: &str, port: (&str, u16), pods: &[Pod]) -> Value {
    let endpoint = |pod: &Pod| {
        let target = json!({"kind": "Pod", "name": pod.object["metadata"]["name"],
            "namespace": "quotagate"});
        json!({"addresses": [pod.network.address], "conditions": {"ready": true},
            "targetRef": target})
    };
    slice((service, "quotagate"), port, &pods.iter().map(endpoint).collect::<Vec<_>>())
}
