//! Redis Cluster: which node owns which slot, and the nodes themselves.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use redis::{AsyncConnectionConfig, Pipeline, Value};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::node::Node;
use super::silence::patience;
use super::target::Target;
use crate::login::Login;
use crate::store::Health;
use crate::url::HostPort;

/// The slots of a cluster.
pub const SLOTS: u16 = 16384;
/// The place of a slot that nobody is known to own.
const NOWHERE: u16 = u16::MAX;
/// The longest that one node may take to say who owns what.
const ASK: Duration = Duration::from_millis(500);
/// How often the map is read without need.
const IDLE: Duration = Duration::from_secs(10);
/// The pause between two readings while something is wrong.
const TROUBLED: Duration = Duration::from_millis(200);

/// A Redis Cluster, and the task that keeps its map; the task ends with this.
pub struct Cluster {
    map: Arc<Map>,
    reader: AbortHandle,
}

struct Map {
    login: Login,
    seeds: Vec<HostPort>,
    prefix: String,
    /// Why the map could not be read when that was last tried.
    unread: Mutex<Option<String>>,
    /// The place of each slot's primary in `nodes`.
    owners: Box<[AtomicU16]>,
    nodes: RwLock<Nodes>,
    stale: Notify,
    turn: AtomicUsize,
}

#[derive(Default)]
struct Nodes {
    places: Vec<Option<Arc<Node>>>,
    by_address: HashMap<HostPort, u16>,
}

/// The hash slot of `<domain>:<policy>:{<partition>}`, whatever stands around it.
pub fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or(key, |(tag, _)| tag);
    crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % SLOTS
}

/// A hash tag of this slot.
pub fn tag_of(slot: u16) -> String {
    // The numbers below 110,000 meet every slot; some 19,000 are tried on average, in a millisecond.
    (0_u32..).map(|n| n.to_string()).find(|tag| slot_of(tag) == slot % SLOTS).unwrap_or_default()
}

impl Cluster {
    /// Starts to read the map from `seeds`. Needs a Tokio runtime.
    pub fn start(login: Login, seeds: Vec<HostPort>, prefix: &str) -> Self {
        let map = Arc::new(Map {
            login,
            seeds,
            prefix: prefix.to_owned(),
            unread: Mutex::default(),
            owners: std::iter::repeat_with(|| AtomicU16::new(NOWHERE)).take(SLOTS.into()).collect(),
            nodes: RwLock::default(),
            stale: Notify::new(),
            turn: AtomicUsize::new(0),
        });
        let reader = tokio::spawn(keep(Arc::clone(&map))).abort_handle();
        Self { map, reader }
    }

