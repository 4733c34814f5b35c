//! The map of a Redis Cluster: who owns which slot, as `CLUSTER SLOTS` says.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use redis::{AsyncConnectionConfig, Pipeline, Value};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::super::node::{Node, Patience, Target, silence_limit};
use super::super::slots::SLOTS;
use crate::address::HostPort;
use crate::login::Login;

/// The index of a slot without a known owner.
const NOWHERE: u16 = u16::MAX;
/// The longest wait for one node's answer about the slots, unless callers wait longer.
const ANSWER: Duration = Duration::from_millis(500);
/// How often the map is read if nothing asks for it.
const IDLE: Duration = Duration::from_secs(10);
/// The pause between two readings while something is wrong.
const TROUBLED: Duration = Duration::from_millis(200);

/// First slot, last slot, and the address of their primary.
type Range = (u16, u16, HostPort);

/// Which node owns which slot.
pub struct Map {
    login: Login,
    seeds: Vec<HostPort>,
    prefix: String,
    patience: Arc<Patience>,
    /// Why the last reading failed.
    failure: Mutex<Option<String>>,
    /// The index of each slot's primary in `nodes`.
    owners: Box<[AtomicU16]>,
    nodes: RwLock<Nodes>,
    stale: Notify,
    /// When a redirect last led nowhere, and its text.
    lost: Mutex<Option<(Instant, String)>>,
    /// Whether operators have waited in vain for slots without an owner, since the last reading in
    /// which each slot had one.
    slots_away: AtomicBool,
    /// Counts readings, so that each begins with another node.
    turn: AtomicUsize,
}

#[derive(Default)]
struct Nodes {
    by_index: Vec<Option<Arc<Node>>>,
    by_address: HashMap<HostPort, u16>,
}

impl Map {
    /// A map without owners, to be read from `seeds`.
    pub fn new(login: Login, seeds: Vec<HostPort>, prefix: &str, patience: Arc<Patience>) -> Self {
        Self {
            login,
            seeds,
            prefix: prefix.to_owned(),
            patience,
            failure: Mutex::default(),
            owners: std::iter::repeat_with(|| AtomicU16::new(NOWHERE)).take(SLOTS.into()).collect(),
            nodes: RwLock::default(),
            stale: Notify::new(),
            lost: Mutex::default(),
            slots_away: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
        }
    }

