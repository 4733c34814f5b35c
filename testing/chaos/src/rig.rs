//! The system under fault: two Envoys with two workers each, one store or two, one Redis or a
//! cluster, and an upstream. Every part keeps its port over restarts.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quotagate_support::cluster::Cluster;
use quotagate_support::envoy::{Envoy, EnvoyOptions, Form, ListenerFile, StoreAddress};
use quotagate_support::redis::Redis;
use quotagate_support::redis::clock::Clock;
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::upstream::Upstream;
use quotagate_support::{edits, http, paths, ports, resp, wait};
use serde_json::Value;

use crate::document::{Kind, QUOTA, TIMEOUT, document};
use crate::footprint::Footprint;
use crate::load::Traffic;
use crate::namespace::Namespace;
use crate::relay::Relay;

const ENVOYS: usize = 2;
/// The time that refunds of unspent units may be under way.
const SETTLED: Duration = Duration::from_millis(300);
const SETTLES: Duration = Duration::from_secs(10);
/// The longest that a machine under load may take to close the connections of clients that left.
const GONE: Duration = Duration::from_secs(60);
/// Lets the nodes of a cluster go on without a part of it.
const UNCOVERED: &[&str] =
    &["--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes"];

/// What keeps the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeper {
    /// One Redis.
    Redis,
    /// One Redis whose clock can jump.
    Clocked,
    /// A Redis Cluster of three primaries and three replicas.
    Cluster,
    /// The same without failover: no node takes over the slots of a lost primary, and the others go
    /// on.
    Uncovered,
}

/// What is special about the Envoys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proxies {
    /// Nothing.
    Plain,
    /// Their listener comes from a file that they watch.
    Watching,
    /// Their filter panics when a request asks for it.
    Panicking,
}

/// What is started.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// What keeps the counters.
    pub keeper: Keeper,
    /// Stores, all used by every Envoy.
    pub stores: usize,
    /// Whether a [`Relay`] stands between the Envoys and each store; of native modules, between the
    /// Envoys and Redis.
    pub relayed: bool,
    /// Whether the Envoys reach the first store over a network whose packets can be dropped.
    pub is_far: bool,
    /// Whether native modules call the stores, too, because the fault is about these. Otherwise
    /// they count in Redis by themselves, and stores serve operators only.
    pub through_stores: bool,
    /// What is special about the Envoys.
    pub envoys: Proxies,
    /// What goes on meanwhile.
    pub traffic: Traffic,
}

impl Setup {
    /// One Redis, one store, 60 requests a second of spenders and open users.
    pub const PLAIN: Self = Self {
        keeper: Keeper::Redis,
        stores: 1,
        relayed: false,
        is_far: false,
        through_stores: false,
        envoys: Proxies::Plain,
        traffic: Traffic::PLAIN,
    };
}

impl Setup {
    /// The policy under load with an unlimited quota.
    #[must_use]
    pub fn endless(&self) -> Kind {
        if self.traffic.kinds.contains(&Kind::Loose) { Kind::Loose } else { Kind::Open }
    }
}

/// The sum of a proxy's statistics whose names match.
///
/// # Errors
/// When its admin interface does not answer.
pub fn stat(envoy: &Envoy, names: &str) -> Result<u64> {
    let stats = envoy.stats(names)?;
    let values = stats.lines().filter_map(|line| line.rsplit_once(": "));
    Ok(values.filter_map(|(_, value)| value.trim().parse::<u64>().ok()).sum())
}

/// Redis, of either kind.
#[derive(Debug)]
pub enum Backend {
    /// One.
    Redis(Redis),
    /// Six nodes.
    Cluster(Cluster),
}

/// The running system. Its parts end in this order.
#[derive(Debug)]
pub struct Rig {
    /// The proxies.
    pub envoys: Vec<Envoy>,
    /// How they were started.
    pub envoy_options: Vec<EnvoyOptions>,
    /// The network in front of each store, or of Redis, where there is one.
    pub relays: Vec<Relay>,
    network: Option<Namespace>,
    /// The stores.
    pub stores: Vec<StoreProcess>,
    store_options: Vec<StoreOptions>,
    /// The file that each Envoy reads its listener from, and its content, if it reads it from a
    /// file.
    listeners: Vec<(ListenerFile, EnvoyOptions)>,
    /// What keeps the counters.
    pub backend: Backend,
    /// The clock of the one Redis, where it can jump.
    pub clock: Option<Clock>,
    /// The upstream behind the proxies.
    pub upstream: Upstream,
}

impl Rig {
    /// Starts the system.
    ///
    /// # Errors
    /// When a part does not come up.
    pub fn start(setup: &Setup) -> Result<Self> {
        Self::start_with(setup, &document(QUOTA, TIMEOUT))
    }

