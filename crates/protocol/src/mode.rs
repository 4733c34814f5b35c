//! The fields of a policy that a dial can change while the fleet runs.

use serde::{Deserialize, Serialize};

/// What a policy does with requests. In JSON: `"enforce"`, `"mark"`, `"shadow"`, `"off"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It refuses requests over its quota.
    Enforce,
    /// It admits all requests, and marks those over its quota for the upstream.
    Mark,
    /// It counts, and never refuses.
    Shadow,
    /// It applies to no request.
    Off,
}

impl Mode {
    /// Whether requests wait for the store's answer.
    pub const fn is_awaited(self) -> bool {
        matches!(self, Self::Enforce | Self::Mark)
    }
}

/// What happens to a request while the store fails. In JSON: `"allow"`, `"deny"`, `"local"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// The filter admits it, without quota headers.
    Allow,
    /// The filter answers it with 503.
    Deny,
    /// Each worker counts on its own, against a share of the quota.
    Local,
}
