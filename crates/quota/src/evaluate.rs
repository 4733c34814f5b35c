//! From a request to the counters that it takes units of.

pub(crate) mod facts;
#[cfg(test)]
mod tests;

use std::num::NonZeroU64;
use std::rc::Rc;

use crate::config::{Config, Mode};
use crate::identity::Party;
use crate::window::Window;
use facts::Facts;

/// Facts about one request, fetched from the host on demand.
///
/// Each call costs a host call: only what the policies at hand need is asked for, and each at most once a
/// request. `None` is a fact that the request does not have.
pub trait Request {
    /// `:method`.
    fn method(&self) -> Option<Vec<u8>>;
    /// `:path`, with the query string.
    fn path(&self) -> Option<Vec<u8>>;
    /// `:authority`, with the port.
    fn authority(&self) -> Option<Vec<u8>>;
    /// A header by its lower-case name; of several, the first.
    fn header(&self, name: &str) -> Option<Vec<u8>>;
    /// A verified claim: the member at `path` of what `jwt_authn` left under the key `payload`.
    fn claim(&self, payload: &str, path: &[Box<str>]) -> Option<Vec<u8>>;
    /// The address of the client that Envoy trusts: `1.2.3.4:56` or `[2001:db8::1]:56`.
    fn source_address(&self) -> Option<Vec<u8>>;
    /// The name of the Envoy route.
    fn route_name(&self) -> Option<Vec<u8>>;
}

/// What a request asks of the quotas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluation {
    /// One check a policy that applies, in the order of the policies. Empty: nothing counts this request.
    Checks(Vec<Check>),
    /// A policy with `on_missing: deny` found no identity.
    MissingIdentity {
        /// The index of the policy.
        policy: usize,
    },
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
}

/// A counter as this worker knows it: reservations are merged only where all of it is equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Counter {
    /// `<domain>:<policy>:{<encoded partition>}`: without the store's prefix and the window number.
    pub key: Rc<str>,
    /// The quota in force for it.
    pub quota: u64,
    /// Its window.
    pub window: Window,
}

impl Config {
    /// Which counters `request` takes units of, by the policies in their order.
    ///
    /// A policy in shadow mode never refuses, not even for a missing identity: it does not apply then.
    pub fn evaluate(&self, request: &impl Request) -> Evaluation {
        let facts = Facts::new(request);
        let mut checks = Vec::new();
        for (index, policy) in self.policies.iter().enumerate() {
            if !policy.matcher.matches(&facts) {
                continue;
            }
            match policy.partition.party(&facts, &self.digester) {
                Party::Counter(key) => checks.push(Check {
                    policy: index,
                    counter: Counter { key, quota: policy.quota, window: policy.window },
                    cost: NonZeroU64::MIN,
                }),
                Party::Denied if policy.mode == Mode::Enforce => {
                    return Evaluation::MissingIdentity { policy: index };
                }
                Party::Denied | Party::Uncounted => {}
            }
        }
        Evaluation::Checks(checks)
    }
}