    /// Starts the system with another document.
    ///
    /// # Errors
    /// When a part does not come up.
    pub fn start_with(setup: &Setup, policies: &Value) -> Result<Self> {
        let (backend, url, clock) = match setup.keeper {
            Keeper::Redis => {
                let redis = Redis::start()?;
                let url = redis.url();
                (Backend::Redis(redis), url, None)
            }
            Keeper::Clocked => {
                let (clock, redis) = Clock::redis()?;
                let url = redis.url();
                (Backend::Redis(redis), url, Some(clock))
            }
            Keeper::Cluster | Keeper::Uncovered => {
                let cluster = match setup.keeper {
                    Keeper::Uncovered => Cluster::start_with(UNCOVERED)?,
                    _ => Cluster::start()?,
                };
                let url = cluster.url();
                (Backend::Cluster(cluster), url, None)
            }
        };
        let mut store_options = Vec::new();
        for _ in 0..setup.stores {
            let (port, admin) = (ports::free()?, ports::free()?);
            let options = StoreOptions::new(&url).listen(&format!("127.0.0.1:{port}"));
            store_options.push(options.admin(&format!("127.0.0.1:{admin}")));
        }
        let stores =
            store_options.iter().map(StoreProcess::start_with).collect::<Result<Vec<_>>>()?;
        for store in &stores {
            wait::until_true("a store to be ready", SETTLES, || {
                Ok(http::get(store.admin_port(), "/readyz")?.status == 200)
            })?;
        }
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut addresses: Vec<SocketAddr> = stores.iter().map(|store| at(store.port())).collect();
        let in_redis = Form::of_run()? == Form::Native && !setup.through_stores;
        let mut relays = Vec::new();
        let mut counting = url;
        if setup.relayed && in_redis {
            let Backend::Redis(redis) = &backend else { bail!("a cluster tells its own ports") };
            let relay = Relay::start(redis.port())?;
            counting = format!("redis://127.0.0.1:{}/0", relay.port());
            relays.push(relay);
        } else if setup.relayed {
            relays =
                stores.iter().map(|store| Relay::start(store.port())).collect::<Result<_>>()?;
            addresses = relays.iter().map(Relay::address).collect();
        }
        let network = if setup.is_far { Some(Namespace::new()?) } else { None };
        if let (Some(network), Some(first)) = (&network, addresses.first_mut()) {
            let (host, port) = (network.address(), first.port());
            let listener = network.within(|| Ok(TcpListener::bind((host, 0))?))?;
            let relay = Relay::start_on(listener, port)?;
            *first = relay.address();
            relays.push(relay);
        }
        let upstream = Upstream::start()?;
        let (mut envoy_options, mut listeners) = (Vec::new(), Vec::new());
        for _ in 0..ENVOYS {
            let options = EnvoyOptions::new(upstream.port(), 0).concurrency(2);
            let options = options.store(StoreAddress::Several(addresses.clone()));
            let mut options = options.document(policies.clone()).edit(edits::idle_timeout("15s"));
            options.port = ports::free()?;
            if in_redis {
                options = options.redis(&counting);
            } else if setup.stores > 1 {
                options = options.edit(edits::several_stores);
            }
            match setup.envoys {
                Proxies::Plain => {}
                Proxies::Panicking => options.wasm = paths::panicking_filter(),
                Proxies::Watching => {
                    let (file, plain) = (ListenerFile::new()?, options.clone());
                    file.publish("0", &plain.config()?)?;
                    options = options.edit(file.edit());
                    listeners.push((file, plain));
                }
            }
            envoy_options.push(options);
        }
        let envoys = envoy_options.iter().map(Envoy::start).collect::<Result<_>>()?;
        Ok(Self {
            envoys,
            envoy_options,
            relays,
            network,
            stores,
            store_options,
            listeners,
            backend,
            clock,
            upstream,
        })
    }

