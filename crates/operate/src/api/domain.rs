//! Domains and their policies.

use quotagate_protocol::dials::{DocumentOverrides, PartitionEntry};
use quotagate_protocol::{Kind, Mode, OnFailure};
use serde::{Deserialize, Serialize};

use super::dial::DialEntry;

/// The state of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Board {
    /// The domain.
    pub domain: String,
    /// Its version of dials and overrides; 0 before the first change.
    pub version: u64,
    /// Whether dials and overrides survive a restart of this store.
    pub durable: bool,
    /// Every policy that a proxy has reported, by name.
    pub policies: Vec<PolicyInfo>,
    /// The dials in force.
    pub dials: Vec<DialEntry>,
    /// How many overrides there are.
    pub overrides: u64,
}

/// A policy as configured in its filters, without dials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyInfo {
    /// Its name.
    pub name: String,
    /// Units per window of a partition that no tier and no override applies to.
    pub quota: u64,
    /// The kind of its window; absent if it is fixed.
    #[serde(default, skip_serializing_if = "Kind::is_fixed")]
    pub kind: Kind,
    /// Length of its window in seconds; 0 for a calendar window.
    pub window_s: u32,
    /// Whether each partition's window has its own offset.
    pub stagger: bool,
    /// Whether it refuses.
    pub mode: Mode,
    /// What becomes of its requests while the store fails.
    pub on_failure: OnFailure,
    /// What it counts by. Empty: one counter for everybody. Absent: not reported yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_by: Option<Vec<PartitionEntry>>,
    /// Whether a tier or `quota_from` can give a partition another quota.
    #[serde(default)]
    pub tiers: bool,
    /// What the overrides of its document give some partitions.
    #[serde(default, skip_serializing_if = "DocumentOverrides::is_none")]
    pub overrides: DocumentOverrides,
    /// Whether the real cost of a request replaces the reserved one, so that a counter may have
    /// debt.
    #[serde(default)]
    pub settles: bool,
    /// When a proxy last reported it, in milliseconds since the Unix epoch; may be minutes old.
    pub seen_ms: u64,
}

/// A domain that filters have reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainInfo {
    /// The domain.
    pub domain: String,
    /// How many of its policies are known.
    pub policies: u64,
    /// How many dials are in force.
    pub dials: u64,
    /// How many overrides there are.
    pub overrides: u64,
    /// Milliseconds since the last report that this store knows. It sees a report to another store
    /// up to ten minutes late.
    pub silent_ms: u64,
}

/// Removes a domain that no filter reports any more: its policies and its name. Counters and
/// history stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetDomain {
    /// The domain.
    pub domain: String,
    /// The operator who removes it.
    pub by: String,
}
