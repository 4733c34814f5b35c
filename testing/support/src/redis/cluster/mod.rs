//! A real Redis Cluster: three primaries, each with one replica.

mod moves;

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    ports,
    process::Process,
    redis,
    resp::{self, Reply},
    wait,
};

pub use moves::SlotMove;

/// The number of primaries; each has one replica.
const PRIMARIES: usize = 3;
const NODES: usize = 2 * PRIMARIES;
const SLOTS: usize = 16_384;
const START: Duration = Duration::from_secs(60);
const FORM: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Node {
    process: Process,
    port: u16,
    bus: u16,
    arguments: Vec<String>,
    directory: TempDir,
}

/// A running cluster, ended when dropped. At first nodes 0, 1 and 2 are the primaries of a third of
/// the slots each, in this order, and nodes 3, 4 and 5 their replicas.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
}

impl Cluster {
    /// Starts six nodes, forms the cluster and waits until every node reports it as sound.
    ///
    /// # Errors
    /// When there is no redis-server, or the cluster does not form.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// Starts one whose nodes get further arguments, such as `["--cluster-require-full-coverage",
    /// "no"]`.
    ///
    /// # Errors
    /// When there is no redis-server, or the cluster does not form.
    pub fn start_with(arguments: &[&str]) -> Result<Self> {
        let cluster = redis::retried(|| Self::unformed(arguments))?;
        cluster.form().context("the Redis Cluster does not form")?;
        Ok(cluster)
    }

    /// Starts six nodes in cluster mode that know nothing of each other.
    ///
    /// # Errors
    /// When there is no redis-server, or a node does not come up.
    pub fn unformed(arguments: &[&str]) -> Result<Self> {
        let nodes = (0..NODES).map(|_| Node::spawn(arguments)).collect::<Result<_>>()?;
        let mut cluster = Self { nodes };
        for node in &mut cluster.nodes {
            node.wait()?;
        }
        Ok(cluster)
    }

