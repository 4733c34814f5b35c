//! From a request to the counters that count it.

#[cfg(test)]
mod tests;

use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::sync::Arc;

use quotagate_protocol::{Mode, Window};

use crate::config::{Config, Policy};
use crate::request::Request;
use crate::request::allowance::Allowance;
use crate::request::facts::Facts;
use crate::request::findings::IdentityFindings;
use crate::request::key::partition_of;
use crate::request::partition::Party;

/// Which counters count a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// One check for each policy that applies, in the order of the policies. Empty if no policy
    /// counts the request. On an error, answer it with 401.
    pub checks: Result<Vec<Check>, MissingIdentity>,
    /// The indices of the policies that found no identity, whatever their `on_missing` says: for
    /// metrics.
    pub missing: Vec<usize>,
    /// Verified tokens and rounded numbers that identities found: for the log.
    pub findings: IdentityFindings,
}

/// Memory that one request after another uses while it is evaluated and decided.
#[derive(Clone, Debug, Default)]
pub struct EvaluationScratch {
    key: String,
    checks: Vec<Check>,
}

impl EvaluationScratch {
    /// Keeps the memory of a request's checks for the next one.
    pub(crate) fn keep(&mut self, mut checks: Vec<Check>) {
        checks.clear();
        self.checks = checks;
    }
}

/// A policy with `on_missing: deny` found no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingIdentity {
    /// The index of the policy in [`Config::policies`](crate::config::Config::policies).
    pub policy: usize,
}

/// The units that a request needs from one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The index of the policy in [`Config::policies`](crate::config::Config::policies).
    pub policy: usize,
    /// The counter.
    pub counter: Counter,
    /// The units.
    pub cost: NonZeroU64,
    /// The mode of the policy when the request arrived. Later dials do not change that.
    pub mode: Mode,
}

/// A counter. Two reservations merge only if all fields are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counter {
    /// `<domain>:<policy>:{<encoded partition>}`, without the store's prefix.
    pub key: Arc<str>,
    /// The quota in force for this partition, without runtime overrides.
    pub quota: u64,
    /// Its window.
    pub window: Window,
}

impl Counter {
    /// Whether its units are slots, which running requests hold.
    pub(crate) fn is_slots(&self) -> bool {
        self.window == Window::InFlight
    }
}

impl Check {
    /// Its policy in `config`.
    pub(crate) fn policy<'c>(&self, config: &'c Config) -> Option<&'c Policy> {
        config.policies.get(self.policy)
    }

    /// Its policy in `config`, if the request waits for that.
    pub(crate) fn awaited_policy<'c>(&self, config: &'c Config) -> Option<&'c Policy> {
        self.policy(config).filter(|_| self.mode.is_awaited())
    }

    /// Whether the policy may refuse the request.
    pub fn enforced(&self) -> bool {
        self.mode == Mode::Enforce
    }
}

impl Hash for Counter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The key alone is enough: every request hashes a counter, and a key rarely has more than
        // one quota or window.
        state.write(self.key.as_bytes());
    }
}

impl Config {
    /// Finds the counters that count `request`, in the order of the policies.
    ///
    /// A policy that marks, or in shadow mode, never refuses. It does not apply if it finds no
    /// identity.
    pub fn evaluate(&self, request: &impl Request) -> Evaluation {
        self.evaluate_in(&mut EvaluationScratch::default(), request)
    }

    /// The same with the memory of earlier requests.
    pub fn evaluate_in(
        &self,
        scratch: &mut EvaluationScratch,
        request: &impl Request,
    ) -> Evaluation {
        let EvaluationScratch { key, checks } = std::mem::take(scratch);
        let facts = Facts::new(request, self.shared_identities);
        facts.keep_key_scratch(key);
        let evaluation = self.evaluate_facts(&facts, checks);
        scratch.key = facts.take_key_scratch();
        evaluation
    }

    /// `checks` is empty.
    fn evaluate_facts<'c>(&'c self, facts: &Facts<'c>, mut checks: Vec<Check>) -> Evaluation {
        let mut missing = Vec::new();
        let mut candidates = self.index.candidates();
        while let Some(index) = candidates.next(facts) {
            let Some(policy) = self.policies.get(index) else { break };
            if policy.mode == Mode::Off || !policy.matcher.matches(facts) {
                continue;
            }
            match policy.partition.party(facts, &self.digester) {
                Party::Counter { key, address, named } => {
                    if !named {
                        missing.push(index);
                    }
                    let (dialed, quota) = (policy.dialed_quota, policy.quota);
                    let quota = match policy.quotas.of(&key, address, facts, dialed, quota) {
                        Allowance::Units(quota) => quota,
                        Allowance::Unlimited => continue,
                    };
                    let window = policy.window_of(partition_of(&key));
                    let mode = policy.mode_of(&key);
                    let counter = Counter { key, quota, window };
                    let cost = policy.cost.of(facts);
                    checks.push(Check { policy: index, counter, cost, mode });
                }
                Party::Denied if policy.mode == Mode::Enforce => {
                    missing.push(index);
                    let checks = Err(MissingIdentity { policy: index });
                    return Evaluation { checks, missing, findings: facts.findings() };
                }
                Party::Denied | Party::Uncounted => missing.push(index),
            }
        }
        Evaluation { checks: Ok(checks), missing, findings: facts.findings() }
    }
}
