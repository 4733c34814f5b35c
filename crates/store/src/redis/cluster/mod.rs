//! Redis Cluster: its primaries, and the map that says which of them owns a slot.

mod map;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::task::AbortHandle;

use self::map::Map;

use super::node::{Node, Patience};
use super::slots::{SLOTS, slot_of};
use crate::address::HostPort;
use crate::login::Login;
use crate::store::Health;

/// Time for which a command that was lost is a fault of the cluster.
const LOST: Duration = Duration::from_secs(10);
/// Time after a loss within which no command waits for the map because of the same redirect.
const LOSING: Duration = Duration::from_secs(1);

/// A Redis Cluster and the task that keeps its map up to date. The task ends with this.
pub struct Cluster {
    map: Arc<Map>,
    reader: AbortHandle,
}

impl Cluster {
    /// Starts to read the map from `seeds`. Needs a Tokio runtime.
    pub fn start(
        login: Login,
        seeds: Vec<HostPort>,
        prefix: &str,
        patience: Arc<Patience>,
    ) -> Self {
        let map = Arc::new(Map::new(login, seeds, prefix, patience));
        let reader = tokio::spawn(map::keep(Arc::clone(&map))).abort_handle();
        Self { map, reader }
    }

    /// The primary of a key's slot, as far as known.
    pub fn owner(&self, key: &str) -> Option<Arc<Node>> {
        self.map.owner(slot_of(key))
    }

    /// Learns from a MOVED answer of `from` that the node at `address` owns the slot of `key`.
    pub fn moved(&self, key: &str, address: &str, from: &Node) -> Option<Arc<Node>> {
        self.reread_map();
        self.map.move_slot(slot_of(key), &self.resolve(address, from)?)
    }

    /// The node at the address in an ASK answer of `from`.
    pub fn node(&self, address: &str, from: &Node) -> Option<Arc<Node>> {
        Some(self.map.node(&self.resolve(address, from)?))
    }

    /// The address in a redirect of `from`: all up to its last colon is the host, without brackets
    /// around IPv6. Without a host, or with `?`, the node has no name: then it is a known node with
    /// this port, at best at the host that answered. `None` if that leads nowhere, or back.
    fn resolve(&self, address: &str, from: &Node) -> Option<HostPort> {
        let Some(port) = ["", "?"].iter().find_map(|host| port_at(host, address)) else {
            return HostPort::parse(address, None);
        };
        let from = from.address()?;
        let nearest = HostPort { host: from.host.clone(), port };
        let nodes = self.nodes();
        let known: Vec<_> = nodes
            .iter()
            .filter_map(|node| node.address())
            .filter(|node| node.port == port && *node != from)
            .collect();
        match known.as_slice() {
            known if known.contains(&&nearest) => Some(nearest),
            [only] => Some((*only).clone()),
            _ => (nearest != *from).then_some(nearest),
        }
    }

    /// Notes that a command was lost, because a redirect led nowhere and the map named no other
    /// owner.
    pub fn note_lost(&self, why: String) {
        self.map.note_lost(why);
    }

    /// Whether a command was lost just now to the same redirect.
    pub fn is_losing(&self, why: &str) -> bool {
        self.map.lost_within(LOSING).is_some_and(|lost| lost == why)
    }

    /// Asks for the map to be read again soon.
    pub fn reread_map(&self) {
        self.map.mark_stale();
    }

    /// Every known primary.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.map.nodes()
    }

    /// Whether operators have waited in vain for slots that no node owns.
    pub fn slots_away(&self) -> &AtomicBool {
        self.map.slots_away()
    }

    /// That some slots have no known primary.
    pub fn uncovered(&self) -> Option<String> {
        let uncovered = self.map.uncovered();
        (uncovered > 0).then(|| {
            let why = self.map.failure().map_or_else(String::new, |why| format!(": {why}"));
            format!("no primary is known for {uncovered} of {SLOTS} slots{why}")
        })
    }

    /// Whether at least one primary is connected and does not answer that it cannot serve now.
    pub fn serves(&self) -> bool {
        let serves = |node: &Arc<Node>| {
            node.connected().is_some_and(|link| link.silence().rejects_since().is_none())
        };
        self.nodes().iter().any(serves)
    }

    /// What is wrong with any part of the cluster, since the next request may need that part.
    pub fn health(&self) -> Health {
        let nodes = self.nodes();
        let mut faults: Vec<_> = nodes.iter().filter_map(|node| node.fault()).collect();
        faults.extend(self.uncovered());
        faults.extend(self.map.lost_within(LOST));
        let outage =
            self.map.uncovered() == usize::from(SLOTS) || !nodes.iter().any(|node| node.serves());
        Health {
            faults,
            warnings: nodes.iter().filter_map(|node| node.eviction_warning()).collect(),
            outage,
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The port of an address with exactly this host.
fn port_at(host: &str, address: &str) -> Option<u16> {
    address.strip_prefix(host)?.strip_prefix(':')?.parse().ok()
}
