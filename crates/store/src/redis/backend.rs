//! The servers behind a store URL.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use quotagate_protocol::Adjustment;
use redis::{Cmd, Pipeline, RedisError, Value};

use super::cluster::Cluster;
use super::errors::Errors;
use super::node::{Link, Node, Patience, Target, Topology, silence_limit};
use crate::address::HostPort;
use crate::control::ControlStore;
use crate::login::Login;
use crate::store::{Batch, Health, OnReserved, Store, StoreError};

/// The backends `redis:`, `redis-cluster:` and `redis-sentinel:`.
pub struct Redis {
    /// The first part of every key.
    pub(super) prefix: String,
    servers: Servers,
    /// How long its callers wait.
    pub(super) patience: Arc<Patience>,
    /// How the servers are found.
    pub(super) topology: Topology,
    pub(super) commands: Counter,
    pub(super) errors: Errors,
}

enum Servers {
    /// One server, or the primary that sentinels name.
    One(Arc<Node>),
    /// The primaries of a cluster.
    Cluster(Cluster),
}

impl Redis {
    /// Starts to connect to the server at `target`, or to the primary that it leads to. Needs a
    /// Tokio runtime.
    pub(crate) fn start(target: Target, prefix: &str) -> Self {
        install_tls();
        let topology = target.topology();
        let patience = Arc::<Patience>::default();
        let servers = Servers::One(Node::start(target, prefix, Arc::clone(&patience)));
        Self::new(servers, patience, topology, prefix)
    }

    /// Starts to read the map of a cluster from `seeds`. Needs a Tokio runtime.
    pub(crate) fn start_cluster(login: Login, seeds: Vec<HostPort>, prefix: &str) -> Self {
        install_tls();
        let patience = Arc::<Patience>::default();
        let cluster = Cluster::start(login, seeds, prefix, Arc::clone(&patience));
        Self::new(Servers::Cluster(cluster), patience, Topology::Cluster, prefix)
    }

    fn new(servers: Servers, patience: Arc<Patience>, topology: Topology, prefix: &str) -> Self {
        let (commands, errors) = (Counter::default(), Errors::default());
        Self { prefix: prefix.to_owned(), servers, patience, topology, commands, errors }
    }

    /// The server of a key, as far as known.
    pub(super) fn owner(&self, key: &str) -> Option<Arc<Node>> {
        match &self.servers {
            Servers::One(node) => Some(Arc::clone(node)),
            Servers::Cluster(cluster) => cluster.owner(key),
        }
    }

