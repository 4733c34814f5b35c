//! Networks of pods: a network namespace with a bridge, and one more for each pod, with one address
//! that all others reach. Nothing of them is seen from outside.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{self, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, Result, anyhow};
use quotagate_workspace::task;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::supervision;

/// The bridge, which has the control plane's address.
const BRIDGE: &str = "bridge";
const HUB: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);

/// The namespaces of one run.
#[derive(Debug)]
pub struct PodNetwork {
    /// Where the control plane runs, and all that is outside of the mesh.
    pub hub: Arc<NetworkNamespace>,
    pods: AtomicU8,
}

/// A network namespace, removed when dropped.
#[derive(Debug)]
pub struct NetworkNamespace {
    name: String,
    /// Its address in the network.
    pub address: Ipv4Addr,
}

impl PodNetwork {
    /// A network without pods.
    ///
    /// # Errors
    /// When `ip` is missing or fails: it needs root.
    pub fn new() -> Result<Self> {
        let hub = Arc::new(NetworkNamespace::new("hub", 1)?);
        // Without one of its own, a bridge takes the lowest address of its ports: with each new
        // pod, others may not reach it for seconds.
        let own = ["address", "02:00:00:00:00:01", "type", "bridge"];
        ip(&[&["-n", &hub.name, "link", "add", BRIDGE], &own[..]].concat())?;
        hub.raise(BRIDGE)?;
        // kube-apiserver looks for a default route, to know its own address.
        ip(&["-n", &hub.name, "route", "add", "default", "dev", BRIDGE])?;
        Ok(Self { hub, pods: AtomicU8::new(2) })
    }

    /// The namespace of one more pod.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn pod(&self) -> Result<NetworkNamespace> {
        let number = self.pods.fetch_add(1, Relaxed);
        let (pod, hub) = (NetworkNamespace::new(&format!("pod{number}"), number)?, &self.hub.name);
        let port = format!("pod{number}");
        let pair = ["type", "veth", "peer", "name", "eth0", "netns", &pod.name];
        ip(&[&["-n", hub, "link", "add", &port], &pair[..]].concat())?;
        ip(&["-n", hub, "link", "set", &port, "master", BRIDGE, "up"])?;
        pod.raise("eth0")?;
        pod.route()?;
        // The pods of Istio's gateways may listen on every port.
        pod.within(|| Ok(fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")?))?;
        Ok(pod)
    }
}

impl NetworkNamespace {
    fn new(name: &str, number: u8) -> Result<Self> {
        let name = supervision::namespace(process::id(), name);
        ip(&["netns", "add", &name])?;
        let made = Self { name, address: Ipv4Addr::new(10, 244, 0, number) };
        ip(&["-n", &made.name, "link", "set", "lo", "up"])?;
        Ok(made)
    }

    fn raise(&self, interface: &str) -> Result<()> {
        let address = format!("{}/24", self.address);
        ip(&["-n", &self.name, "addr", "add", &address, "dev", interface])?;
        ip(&["-n", &self.name, "link", "set", interface, "up"])
    }

    fn route(&self) -> Result<()> {
        ip(&["-n", &self.name, "route", "replace", "default", "via", &HUB.to_string()])
    }

    /// Its file, for `nsenter`.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// Drops every packet to and from the pod. Nobody is told.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn cut(&self) -> Result<()> {
        ip(&["-n", &self.name, "link", "set", "eth0", "down"])
    }

    /// Forwards packets again.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn mend(&self) -> Result<()> {
        ip(&["-n", &self.name, "link", "set", "eth0", "up"])?;
        self.route()
    }

    /// What `task` returns within the namespace. Processes that it starts stay there.
    ///
    /// # Errors
    /// When the thread cannot enter the namespace, or `task` fails.
    pub fn within<T: Send>(&self, task: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let path = self.file();
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let entered = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .with_context(|| format!("cannot enter {}", path.display()))?;
            task()
        };
        thread::scope(|scope| scope.spawn(entered).join())
            .map_err(|_| anyhow!("a thread in {} has panicked", path.display()))?
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        // `drop` cannot report a failure.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let run = task::printed(Command::new("ip").args(arguments));
    run.map(drop).context("`ip` failed, which needs root and iproute2")
}
