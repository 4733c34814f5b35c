//! Runtime overrides.

use serde::{Deserialize, Serialize};

/// What an override grants: `{"quota":500}`, `"unlimited"` or `"blocked"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Allow {
    /// This many units per window.
    Quota(u64),
    /// As many units as requested.
    Unlimited,
    /// No units.
    Blocked,
}

/// An override in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideEntry {
    /// The domain.
    pub domain: String,
    /// The policy.
    pub policy: String,
    /// The partition, encoded as in keys.
    pub partition: String,
    /// What it grants.
    pub allow: Allow,
    /// Milliseconds until it ends by itself; absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_ms: Option<u64>,
    /// The operator who set it.
    pub by: String,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Why no request can match it, if that is known: the policy is gone, or counts by something
    /// else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmatched: Option<String>,
    /// Why nobody knows whether it is in force as the index says: the part of the backend that has
    /// it is away; or why others may be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// Sets the override of one partition of one policy, and replaces an existing one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetOverride {
    /// The domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The name of a known policy.
    pub policy: String,
    /// The partition as an operator types it or as in keys, with its entries in any order. It must
    /// not contain a secret. The store rejects a partition that the policy cannot count.
    pub partition: String,
    /// What it grants.
    pub allow: Allow,
    /// Milliseconds, 1000 to [`MAX_FOR_MS`](super::MAX_FOR_MS), after which it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// The operator who sets it.
    pub by: String,
}

/// Clears an override; 404 if there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClearOverride {
    /// The domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The policy.
    pub policy: String,
    /// The partition as an operator types it or as in keys; it must not contain a secret.
    pub partition: String,
    /// The operator who clears it.
    pub by: String,
}