    /// The primary of `slot`, as far as known.
    pub fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        let index = self.owners.get(usize::from(slot))?.load(Relaxed);
        self.read().by_index.get(usize::from(index))?.clone()
    }

    /// Learns that the node at `address` owns `slot`, and returns the node.
    pub fn move_slot(&self, slot: u16, address: &HostPort) -> Option<Arc<Node>> {
        let mut nodes = self.write();
        let (index, node) = nodes.find_or_start(self, address);
        self.owners.get(usize::from(slot))?.store(index, Relaxed);
        Some(node)
    }

    /// The node at `address`, which is started if it is new.
    pub fn node(&self, address: &HostPort) -> Arc<Node> {
        self.write().find_or_start(self, address).1
    }

    /// Every known primary.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.read().by_index.iter().flatten().cloned().collect()
    }

    /// How many slots have no known owner.
    pub fn uncovered(&self) -> usize {
        self.owners.iter().filter(|owner| owner.load(Relaxed) == NOWHERE).count()
    }

    /// Whether operators have waited in vain for slots without an owner.
    pub const fn slots_away(&self) -> &AtomicBool {
        &self.slots_away
    }

    /// Why the last reading failed.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that a command was lost, because a redirect led nowhere and the map named no other
    /// owner.
    pub fn note_lost(&self, why: String) {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), why));
    }

    /// Why a command was lost within this time.
    pub fn lost_within(&self, time: Duration) -> Option<String> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.as_ref().filter(|(when, _)| when.elapsed() < time).map(|(_, why)| why.clone())
    }

    /// Asks for another reading soon.
    pub fn mark_stale(&self) {
        self.stale.notify_one();
    }

    fn read(&self) -> RwLockReadGuard<'_, Nodes> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Nodes> {
        self.nodes.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adopts what a node says. Nodes that own nothing any more are dropped.
    fn adopt(&self, ranges: &[Range]) {
        let mut owners = vec![NOWHERE; SLOTS.into()];
        let (mut nodes, mut met) = (self.write(), HashSet::new());
        for (first, last, address) in ranges {
            let (index, node) = nodes.find_or_start(self, address);
            if met.insert(index) {
                node.own_slot(*first);
            }
            if let Some(range) = owners.get_mut(usize::from(*first)..=usize::from(*last)) {
                range.fill(index);
            }
        }
        for (owner, index) in self.owners.iter().zip(&owners) {
            owner.store(*index, Relaxed);
        }
        if !owners.contains(&NOWHERE) {
            self.slots_away.store(false, Relaxed);
        }
        let Nodes { by_index, by_address } = &mut *nodes;
        by_address.retain(|address, index| {
            let owns = ranges.iter().any(|(_, _, owner)| owner == address);
            if !owns && let Some(gone) = by_index.get_mut(usize::from(*index)) {
                *gone = None;
            }
            owns
        });
    }

    async fn refresh(&self) -> Result<(), String> {
        let ranges = self.ask().await?;
        self.adopt(&ranges);
        Ok(())
    }

    /// Asks for the map until a node answers, a known one or a seed.
    async fn ask(&self) -> Result<Vec<Range>, String> {
        let known = self.nodes();
        let turn = self.turn.fetch_add(1, Relaxed);
        let mut last = "no node answers".to_owned();
        for node in known.iter().cycle().skip(turn % known.len().max(1)).take(known.len()) {
            match self.ask_node(node).await {
                Some(Ok(ranges)) => return Ok(ranges),
                Some(Err(why)) => last = why,
                None => {}
            }
        }
        for seed in &self.seeds {
            match self.ask_seed(seed).await {
                Ok(ranges) => return Ok(ranges),
                Err(why) => last = why,
            }
        }
        Err(last)
    }

    /// Asks a known node; `None` if it is not connected or silent.
    async fn ask_node(&self, node: &Node) -> Option<Result<Vec<Range>, String>> {
        let (address, mut link) = (node.address()?, node.connected()?);
        let limit = self.patience.at_least(ANSWER);
        if node.is_silent(silence_limit(limit)) {
            return None;
        }
        let mut slots = Pipeline::new();
        slots.cmd("CLUSTER").arg("SLOTS");
        Some(match timeout(limit, node.send(&mut link, &slots)).await {
            Ok(Ok(replies)) => {
                let reply = replies.first();
                let denied =
                    matches!(reply, Some(Value::ServerError(error)) if error.code() == "NOPERM");
                let ranges = reply.and_then(|slots| ranges(slots, &address.host));
                ranges.ok_or_else(|| self.no_map(address, denied))
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("{address} does not answer")),
        })
    }

    async fn ask_seed(&self, seed: &HostPort) -> Result<Vec<Range>, String> {
        let limit = self.patience.at_least(ANSWER);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(limit))
            .set_response_timeout(Some(limit));
        let target = Target::Address(self.login.clone(), seed.clone());
        let mut slots = redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let asked = async {
            let mut connection = target.connect(&config).await?;
            slots.query_async::<Value>(&mut connection).await
        };
        match timeout(limit * 2, asked).await {
            Ok(Ok(slots)) => ranges(&slots, &seed.host).ok_or_else(|| self.no_map(seed, false)),
            Ok(Err(error)) if error.code() == Some("NOPERM") => Err(self.no_map(seed, true)),
            Ok(Err(error)) => Err(format!("{seed}: {error}")),
            Err(_) => Err(format!("{seed} does not answer")),
        }
    }

    /// Why the node at `address` sent no map.
    fn no_map(&self, address: &HostPort, denied: bool) -> String {
        if denied {
            let user = self.login.user();
            return format!(
                "{address} denies the map (NOPERM): run ACL SETUSER {user} +cluster|slots on every node"
            );
        }
        format!("{address} does not say who owns the slots: is it a cluster?")
    }
}

