//! Dials.

use quotagate_protocol::dials::{DialFields, EnforcedShare};
use quotagate_protocol::{Mode, OnFailure};
use serde::{Deserialize, Serialize};

/// A dial in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DialEntry {
    /// The name of a policy, or `*`.
    pub policy: String,
    /// What it sets.
    #[serde(flatten)]
    pub fields: DialFields,
    /// Milliseconds until it reverts by itself; absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_ms: Option<u64>,
    /// The operator who set it.
    pub by: String,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// Sets a dial. Absent fields keep their value. All fields of a dial end together: the store
/// rejects a change without a time while an absent field has one, and a change with a time while an
/// absent field has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetDial {
    /// The domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The name of a known policy, or `*`.
    pub policy: String,
    /// Whether it refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Whether `*` with the mode `enforce` may also enforce policies in the modes shadow and mark.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub include_shadow: bool,
    /// Refuse for these partitions only, and count the others in mode shadow; not with `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforced_for: Option<EnforcedShare>,
    /// Its quota; not with `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// What becomes of its requests while the store fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
    /// Milliseconds, 1000 to [`MAX_FOR_MS`](super::MAX_FOR_MS), after which the whole dial reverts
    /// by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// The operator who sets it.
    pub by: String,
}

impl SetDial {
    /// What it sets. They are no flattened field of the request, because reading one loses the path
    /// of a wrong value.
    pub fn fields(&self) -> DialFields {
        DialFields {
            mode: self.mode,
            enforced_for: self.enforced_for.clone(),
            quota: self.quota,
            on_failure: self.on_failure,
        }
    }
}

/// Clears a dial, readable or not; 404 if there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClearDial {
    /// The domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The name of a policy, or `*`.
    pub policy: String,
    /// The operator who clears it.
    pub by: String,
}
