//! The JSON of the admin address, shared by the server, the commands and their tests. The live page
//! uses the same JSON.
//!
//! All paths begin with [`ROOT`]. If the store has a token, every path requires it as
//! `Authorization: Bearer ..`. A change requires `Content-Type: application/json`, so that a page
//! of another site cannot send one. Errors are answered as [`ErrorReply`].
//!
//! `domain` may be left out if the store knows only one.

use quotagate_quota::protocol::dials::PartitionEntry;
use quotagate_quota::protocol::{Mode, OnFailure};
use serde::{Deserialize, Serialize};

/// The first part of every path.
pub const ROOT: &str = "/v1/";
/// `GET`: [`Board`]s of the domain asked for, or of all, as a list.
pub const BOARDS: &str = "/v1/boards";
/// `PUT` [`SetDial`], `DELETE` [`ClearDial`]: [`Changed`].
pub const DIALS: &str = "/v1/dials";
/// `GET` `?domain=&policy=&limit=`: [`OverrideEntry`]s, as a list; without a limit, all of them.
/// `PUT` [`SetOverride`], `DELETE` [`ClearOverride`]: [`Changed`].
pub const OVERRIDES: &str = "/v1/overrides";
/// `GET` `?domain=&limit=`: [`Event`]s, the newest first, as a list.
pub const HISTORY: &str = "/v1/history";
/// `GET` `?domain=&partition=`: [`UsageReply`]; 404 if no policy counts that party now.
pub const USAGE: &str = "/v1/usage";
/// `POST` [`Reset`]: [`Changed`]; 404 if there is no counter.
pub const RESET: &str = "/v1/reset";
/// `GET` `?domain=&policy=&limit=`: [`Top`].
pub const TOP: &str = "/v1/top";
/// `GET`: [`DomainInfo`]s, as a list. `DELETE` [`ForgetDomain`]: [`Changed`]; 409 while the domain
/// is in use.
pub const DOMAINS: &str = "/v1/domains";
/// `GET`: server-sent events, one [`Snapshot`] per second, each as the `data` of an unnamed event.
pub const EVENTS: &str = "/v1/events";

pub use quotagate_store::server::STORE_HEADER;

/// Longest name of the operator who makes a change, in bytes; a longer name is cut.
pub const MAX_BY: usize = 128;
/// Longest time of a dial or an override: 366 days.
pub const MAX_FOR_MS: u64 = 366 * 24 * 60 * 60 * 1000;
/// Most partitions that a search for a party finds.
pub const MAX_FOUND: usize = 100;
pub use quotagate_store::control::MAX_HISTORY;

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
    /// Length of its window in seconds.
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
    /// When a proxy last reported it, in milliseconds since the Unix epoch; may be minutes old.
    pub seen_ms: u64,
}

/// A dial in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DialEntry {
    /// The name of a policy, or `*`.
    pub policy: String,
    /// Whether it refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Its quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// What becomes of its requests while the store fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
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
    /// Its quota; not with `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// What becomes of its requests while the store fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
    /// Milliseconds, 1000 to [`MAX_FOR_MS`], after which the whole dial reverts by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// The operator who sets it.
    pub by: String,
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
    /// Milliseconds, 1000 to [`MAX_FOR_MS`], after which it ends by itself.
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

/// Deletes the counter of the current window. Its partition gets its whole quota again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reset {
    /// The domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The policy.
    pub policy: String,
    /// The partition as an operator types it or as in keys; it must not contain a secret.
    pub partition: String,
    /// The operator who resets it.
    pub by: String,
}

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The domain that was changed.
    pub domain: String,
    /// The version of dials and overrides after the change.
    pub version: u64,
    /// Whether the change survives a restart of this store.
    pub durable: bool,
    /// What was done, in a sentence.
    pub done: String,
    /// The partition that was changed, encoded as in keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
}

/// A change in the history of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The operator who made it.
    pub by: String,
    /// What was done, in a sentence.
    pub done: String,
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