    /// Every known primary.
    pub(super) fn primaries(&self) -> Vec<Arc<Node>> {
        match &self.servers {
            Servers::One(node) => vec![Arc::clone(node)],
            Servers::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Whether operators have waited in vain for slots that no node owns; `None` without a cluster.
    pub(super) fn slots_away(&self) -> Option<&AtomicBool> {
        match &self.servers {
            Servers::One(_) => None,
            Servers::Cluster(cluster) => Some(cluster.slots_away()),
        }
    }

    /// That some slots of a cluster have no known primary.
    pub(super) fn uncovered(&self) -> Option<String> {
        match &self.servers {
            Servers::One(_) => None,
            Servers::Cluster(cluster) => cluster.uncovered(),
        }
    }

    /// The node that a MOVED answer of `from` names, which owns the slot of `key` now. `None`
    /// without a cluster.
    pub(super) fn moved(&self, key: &str, address: &str, from: &Node) -> Option<Arc<Node>> {
        match &self.servers {
            Servers::One(_) => None,
            Servers::Cluster(cluster) => cluster.moved(key, address, from),
        }
    }

    /// The node that an ASK answer of `from` names. `None` without a cluster.
    pub(super) fn named(&self, address: &str, from: &Node) -> Option<Arc<Node>> {
        match &self.servers {
            Servers::One(_) => None,
            Servers::Cluster(cluster) => cluster.node(address, from),
        }
    }

    /// Whether a cluster has just lost a command to the same redirect.
    pub(super) fn is_losing(&self, why: &str) -> bool {
        matches!(&self.servers, Servers::Cluster(cluster) if cluster.is_losing(why))
    }

    /// Notes that a command was lost to a redirect that leads nowhere.
    pub(super) fn note_lost(&self, why: String) {
        if let Servers::Cluster(cluster) = &self.servers {
            cluster.note_lost(why);
        }
    }

    /// Asks for the map of a cluster to be read again.
    pub(super) fn reread_map(&self) {
        if let Servers::Cluster(cluster) = &self.servers {
            cluster.reread_map();
        }
    }

    /// The connection to a node. A call to a cluster does not wait for a node that is gone or
    /// silent, because other nodes serve its other items.
    pub(super) async fn link(&self, node: &Node, deadline: Instant) -> Result<Link, StoreError> {
        match self.servers {
            Servers::One(_) => node.link(deadline).await,
            Servers::Cluster(_) => node.prompt_link(deadline).await,
        }
    }

    /// Sends commands at once. Each has its own answer.
    pub(super) async fn send(
        &self,
        node: &Node,
        link: &mut Link,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, StoreError> {
        let count = u64::try_from(commands.len()).unwrap_or(u64::MAX);
        self.commands.inc_by(count);
        let replies = self.answered(node, count, node.send(link, commands).await)?;
        if replies.len() == commands.len() {
            Ok(replies)
        } else {
            // All of them may have been executed.
            Err(StoreError::NoAnswer(format!("{}: fewer answers than commands", node.name())))
        }
    }

    /// Sends one command.
    pub(super) async fn send_alone(
        &self,
        node: &Node,
        link: &mut Link,
        command: &Cmd,
    ) -> Result<Value, StoreError> {
        self.commands.inc();
        self.answered(node, 1, node.send_alone(link, command).await)
    }

    /// What came back after so many commands were sent to `node`.
    fn answered<T>(
        &self,
        node: &Node,
        count: u64,
        answer: Result<T, RedisError>,
    ) -> Result<T, StoreError> {
        answer.map_err(|error| {
            self.errors.unanswered(&error, count);
            StoreError::NoAnswer(format!("{}: {error}", node.name()))
        })
    }

    /// Sends one command, after `ASKING` if the node is about to take over the slot.
    pub(super) async fn send_one(
        &self,
        node: &Node,
        cmd: Cmd,
        asking: bool,
        deadline: Instant,
    ) -> Result<(Link, Value), StoreError> {
        let mut link = self.link(node, deadline).await?;
        let reply = if asking {
            let mut commands = Pipeline::with_capacity(2);
            commands.cmd("ASKING").add_command(cmd);
            self.send(node, &mut link, &commands).await?.pop().unwrap_or_default()
        } else {
            self.send_alone(node, &mut link, &cmd).await?
        };
        Ok((link, reply))
    }

    /// Sends commands to a node whose answers nobody waits for.
    pub(super) fn send_unawaited(&self, node: &Arc<Node>, mut link: Link, commands: Pipeline) {
        self.commands.inc_by(u64::try_from(commands.len()).unwrap_or(u64::MAX));
        let node = Arc::clone(node);
        tokio::spawn(async move { node.send(&mut link, &commands).await });
    }
}

/// Chooses the cryptography of TLS connections. Another provider that was chosen before serves as
/// well.
fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

impl Store for Redis {
    fn carry_out<'a>(
        &'a self,
        batch: &'a Batch,
        on_reserved: &'a OnReserved<'a>,
    ) -> BoxFuture<'a, ()> {
        self.count_batch(batch, on_reserved).boxed()
    }

    fn refund<'a>(&'a self, refunds: &'a [Adjustment]) -> BoxFuture<'a, ()> {
        self.refund_all(refunds).boxed()
    }

    fn serves_others(&self) -> bool {
        match &self.servers {
            Servers::One(_) => false,
            Servers::Cluster(cluster) => cluster.serves(),
        }
    }

    fn is_silent(&self, key: &str, budget: Duration) -> bool {
        match &self.servers {
            Servers::One(_) => false,
            Servers::Cluster(cluster) => {
                cluster.owner(key).is_some_and(|node| node.is_silent(silence_limit(budget)))
            }
        }
    }

    fn health(&self) -> Health {
        match &self.servers {
            Servers::Cluster(cluster) => cluster.health(),
            Servers::One(node) => Health {
                faults: node.fault().into_iter().collect(),
                warnings: node.eviction_warning().into_iter().collect(),
                outage: !node.serves(),
            },
        }
    }

    fn control(&self) -> &(dyn ControlStore + 'static) {
        self
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("redis_commands", "Commands sent to Redis", self.commands.clone());
        self.errors.register(registry);
    }
}
