//! From a request to the counters that it takes units of.

#[cfg(test)]
mod tests;

use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::rc::Rc;

use crate::config::Config;
use crate::protocol::{Mode, Window};
use crate::request::Request;
use crate::request::allowance::Allowance;
use crate::request::facts::Facts;
use crate::request::key::partition_of;
use crate::request::partition::Party;

/// What a request asks of the quotas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// One check a policy that applies, in the order of the policies; empty: nothing counts this request. Or
    /// that it is to be refused.
    pub checks: Result<Vec<Check>, MissingIdentity>,
    /// The policies that found no identity, by their place, whatever their `on_missing` says: for statistics.
    pub missing: Vec<usize>,
}

/// A policy with `on_missing: deny` found no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingIdentity {
    /// The policy's place in [`Config::policies`](crate::config::Config::policies).
    pub policy: usize,
}

/// The units that a request needs of one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The index of the policy in [`Config::policies`](crate::config::Config::policies).
    pub policy: usize,
    /// The counter.
    pub counter: Counter,
    /// The units.
    pub cost: NonZeroU64,
    /// Whether the policy refused when the request arrived: so it is decided, whatever dials turn meanwhile.
    pub enforced: bool,
}

/// A counter as this worker knows it: reservations are merged only where all of it is equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counter {
    /// `<domain>:<policy>:{<encoded partition>}`: without the store's prefix and the window number.
    pub key: Rc<str>,
    /// The quota in force for it.
    pub quota: u64,
    /// Its window.
    pub window: Window,
}

impl Hash for Counter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Each request is hashed on its way, and a key has hardly ever more than one quota and window.
        state.write(self.key.as_bytes());
    }
}

impl Config {
    /// Which counters `request` takes units of, by the policies in their order.
    ///
    /// A policy in shadow mode never refuses, not even for a missing identity: it does not apply then.
    pub fn evaluate(&self, request: &impl Request) -> Evaluation {
        let facts = Facts::new(request);
        let (mut checks, mut missing) = (Vec::new(), Vec::new());
        for (index, policy) in self.policies.iter().enumerate() {
            if policy.mode == Mode::Off || !policy.matcher.matches(&facts) {
                continue;
            }
            match policy.partition.party(&facts, &self.digester) {
                Party::Counter { key, address, named } => {
                    if !named {
                        missing.push(index);
                    }
                    let (dialed, quota) = (policy.dialed_quota, policy.quota);
                    let quota = match policy.quotas.of(&key, address, &facts, dialed, quota) {
                        Allowance::Units(quota) => quota,
                        Allowance::Unlimited => continue,
                    };
                    let window = if policy.stagger {
                        policy.window.staggered(partition_of(&key))
                    } else {
                        policy.window
                    };
                    let counter = Counter { key, quota, window };
                    let (cost, enforced) = (policy.cost.of(&facts), policy.mode == Mode::Enforce);
                    checks.push(Check { policy: index, counter, cost, enforced });
                }
                Party::Denied if policy.mode == Mode::Enforce => {
                    missing.push(index);
                    return Evaluation { checks: Err(MissingIdentity { policy: index }), missing };
                }
                Party::Denied | Party::Uncounted => missing.push(index),
            }
        }
        Evaluation { checks: Ok(checks), missing }
    }
}