    /// Publishes a configuration with this quota of spenders, to Envoys that watch for one.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn publish(&self, version: u64, quota: u64) -> Result<()> {
        for (file, options) in &self.listeners {
            let config = options.clone().document(document(quota, TIMEOUT)).config()?;
            file.publish(&version.to_string(), &config)?;
        }
        Ok(())
    }

    /// The ports of the proxies.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        self.envoys.iter().map(Envoy::port).collect()
    }

    /// The store of this number.
    ///
    /// # Errors
    /// When there is none.
    pub fn store(&mut self, i: usize) -> Result<&mut StoreProcess> {
        self.stores.get_mut(i).with_context(|| format!("no store {i}"))
    }

    /// The network of the first store.
    ///
    /// # Errors
    /// When it has none of its own.
    pub fn network(&self) -> Result<&Namespace> {
        self.network.as_ref().context("the first store is not far")
    }

    /// Starts a store again that was killed, on its old ports.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn restart_store(&mut self, i: usize) -> Result<()> {
        let options = self.store_options.get(i).with_context(|| format!("no store {i}"))?;
        let store = StoreProcess::start_with(options)?;
        *self.store(i)? = store;
        Ok(())
    }

    /// The one Redis.
    ///
    /// # Errors
    /// When there is a cluster.
    pub fn redis(&mut self) -> Result<&mut Redis> {
        match &mut self.backend {
            Backend::Redis(redis) => Ok(redis),
            Backend::Cluster(_) => bail!("there is no single Redis"),
        }
    }

    /// The cluster.
    ///
    /// # Errors
    /// When there is one Redis.
    pub fn cluster(&mut self) -> Result<&mut Cluster> {
        match &mut self.backend {
            Backend::Cluster(cluster) => Ok(cluster),
            Backend::Redis(_) => bail!("there is no cluster"),
        }
    }

    /// Connections and memory that Envoys and stores hold once the proxies have no client any more.
    /// Until then, a busy machine still closes connections of clients that have left.
    ///
    /// # Errors
    /// When an admin interface does not answer, or a client stays.
    pub fn footprint_at_rest(&self) -> Result<Footprint> {
        let clients = || self.stat("^http.ingress.downstream_cx_active$");
        wait::until_true("clients to be gone", GONE, || Ok(clients()? == 0))?;
        Ok(self.footprint())
    }

    /// What Envoys and stores hold now.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        let envoys: Vec<u32> = self.envoys.iter().map(Envoy::pid).collect();
        let stores: Vec<u32> = self.stores.iter().map(StoreProcess::pid).collect();
        Footprint::of(&envoys, &stores)
    }

    /// The sum of the statistics of all proxies whose names match.
    ///
    /// # Errors
    /// When an admin interface does not answer.
    pub fn stat(&self, names: &str) -> Result<u64> {
        let mut sum = 0;
        for envoy in &self.envoys {
            sum += stat(envoy, names)?;
        }
        Ok(sum)
    }

    /// Waits until no request is under way in any proxy or between the proxies and the stores.
    /// Returns how many are left.
    ///
    /// # Errors
    /// When an admin interface does not answer.
    pub fn stuck(&self) -> Result<u64> {
        let active = || {
            self.stat(
                "^(http.ingress.downstream_rq_active|cluster.quota_store.upstream_rq_active)$",
            )
        };
        // The caller gets what is still under way after the wait.
        let _ = wait::until_true("nothing under way", SETTLES, || Ok(active()? == 0));
        active()
    }

    /// The units in Redis of the policy's users, once no refund is under way any more.
    ///
    /// # Errors
    /// When Redis does not answer, or goes on changing.
    pub fn used(&self, kind: Kind) -> Result<BTreeMap<String, u64>> {
        let mut last = self.counters(kind).ok();
        let mut since = Instant::now();
        wait::until("counters to rest", SETTLES, || {
            let now = self.counters(kind)?;
            if last.as_ref() != Some(&now) {
                (last, since) = (Some(now), Instant::now());
                return Ok(None);
            }
            Ok((since.elapsed() >= SETTLED).then_some(now))
        })
    }

    fn counters(&self, kind: Kind) -> Result<BTreeMap<String, u64>> {
        let mut counters = BTreeMap::new();
        for port in self.primaries()? {
            let keys =
                resp::command(port, &["KEYS", &format!("qg:shop:{}:*", kind.policy())])?.lines();
            for key in keys.lines().filter(|key| !key.is_empty() && !key.ends_with(":override")) {
                let user =
                    key.split_once("{header.x-user=").and_then(|(_, rest)| rest.split_once('}'));
                let (user, _) = user.with_context(|| format!("whose counter is {key}?"))?;
                let units: u64 = resp::command(port, &["GET", key])?.lines().parse()?;
                *counters.entry(user.to_owned()).or_default() += units;
            }
        }
        Ok(counters)
    }

    fn primaries(&self) -> Result<Vec<u16>> {
        let ports = match &self.backend {
            Backend::Redis(redis) => return Ok(vec![redis.port()]),
            Backend::Cluster(cluster) => cluster.ports(),
        };
        let mut primaries = Vec::new();
        for port in ports {
            if resp::command(port, &["INFO", "replication"])?.lines().contains("role:master") {
                primaries.push(port);
            }
        }
        ensure!(primaries.len() == 3, "{} primaries", primaries.len());
        Ok(primaries)
    }
}
