//! Starts the whole path in one call: store, upstream, and Envoy with a policy document.

use std::time::Duration;

use anyhow::Result;
use quotagate_support::envoy::{Envoy, EnvoyOptions};
use quotagate_support::http::{Client, Request, Response};
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::inspect;

/// Envoy in front of an upstream, and a store with its own Redis. The fields are dropped in this
/// order.
///
/// The Wasm filter calls the store. The native module counts in the same Redis by itself, unless
/// the test says [`EnvoyOptions::through_store`]. The store is there for operators in both forms.
pub struct Rig {
    pub envoy: Envoy,
    pub upstream: Upstream,
    pub store: StoreProcess,
    pub redis: Redis,
    /// Whether the native module counts in Redis by itself.
    pub counts_in_redis: bool,
}

impl Rig {
    /// Starts one Envoy with one worker that serves this document.
    pub fn start(document: Value) -> Result<Self> {
        Self::start_with(document, |options| options)
    }

    /// Starts one Envoy with one worker that serves this document, with changed options.
    pub fn start_with(
        document: Value,
        change: impl FnOnce(EnvoyOptions) -> EnvoyOptions,
    ) -> Result<Self> {
        Self::start_on(Redis::start()?, document, change)
    }

    /// [`start_with`](Self::start_with) on this Redis.
    pub fn start_on(
        redis: Redis,
        document: Value,
        change: impl FnOnce(EnvoyOptions) -> EnvoyOptions,
    ) -> Result<Self> {
        let store = StoreProcess::start(&redis.url(), &[])?;
        let upstream = Upstream::start()?;
        let options = EnvoyOptions::new(upstream.port(), store.port()).redis(&redis.url());
        let options = change(options.document(document));
        let counts_in_redis = options.counts_in_redis()?;
        let envoy = Envoy::start(&options)?;
        Ok(Self { envoy, upstream, store, redis, counts_in_redis })
    }

    /// Freezes what the proxy waits for: requests get no units until [`thaw`](Self::thaw).
    pub fn freeze(&mut self) -> Result<()> {
        if self.counts_in_redis { self.redis.freeze() } else { self.store.freeze() }
    }

    /// Ends a [`freeze`](Self::freeze).
    pub fn thaw(&mut self) -> Result<()> {
        if self.counts_in_redis { self.redis.thaw() } else { self.store.thaw() }
    }

    /// Kills what the proxy waits for.
    pub fn kill_counting(&mut self) -> Result<()> {
        if self.counts_in_redis { self.redis.kill() } else { self.store.kill() }
    }

    /// A connection to Envoy.
    pub fn client(&self) -> Result<Client> {
        Client::connect(self.envoy.port())
    }

    /// The partitions with a counter of this policy, sorted: the text between the braces of each
    /// key.
    pub fn partitions(&self, policy: &str) -> Result<Vec<String>> {
        let keys = self.redis.cli(&["KEYS", &format!("qg:*:{policy}:*")])?.lines();
        let between = |key: &str| Some(key.split_once('{')?.1.rsplit_once('}')?.0.to_owned());
        let counters = keys.lines().filter(|key| !key.ends_with(":quota"));
        let mut partitions: Vec<String> = counters.filter_map(between).collect();
        partitions.sort_unstable();
        Ok(partitions)
    }

    /// The statuses of these requests, sent one after the other.
    pub fn statuses(&self, requests: &[Request]) -> Result<Vec<u16>> {
        let mut client = self.client()?;
        requests.iter().map(|request| Ok(client.send(request)?.status)).collect()
    }

    /// The statuses of these requests, each over its own connection. Counting is frozen until all
    /// are under way, so that they are decided together.
    pub fn statuses_together(&mut self, requests: &[Request]) -> Result<Vec<u16>> {
        self.freeze()?;
        let mut clients = requests.iter().map(|_| self.client()).collect::<Result<Vec<_>>>()?;
        for (client, request) in clients.iter_mut().zip(requests) {
            client.start(request)?;
        }
        wait::until_true("all to be under way", Duration::from_secs(30), || {
            Ok(inspect::stat(&self.envoy, "^http.ingress.downstream_rq_active$")?
                == requests.len() as u64)
        })?;
        self.thaw()?;
        clients.iter_mut().map(|client| Ok(client.finish()?.status)).collect()
    }
}

/// A document with these policies. Callers are identified by `sub`, else by address. No load
/// reaches the timeout.
pub fn document(policies: Value) -> Value {
    json!({
        "domain": "shop",
        "store": {"cluster": "quota_store", "timeout": "60s", "on_failure": "deny"},
        "identities": {
            "caller": [{"jwt": {"claim": "sub"}}, {"client_ip": {}}],
            "key": [{"header": {"name": "x-api-key", "secret": true}}],
            "tenant": [{"header": {"name": "x-tenant"}}]
        },
        "policies": policies,
        "response": {"headers": ["ietf", "x_ratelimit"]}
    })
}

/// A policy with this quota for each caller, in a window so long that it does not end during a
/// test.
pub fn per_caller(quota: u64) -> Value {
    json!({"name": "per-caller", "partition_by": ["caller"], "quota": quota, "window": "366d"})
}

/// A policy of this name with one unit for each client that the identity `by` finds, in a window so
/// long that it does not end during a test. Requests without the identity get 401. The policy
/// counts only the path `/NAME`, so that one Envoy serves many cases.
pub fn one_each(name: &str, by: &[&str]) -> Value {
    json!({
        "name": name, "match": {"path": {"exact": format!("/{name}")}}, "partition_by": by,
        "on_missing": "deny", "quota": 1, "window": "366d"
    })
}

/// The seconds `t` of a `RateLimit` header.
pub fn reset_of(response: &Response) -> u64 {
    let limit = response.header("ratelimit").expect("a RateLimit header");
    limit.rsplit_once(";t=").expect("a reset time").1.parse().expect("whole seconds")
}