    /// The primary of `slot`, as far as known.
    pub fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        let place = self.map.owners.get(usize::from(slot))?.load(Relaxed);
        self.map.read().places.get(usize::from(place))?.clone()
    }

    /// Learns from an answer of `from` that `slot` belongs to the node of this address.
    pub fn moved(&self, slot: u16, address: &str, from: &Node) -> Option<Arc<Node>> {
        let address = redirect(address, from)?;
        let node = {
            let mut nodes = self.map.write();
            let (place, node) = nodes.place(&self.map, &address);
            self.map.owners.get(usize::from(slot))?.store(place, Relaxed);
            node
        };
        self.read_again();
        Some(node)
    }

    /// The node of the address that an answer of `from` names.
    pub fn node(&self, address: &str, from: &Node) -> Option<Arc<Node>> {
        let address = redirect(address, from)?;
        Some(self.map.write().place(&self.map, &address).1)
    }

    /// Has the map read again soon.
    pub fn read_again(&self) {
        self.map.stale.notify_one();
    }

    /// Every primary that is known.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.map.read().places.iter().flatten().cloned().collect()
    }

    /// Whether some primary is connected, and does not say that it cannot serve now.
    pub fn serves(&self) -> bool {
        let serves =
            |node: &Arc<Node>| node.connected().is_some_and(|link| link.silence().refuses_since().is_none());
        self.nodes().iter().any(serves)
    }

    /// What is wrong with any part of the cluster: the next request may need it.
    pub fn health(&self) -> Health {
        let nodes = self.nodes();
        let mut faults: Vec<_> = nodes.iter().filter_map(|node| node.fault()).collect();
        let uncovered = self.map.uncovered();
        if uncovered > 0 {
            let unread = self.map.unread.lock().unwrap_or_else(PoisonError::into_inner);
            let why = unread.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            faults.push(format!("no primary is known for {uncovered} of {SLOTS} slots{why}"));
        }
        let outage = uncovered == usize::from(SLOTS) || !nodes.iter().any(|node| node.serves());
        Health { faults, warnings: nodes.iter().filter_map(|node| node.eviction()).collect(), outage }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// A redirection may leave out the host: then it is the one that answered.
fn redirect(address: &str, from: &Node) -> Option<HostPort> {
    match address.strip_prefix(':') {
        Some(port) => {
            let host = from.address()?.host.clone();
            Some(HostPort { host, port: port.parse().ok()? })
        }
        None => HostPort::parse(address, None),
    }
}

impl Nodes {
    /// The place of a node, which is started where it is new. A place belongs to its node as long as the lock
    /// is held.
    fn place(&mut self, map: &Map, address: &HostPort) -> (u16, Arc<Node>) {
        let Self { places, by_address } = self;
        let known = by_address.get(address).copied();
        if let Some(place) = known
            && let Some(Some(node)) = places.get(usize::from(place))
        {
            return (place, Arc::clone(node));
        }
        let node = Node::start(Target::Fixed(map.login.clone(), address.clone()), &map.prefix, true);
        let free = places.iter().position(Option::is_none).unwrap_or(places.len());
        match places.get_mut(free) {
            Some(place) => *place = Some(Arc::clone(&node)),
            None => places.push(Some(Arc::clone(&node))),
        }
        let place = u16::try_from(free).unwrap_or(NOWHERE);
        by_address.insert(address.clone(), place);
        (place, node)
    }
}

impl Map {
    fn read(&self) -> RwLockReadGuard<'_, Nodes> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Nodes> {
        self.nodes.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn uncovered(&self) -> usize {
        self.owners.iter().filter(|owner| owner.load(Relaxed) == NOWHERE).count()
    }

    /// Takes over what a node says; nodes that own nothing any more are let go.
    fn apply(&self, ranges: &[(u16, u16, HostPort)]) {
        let mut owners = vec![NOWHERE; SLOTS.into()];
        let (mut nodes, mut met) = (self.write(), HashSet::new());
        for (first, last, address) in ranges {
            let (place, node) = nodes.place(self, address);
            if met.insert(place) {
                node.own(*first);
            }
            if let Some(range) = owners.get_mut(usize::from(*first)..=usize::from(*last)) {
                range.fill(place);
            }
        }
        for (owner, place) in self.owners.iter().zip(&owners) {
            owner.store(*place, Relaxed);
        }
        let Nodes { places, by_address } = &mut *nodes;
        by_address.retain(|address, place| {
            let owns = ranges.iter().any(|(_, _, owner)| owner == address);
            if !owns && let Some(gone) = places.get_mut(usize::from(*place)) {
                *gone = None;
            }
            owns
        });
    }

    async fn refresh(&self) -> Result<(), String> {
        let known: Vec<_> = self.read().places.iter().flatten().cloned().collect();
        let turn = self.turn.fetch_add(1, Relaxed);
        let mut last = "no node answers".to_owned();
        for node in known.iter().cycle().skip(turn % known.len().max(1)).take(known.len()) {
            let mut slots = Pipeline::new();
            slots.cmd("CLUSTER").arg("SLOTS");
            let (Some(address), Some(mut link)) = (node.address(), node.connected()) else { continue };
            if node.is_silent(patience(ASK)) {
                continue;
            }
            match timeout(ASK, node.send(&mut link, &slots)).await {
                Ok(Ok(answers)) => match answers.first().and_then(|slots| ranges(slots, &address.host)) {
                    Some(ranges) => {
                        self.apply(&ranges);
                        return Ok(());
                    }
                    None => {
                        let denied =
                            |answer: &Value| matches!(answer, Value::ServerError(e) if e.code() == "NOPERM");
                        last = unread(&self.login, address, answers.first().is_some_and(denied));
                    }
                },
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => last = format!("{address} does not answer"),
            }
        }
        for seed in &self.seeds {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(ASK))
                .set_response_timeout(Some(ASK));
            let target = Target::Fixed(self.login.clone(), seed.clone());
            let mut slots = redis::cmd("CLUSTER");
            slots.arg("SLOTS");
            let asked = async {
                let mut connection = target.dial(&config).await?;
                slots.query_async::<Value>(&mut connection).await
            };
            match timeout(ASK * 2, asked).await {
                Ok(Ok(slots)) => match ranges(&slots, &seed.host) {
                    Some(ranges) => {
                        self.apply(&ranges);
                        return Ok(());
                    }
                    None => last = unread(&self.login, seed, false),
                },
                Ok(Err(error)) if error.code() == Some("NOPERM") => last = unread(&self.login, seed, true),
                Ok(Err(error)) => last = format!("{seed}: {error}"),
                Err(_) => last = format!("{seed} does not answer"),
            }
        }
        Err(last)
    }
}

/// Reads `CLUSTER SLOTS`: first and last slot, and the primary. `None` where no slot is owned.
fn ranges(answer: &Value, asked: &str) -> Option<Vec<(u16, u16, HostPort)>> {
    let Value::Array(rows) = answer else { return None };
    let read = |row: &Value| {
        let Value::Array(row) = row else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = row.as_slice() else {
            return None;
        };
        let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() && host != b"?" => {
                String::from_utf8(host.clone()).ok()?
            }
            _ => asked.to_owned(),
        };
        let port = u16::try_from(*port).ok()?;
        Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, HostPort { host, port }))
    };
    let ranges: Vec<_> = rows.iter().filter_map(read).collect();
    (!ranges.is_empty()).then_some(ranges)
}

/// Why an answer holds no map.
fn unread(login: &Login, address: &HostPort, denied: bool) -> String {
    if denied {
        let user = login.user();
        return format!(
            "{address} denies the map (NOPERM): run ACL SETUSER {user} +cluster|slots on every node"
        );
    }
    format!("{address} does not say who owns the slots: is it a cluster?")
}

/// Reads the map now, when asked to, and every now and then.
async fn keep(map: Arc<Map>) {
    let mut complained = false;
    loop {
        let read = map.refresh().await;
        *map.unread.lock().unwrap_or_else(PoisonError::into_inner) = read.as_ref().err().cloned();
        let sound = match read {
            Ok(()) => {
                complained = false;
                map.uncovered() == 0
            }
            Err(reason) => {
                if !complained {
                    tracing::warn!("cannot read the map of the Redis Cluster: {reason}; trying on");
                }
                complained = true;
                false
            }
        };
        sleep(TROUBLED).await;
        if sound {
            // Either way the map is read.
            let _ = timeout(IDLE, map.stale.notified()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // CLUSTER KEYSLOT of the specification's example, and of the part between braces alone.
        assert_eq!(slot_of("123456789"), 12739);
        assert_eq!(slot_of("shop:all:{123456789}"), 12739);
        for slot in [0, 1, 12739, SLOTS - 1] {
            assert_eq!(slot_of(&format!("qg:probe:{{{}}}:7", tag_of(slot))), slot);
        }
    }
}
