//! What is simulated.

use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_quota::config::Config;

/// One run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The fleet and who asks it.
    pub fleet: Fleet,
    /// Between the proxies and the store.
    pub network: Network,
    /// Units of a partition a window.
    pub quota: u64,
    /// The window, in seconds.
    pub window_s: NonZeroU32,
    /// Whether policies lease units.
    pub precision: Precision,
    /// How long requests arrive, in virtual time.
    pub length: Duration,
    /// What happens before this is not in the report's rates; quotas are audited all the same.
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
    /// The exponent of Zipf's distribution: the partition of rank r asks in proportion to r^-zipf.
    pub zipf: f64,
    /// Requests a second of the whole fleet: a Poisson process.
    pub rate: f64,
    /// Through how many of the proxies the requests of a partition come.
    pub spread: Spread,
}

/// Through which proxies the requests of a partition come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Through any.
    All,
    /// Through so many, which are its own: a region's, or those that a balancer by hash chooses.
    Few(NonZeroU32),
}

/// What becomes of messages.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// The median of the time between a call and its reply, the store's work included.
    pub round_trip: Duration,
    /// How far it spreads: the sigma of a log-normal distribution, 0 = not at all.
    pub sigma: f64,
    /// The chance that a message is lost, on the way there and back each.
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
    /// A quota, a window or an `ahead` that a configuration cannot have.
    pub fn config(&self) -> Result<Rc<Config>> {
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
            .map(Rc::new)
            .context("the configuration of the simulated proxies")
    }
}