    /// Joins the nodes into one cluster, and waits until it serves.
    ///
    /// # Errors
    /// When the cluster does not form.
    pub fn form(&self) -> Result<()> {
        for (i, node) in self.nodes.iter().enumerate() {
            resp::command(node.port, &["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()])?;
        }
        let first = self.port(0)?;
        for node in self.nodes.iter().skip(1) {
            let (port, bus) = (node.port.to_string(), node.bus.to_string());
            resp::command(first, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
        }
        for (i, node) in self.nodes.iter().take(PRIMARIES).enumerate() {
            let (from, to) = (i * SLOTS / PRIMARIES, (i + 1) * SLOTS / PRIMARIES - 1);
            let range = ["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()];
            resp::command(node.port, &range)?;
        }
        let known = format!("cluster_known_nodes:{NODES}\r");
        for node in &self.nodes {
            node.wait_for_info(&known)?;
        }
        for (i, node) in self.nodes.iter().skip(PRIMARIES).enumerate() {
            let id = resp::command(self.port(i)?, &["CLUSTER", "MYID"])?.lines();
            // A node that has only just been met may still count as in handshake.
            wait::until("CLUSTER REPLICATE", FORM, || {
                resp::command(node.port, &["CLUSTER", "REPLICATE", &id]).map(Some)
            })?;
        }
        self.wait_until_healthy()
    }

    /// Waits until every running node reports the cluster as sound, with all its replicas in step.
    ///
    /// # Errors
    /// When that takes more than 30 s.
    pub fn wait_until_healthy(&self) -> Result<()> {
        for node in &self.nodes {
            node.wait_for_info("cluster_state:ok")?;
            wait::until_true("three replicas, known to every node", FORM, || {
                let nodes = resp::command(node.port, &["CLUSTER", "NODES"])?.lines();
                // The third field are flags, such as "slave,fail?" or "slave,nofailover".
                let flags = nodes.lines().filter_map(|line| line.split(' ').nth(2));
                let replicas = flags.filter(|flags| {
                    let mut flags = flags.split(',');
                    flags.clone().any(|flag| flag == "slave")
                        && !flags.any(|flag| flag.starts_with("fail"))
                });
                Ok(replicas.count() == NODES - PRIMARIES)
            })?;
            wait::until_true("a replica in step with its primary", FORM, || {
                let info = resp::command(node.port, &["INFO", "replication"])?.lines();
                let primary = info.contains("role:master") && info.contains("state=online");
                Ok(primary || info.contains("master_link_status:up"))
            })?;
        }
        Ok(())
    }

    /// `redis-cluster://127.0.0.1:P1,127.0.0.1:P2,...`
    #[must_use]
    pub fn url(&self) -> String {
        let nodes: Vec<String> =
            self.ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis-cluster://{}", nodes.join(","))
    }

    /// The process ids of its nodes; the last one of a node that was killed.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.nodes.iter().map(|node| node.process.pid()).collect()
    }

    /// The ports of the nodes on 127.0.0.1.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(|node| node.port).collect()
    }

    /// Sends one command to node `i`, as `redis-cli` would; it does not follow MOVED.
    ///
    /// # Errors
    /// When the node does not answer or answers with an error.
    pub fn cli(&self, i: usize, command: &[&str]) -> Result<Reply> {
        resp::command(self.port(i)?, command)
    }

    /// Kills node `i` (SIGKILL).
    ///
    /// # Errors
    /// When there is no such node.
    pub fn kill_node(&mut self, i: usize) -> Result<()> {
        self.node(i)?.process.kill()
    }

    /// Starts node `i` again after [`kill_node`](Self::kill_node): same port, same name in the
    /// cluster, no data.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn restart_node(&mut self, i: usize) -> Result<()> {
        let node = self.node(i)?;
        node.process.kill()?;
        node.process = redis::spawn(node.port, &node.arguments, &[], node.directory.path())?;
        node.wait()
    }

    /// Freezes node `i`: connections stay open, nothing is answered.
    ///
    /// # Errors
    /// When there is no such node or it has ended.
    pub fn freeze_node(&mut self, i: usize) -> Result<()> {
        self.node(i)?.process.signal(Signal::STOP)
    }

    /// Ends a [`freeze_node`](Self::freeze_node).
    ///
    /// # Errors
    /// When there is no such node or it has ended.
    pub fn thaw_node(&mut self, i: usize) -> Result<()> {
        self.node(i)?.process.signal(Signal::CONT)
    }

    fn port(&self, i: usize) -> Result<u16> {
        Ok(self.nodes.get(i).with_context(|| format!("no node {i}"))?.port)
    }

    fn node(&mut self, i: usize) -> Result<&mut Node> {
        self.nodes.get_mut(i).with_context(|| format!("no node {i}"))
    }
}

impl Node {
    fn spawn(arguments: &[&str]) -> Result<Self> {
        let (port, bus) = (ports::free()?, ports::free()?);
        let directory = tempfile::tempdir()?;
        let bus_text = bus.to_string();
        let mut all = vec!["--cluster-enabled", "yes", "--cluster-port", &bus_text];
        all.extend(["--cluster-node-timeout", "1500", "--repl-diskless-sync-delay", "0"]);
        all.extend_from_slice(arguments);
        let arguments: Vec<String> = all.into_iter().map(str::to_owned).collect();
        let process = redis::spawn(port, &arguments, &[], directory.path())?;
        Ok(Self { process, port, bus, arguments, directory })
    }

    fn wait(&mut self) -> Result<()> {
        let port = self.port;
        self.process.wait_until("an answer to PING", START, |_| redis::answers(port))
    }

    fn wait_for_info(&self, line: &str) -> Result<()> {
        wait::until_true(&format!("{} on port {}", line.trim(), self.port), FORM, || {
            Ok(resp::command(self.port, &["CLUSTER", "INFO"])?.lines().contains(line))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_nodes_form_and_survive_the_loss_of_a_primary() {
        let mut cluster = Cluster::start().unwrap();
        assert_eq!(cluster.ports().len(), 6);
        // Slot 12182 belongs to the last third.
        assert_eq!(cluster.cli(2, &["SET", "foo", "1"]).unwrap().lines(), "OK");
        assert!(
            cluster
                .cli(0, &["GET", "foo"])
                .unwrap_err()
                .root_cause()
                .to_string()
                .contains("MOVED 12182")
        );
        cluster.kill_node(2).unwrap();
        wait::until_true("the replica to take over", FORM, || {
            Ok(cluster.cli(5, &["SET", "foo", "2"]).is_ok())
        })
        .unwrap();
        cluster.restart_node(2).unwrap();
        cluster.wait_until_healthy().unwrap();
    }
}