impl Nodes {
    /// The node at `address` and its index. A new node is started. The index belongs to the node
    /// while the lock is held.
    fn find_or_start(&mut self, map: &Map, address: &HostPort) -> (u16, Arc<Node>) {
        let Self { by_index, by_address } = self;
        let known = by_address.get(address).copied();
        if let Some(index) = known
            && let Some(Some(node)) = by_index.get(usize::from(index))
        {
            return (index, Arc::clone(node));
        }
        let target = Target::ClusterNode(map.login.clone(), address.clone());
        let node = Node::start(target, &map.prefix, Arc::clone(&map.patience));
        let free = by_index.iter().position(Option::is_none).unwrap_or(by_index.len());
        match by_index.get_mut(free) {
            Some(entry) => *entry = Some(Arc::clone(&node)),
            None => by_index.push(Some(Arc::clone(&node))),
        }
        let index = u16::try_from(free).unwrap_or(NOWHERE);
        by_address.insert(address.clone(), index);
        (index, node)
    }
}

/// Reads the reply to `CLUSTER SLOTS` from the node at `asked`. `None` if no slot has an owner.
fn ranges(reply: &Value, asked: &str) -> Option<Vec<Range>> {
    let Value::Array(rows) = reply else { return None };
    let read = |row: &Value| {
        let Value::Array(row) = row else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = row.as_slice()
        else {
            return None;
        };
        let [host, Value::Int(port), more @ ..] = primary.as_slice() else { return None };
        let host = match text(host) {
            // The node has no host name yet. Its address is in its metadata.
            Some("?") => more.last().and_then(ip).unwrap_or(asked),
            Some(host) if !host.is_empty() => host,
            _ => asked,
        };
        let host = host.to_owned();
        let port = u16::try_from(*port).ok()?;
        Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, HostPort { host, port }))
    };
    let ranges: Vec<_> = rows.iter().filter_map(read).collect();
    (!ranges.is_empty()).then_some(ranges)
}

/// The `ip` in the metadata of a node.
fn ip(metadata: &Value) -> Option<&str> {
    let value = match metadata {
        Value::Array(fields) => {
            let (pairs, _) = fields.as_chunks::<2>();
            pairs.iter().find_map(|[name, ip]| (text(name) == Some("ip")).then_some(ip))?
        }
        Value::Map(pairs) => {
            pairs.iter().find_map(|(name, ip)| (text(name) == Some("ip")).then_some(ip))?
        }
        _ => return None,
    };
    text(value).filter(|ip| !ip.is_empty())
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// Reads the map now, when it is stale, and at long intervals.
pub async fn keep(map: Arc<Map>) {
    let mut logged = false;
    loop {
        let read = map.refresh().await;
        *map.failure.lock().unwrap_or_else(PoisonError::into_inner) = read.as_ref().err().cloned();
        let sound = match read {
            Ok(()) => {
                logged = false;
                map.uncovered() == 0
            }
            Err(reason) => {
                if !logged {
                    tracing::warn!("cannot read the map of the Redis Cluster: {reason}; retrying");
                }
                logged = true;
                false
            }
        };
        sleep(TROUBLED).await;
        if sound {
            // The map is read again in either case.
            let _ = timeout(IDLE, map.stale.notified()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn nodes_without_a_host_name_are_found_by_their_ip() {
        let list = |ip: &str| Value::Array(vec![bulk("ip"), bulk(ip)]);
        let map = |ip: &str| Value::Map(vec![(bulk("ip"), bulk(ip))]);
        for (host, metadata, expected) in [
            (bulk("10.0.0.2"), None, "10.0.0.2"),
            (bulk("::1"), None, "::1"),
            (bulk("redis-2.example"), Some(list("10.0.0.2")), "redis-2.example"),
            (bulk("?"), Some(list("10.0.0.2")), "10.0.0.2"),
            (bulk("?"), Some(map("fd00::2")), "fd00::2"),
            (bulk("?"), Some(list("")), "asked"),
            (bulk("?"), Some(Value::Array(vec![])), "asked"),
            (bulk("?"), None, "asked"),
            (bulk(""), None, "asked"),
            // The endpoint is unknown: the host that was asked, whatever stands beside it.
            (Value::Nil, Some(list("10.0.0.2")), "asked"),
        ] {
            let mut primary = vec![host.clone(), Value::Int(6379), bulk("id")];
            primary.extend(metadata);
            let row = Value::Array(vec![Value::Int(0), Value::Int(9), Value::Array(primary)]);
            let found = ranges(&Value::Array(vec![row]), "asked").unwrap();
            let address = HostPort { host: expected.to_owned(), port: 6379 };
            assert_eq!(found, [(0, 9, address)], "{host:?}");
        }
    }
}
