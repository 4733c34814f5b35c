//! What is simulated.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_quota::config::Config;

/// One run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The fleet and its traffic.
    pub fleet: Fleet,
    /// The network between the proxies and the store.
    pub network: NetworkSetup,
    /// Units of a partition a window.
    pub quota: u64,
    /// The window, in seconds.
    pub window_s: NonZeroU32,
    /// Whether policies lease units.
    pub precision: Precision,
    /// How long requests arrive, in virtual time.
    pub length: Duration,
    /// The warm-up. The report's rates leave it out; the audit of quotas does not.
    pub warm_up: Duration,
    /// The same seed draws the same requests, and the same network for the same calls.
    pub seed: u64,
}

/// The proxies and their traffic.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// How many proxies there are, of one worker each.
    pub proxies: NonZeroU32,
    /// How many partitions.
    pub partitions: NonZeroU32,
    /// The exponent of Zipf's distribution: the partition of rank r sends requests in proportion to
    /// r^-zipf.
    pub zipf: f64,
    /// Requests a second of the whole fleet.
    pub rate: f64,
    /// Requests that arrive at the same moment, as they do from clients that wait for the same
    /// batch of responses. Their moments are a Poisson process.
    pub together: NonZeroU32,
    /// How many of the proxies carry the requests of one partition.
    pub spread: Spread,
}

/// The proxies that carry the requests of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All of them.
    All,
    /// So many, which are the partition's own: those of a region, or those that a load balancer
    /// chooses by hash.
    Few(NonZeroU32),
}

/// The quality of the network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkSetup {
    /// The median of the time between a call and its reply, the store's work included.
    pub round_trip: Duration,
    /// The spread of that time: the sigma of a log-normal distribution; 0 means none.
    pub sigma: f64,
    /// How long one call in a hundred takes instead.
    pub slow: Option<Duration>,
    /// The chance that a message is lost, in each direction.
    pub lost: f64,
    /// The chance that it takes one to four times the proxy's timeout.
    pub late: f64,
}

/// How exactly the policy counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// `precision: exact`
    Exact,
    /// `precision: lease`, with so much `ahead`.
    Lease {
        /// As in the policy, 1 ms or more.
        ahead: Duration,
    },
}

/// The longest that a request waits.
pub const TIMEOUT: Duration = Duration::from_millis(50);

impl Setup {
    /// The configuration of every proxy: one policy, which fails closed.
    ///
    /// # Errors
    /// When a configuration cannot have this quota, window or `ahead`.
    pub fn config(&self) -> Result<Arc<Config>> {
        let precision = match self.precision {
            Precision::Exact => String::new(),
            Precision::Lease { ahead } => {
                format!(r#","precision":"lease","lease":{{"ahead":"{}ms"}}"#, ahead.as_millis())
            }
        };
        let text = format!(
            r#"{{"domain":"scale",
                "store":{{"cluster":"store","timeout":"{}ms","on_failure":"deny"}},
                "identities":{{"caller":[{{"jwt":{{"claim":"sub"}}}}]}},
                "policies":[{{"name":"per-caller","partition_by":["caller"],
                             "quota":{},"window":"{}s"{precision}}}]}}"#,
            TIMEOUT.as_millis(),
            self.quota,
            self.window_s,
        );
        Config::parse(text.as_bytes())
            .map(Arc::new)
            .context("the configuration of the simulated proxies")
    }
}