/// A partition and its counter in the current window of one policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The domain.
    pub domain: String,
    /// The policy.
    pub policy: String,
    /// The partition, encoded as in keys.
    pub partition: String,
    /// Units used in the window.
    pub used: u64,
    /// The quota in force as far as this store knows; absent if unlimited.
    pub quota: Option<u64>,
    /// Where that quota comes from.
    pub quota_from: QuotaFrom,
    /// Length of the window in seconds.
    pub window_s: u32,
    /// Milliseconds until the window ends.
    pub reset_ms: u64,
}

/// The counters that count a party now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReply {
    /// The partitions that contain the party, by domain, policy and partition; at most
    /// [`MAX_FOUND`].
    pub found: Vec<Usage>,
    /// Its overrides that no request can match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<OverrideEntry>,
    /// Why there may be more; absent if the search was complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// Where the quota in [`Usage`] comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuotaFrom {
    /// A runtime override.
    Override,
    /// The last reservation that this store saw for the partition in this window. Its quota comes
    /// from a static override, a tier, `quota_from`, a dial or the policy. If a dial has ended or
    /// changed since, the next reservation shows it.
    Reservation,
    /// A dial.
    Dial,
    /// The policy's `quota`, as a proxy reported it, without tiers and `quota_from`.
    Policy,
}

/// The fullest and the most refused partitions, as far as this store sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Top {
    /// By the used part of their quota in the current window, the fullest first.
    pub fullest: Vec<Usage>,
    /// By refusals within about the last five minutes, the most refused first. Requests that a
    /// policy in shadow mode let through do not count.
    pub refused: Vec<Refused>,
    /// The policies with requests that they could not count or identify in the last five minutes,
    /// the most such requests first.
    #[serde(default)]
    pub uncounted: Vec<Uncounted>,
}

/// The requests that a policy could not count or identify, as proxies report them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uncounted {
    /// The domain.
    pub domain: String,
    /// The policy.
    pub policy: String,
    /// Requests that it could not count because the store failed.
    pub store_error: u64,
    /// Requests without an identity.
    pub missing_identity: u64,
}

/// A partition that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The domain.
    pub domain: String,
    /// The policy.
    pub policy: String,
    /// The partition, encoded as in keys.
    pub partition: String,
    /// Requests that filters refused on their own, and one for each reservation that this store did
    /// not grant in full, however many requests waited for it. A sketch of bounded memory counts
    /// them: at most `error` too many.
    pub requests: u64,
    /// How many of `requests` may belong to other partitions.
    pub error: u64,
}

/// What the live page shows, once a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The store's time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// What is wrong with the backend; empty if it is ready.
    pub faults: Vec<String>,
    /// What works, but should be fixed.
    pub warnings: Vec<String>,
    /// The backend: `memory`, `redis`, `redis-cluster`, `redis-sentinel`.
    pub backend: String,
    /// Calls served per second, over the last second.
    pub calls_per_s: f64,
    /// Mean time of those calls in milliseconds; absent if there were none.
    pub call_ms: Option<f64>,
    /// All domains.
    pub boards: Vec<Board>,
    /// Requests per second of each known policy.
    pub rates: Vec<Rates>,
    /// At most ten each.
    pub top: Top,
}

/// Requests per second of a policy as filters report them every 5 s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// The domain.
    pub domain: String,
    /// The policy.
    pub policy: String,
    /// Admitted, the oldest first: one value for every 5 s of the last 5 minutes, at most 60.
    pub admitted: Vec<f64>,
    /// Refused.
    pub refused: Vec<f64>,
    /// Over the quota, and let through in shadow mode.
    pub shadow_refused: Vec<f64>,
    /// Without an identity.
    pub missing_identity: Vec<f64>,
    /// Not counted because the store failed.
    pub store_error: Vec<f64>,
}

/// An error: what is wrong, and how to fix it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// What is wrong and how to fix it, in a sentence.
    pub error: String,
    /// The wrong field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The known names for that field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<String>,
}
