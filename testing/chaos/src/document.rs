//! The policies under load.
//!
//! Spenders ask for more than their quota in every window, so that one unit too many shows. Open
//! users never reach their quota, in a window that does not end, so that Redis' counts can be
//! compared with what was admitted. Loose users are the same under `on_failure: allow`.

use std::time::Duration;

use serde_json::{Value, json};

/// Units that a spender may take in each [`WINDOW_S`].
pub const QUOTA: u64 = 10;
/// The window of spenders, in seconds.
pub const WINDOW_S: u64 = 4;
/// A quota that no client reaches.
const PLENTY: u64 = 1_000_000_000;
/// The longest that a request waits for quota: far above what a busy machine needs for an answer.
pub const TIMEOUT: Duration = Duration::from_millis(200);

/// A policy and the path that it applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// [`QUOTA`] units each [`WINDOW_S`], `on_failure: deny`.
    Spend,
    /// A quota without end, `on_failure: deny`.
    Open,
    /// A quota without end, `on_failure: allow`.
    Loose,
}

impl Kind {
    /// The name of the policy.
    #[must_use]
    pub fn policy(self) -> &'static str {
        match self {
            Self::Spend => "spend",
            Self::Open => "open",
            Self::Loose => "loose",
        }
    }
}

/// The document with all three policies, this quota for spenders, and this timeout.
#[must_use]
pub fn document(quota: u64, timeout: Duration) -> Value {
    let policy = |kind: Kind, quota: u64, window: String| {
        json!({
            "name": kind.policy(), "match": {"path": {"exact": format!("/{}", kind.policy())}},
            "partition_by": ["user"], "quota": quota, "window": window,
            "on_failure": if kind == Kind::Loose { "allow" } else { "deny" }
        })
    };
    json!({
        "domain": "shop",
        "store": {"cluster": "quota_store", "timeout": format!("{}ms", timeout.as_millis())},
        "identities": {"user": [{"header": {"name": "x-user"}}]},
        "policies": [
            policy(Kind::Spend, quota, format!("{WINDOW_S}s")),
            policy(Kind::Open, PLENTY, "366d".to_owned()),
            policy(Kind::Loose, PLENTY, "366d".to_owned()),
        ]
    })
}
