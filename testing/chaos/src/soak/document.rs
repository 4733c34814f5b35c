//! The policies of the soak: one for each way to count, each with a path of its own, and a shadow
//! over all of them.

use anyhow::Result;
use quotagate_support::{http::Request, jwt};
use serde_json::{Value, json};

use crate::document::TIMEOUT;

/// A way to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// By a header, exactly.
    Exact,
    /// By a header, with leases.
    Leased,
    /// By an API key that never leaves the filter.
    Keyed,
    /// By a verified claim, with a quota for each plan.
    Tiers,
    /// By address, only what is answered with 401.
    Logins,
}

/// Users of the header: plain values, and values that try to be more than that.
const USERS: [&[u8]; 6] =
    [b"ann", b"bob", b"eve", b"a}b{c:1 \"d\\", b"\xff\xfe\x80", &[b'x'; 3000]];
/// The status that counts as a failed log-in.
pub const FAILED: u16 = 401;

impl Way {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Exact, Self::Leased, Self::Keyed, Self::Tiers, Self::Logins];

    /// The name of its policy, and its path.
    #[must_use]
    pub const fn policy(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Leased => "leased",
            Self::Keyed => "keyed",
            Self::Tiers => "tiers",
            Self::Logins => "logins",
        }
    }

    /// The length of its window in seconds.
    #[must_use]
    pub const fn window_s(self) -> u64 {
        if matches!(self, Self::Leased) { 10 } else { 4 }
    }

    /// How many users it has, except those known by address.
    #[must_use]
    pub const fn users(self) -> usize {
        match self {
            Self::Exact => USERS.len(),
            Self::Leased | Self::Logins => 1,
            Self::Keyed => 3,
            Self::Tiers => 4,
        }
    }

    /// The units of a user in a window.
    #[must_use]
    pub const fn quota(self, user: usize) -> u64 {
        match self {
            Self::Exact => 10,
            Self::Leased => 100,
            Self::Keyed => 12,
            Self::Tiers if user.is_multiple_of(2) => 6,
            Self::Tiers => 24,
            Self::Logins => 5,
        }
    }

    /// The statuses that its clients may see: 503 is the filter's while the store fails, or
    /// Envoy's; 401 a failed log-in, or a token that another header has spoiled.
    #[must_use]
    pub const fn statuses(self) -> &'static [u16] {
        match self {
            Self::Exact | Self::Leased | Self::Keyed => &[200, 429, 503],
            Self::Tiers | Self::Logins => &[200, FAILED, 429, 503],
        }
    }

    /// A request of this user.
    ///
    /// # Errors
    /// When no token can be made.
    pub fn request(self, user: usize) -> Result<Request> {
        let request = Request::get(&format!("/{}", self.policy()));
        Ok(match self {
            Self::Exact => {
                request.raw_header(b"x-user", USERS.get(user).copied().unwrap_or_default())
            }
            Self::Leased => request.header("x-user", "leased"),
            Self::Keyed => request.header("x-api-key", format!("key-{user}")),
            Self::Tiers => {
                let plan = if user.is_multiple_of(2) { "free" } else { "premium" };
                let claims = json!({"sub": format!("sub-{user}"), "plan": plan});
                request.bearer(&jwt::token_with(&claims)?)
            }
            Self::Logins => request,
        })
    }
}

/// The document.
#[must_use]
pub fn document() -> Value {
    let policy = |way: Way, by: &str, more: Value| {
        let mut policy = json!({
            "name": way.policy(), "match": {"path": {"exact": format!("/{}", way.policy())}},
            "partition_by": [by], "quota": way.quota(0), "window": format!("{}s", way.window_s()),
        });
        if let (Some(policy), Value::Object(more)) = (policy.as_object_mut(), more) {
            policy.extend(more);
        }
        policy
    };
    let plan = json!({"jwt": {"claim": "plan"}});
    let plans = json!({"free": Way::Tiers.quota(0), "premium": Way::Tiers.quota(1)});
    json!({
        "domain": "shop",
        "store": {
            "cluster": "quota_store", "timeout": format!("{}ms", TIMEOUT.as_millis()), "on_failure": "deny"
        },
        "digest_key": "only of the soak",
        "identities": {
            "user": [{"header": {"name": "x-user"}}],
            "key": [{"header": {"name": "x-api-key", "secret": true}}],
            "subject": [{"jwt": {"claim": "sub"}}],
            "address": [{"client_ip": {}}]
        },
        "policies": [
            policy(Way::Exact, "user", json!({})),
            policy(Way::Leased, "user", json!({"precision": "lease", "lease": {"ahead": "1s"}})),
            policy(Way::Keyed, "key", json!({})),
            policy(Way::Tiers, "subject", json!({"tiers": {"source": plan, "quotas": plans}})),
            policy(Way::Logins, "address", json!({"count": {"status": [FAILED]}})),
            {"name": "watched", "partition_by": ["address"], "quota": 30, "window": "4s", "mode": "shadow"},
        ]
    })
}
