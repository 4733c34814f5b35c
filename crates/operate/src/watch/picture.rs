//! What a process saw, in a form that other processes can merge. Ages are relative to the moment at
//! which it was taken.

use quotagate_store::server::DomainScope;
use serde::{Deserialize, Serialize};

use crate::api::Usage;

/// A partition as of the last answered reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    /// Its counter.
    #[serde(flatten)]
    pub usage: Usage,
    /// The number of the window.
    pub window: u64,
    /// Milliseconds since the answer.
    pub age_ms: u64,
}

/// The requests of a policy within the last five minutes, as proxies reported them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Series {
    /// The domain.
    pub domain: String,
    /// The policy.
    pub policy: String,
    /// Milliseconds since the last step began. That step still runs.
    pub age_ms: u64,
    /// The requests of each step of 5 s by outcome, the oldest first, in the order of
    /// [`PolicyReport`](quotagate_protocol::dials::PolicyReport)'s counts. An empty list
    /// means zeros.
    pub counts: [Vec<u64>; 7],
}

/// All requests of a policy since the process started, as proxies reported them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyTotals {
    /// The domain.
    pub domain: String,
    /// The policy.
    pub policy: String,
    /// The requests by outcome, in the order of [`Series::counts`].
    pub counts: [u64; 7],
    /// Its slots, if it is a concurrency limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<SlotTotals>,
}

/// The slots of a concurrency limit, as a process saw them with its last calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotTotals {
    /// Slots that requests hold.
    pub held: u64,
    /// Slots that were asked for within the last second and not granted.
    pub waiting: u64,
    /// Slots that it found expired since it started.
    pub expired: u64,
}

/// Calls per second, and how long they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Calls per second.
    pub per_s: f64,
    /// Their mean time in milliseconds; absent if there were none.
    pub ms: Option<f64>,
}

/// What the store in a process has done since the process started, and whether it can count now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreTotals {
    /// Calls.
    pub calls: u64,
    /// How many of them did not succeed.
    pub failed: u64,
    /// Microseconds that all of them took.
    pub micros: u64,
    /// Whether it can count every request.
    pub ready: bool,
}

/// Of what is wanted. Absent: of all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// The domain.
    pub domain: Option<&'a str>,
    /// The policy.
    pub policy: Option<&'a str>,
    /// The domains that may be seen.
    pub scope: Option<&'a DomainScope>,
}

impl Wanted<'_> {
    /// Whether everything is wanted.
    pub const fn is_all(&self) -> bool {
        self.domain.is_none() && self.policy.is_none() && self.scope.is_none()
    }

    /// Whether this policy is wanted.
    pub fn has(&self, domain: &str, policy: &str) -> bool {
        self.domain.is_none_or(|wanted| wanted == domain)
            && self.policy.is_none_or(|wanted| wanted == policy)
            && self.scope.is_none_or(|scope| scope.has(domain))
    }
}
