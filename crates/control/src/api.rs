//! What the admin address takes and gives, as JSON: shared by the server, the commands and their
//! tests; the live page reads and writes the same.
//!
//! All paths begin with [`ROOT`]. Where the store was given a token, every one of them wants it as
//! `Authorization: Bearer ..`. A change wants `Content-Type: application/json`, so that no page of
//! another site can send one unasked. An error is answered as [`ErrorReply`].
//!
//! `domain` may be left out wherever the store knows only one.

use quotagate_quota::protocol::dials::PartitionEntry;
use quotagate_quota::protocol::{Mode, OnFailure};
use serde::{Deserialize, Serialize};

/// The first part of every path.
pub const ROOT: &str = "/v1/";
/// `GET`: [`Board`]s of the domain asked for, or of all, as a list.
pub const BOARDS: &str = "/v1/boards";
/// `PUT` [`SetDial`], `DELETE` [`ClearDial`]: [`Changed`].
pub const DIALS: &str = "/v1/dials";
/// `GET` `?domain=&policy=&limit=`: [`OverrideEntry`]s, as a list, all of them without a limit.
/// `PUT` [`SetOverride`], `DELETE` [`ClearOverride`]: [`Changed`].
pub const OVERRIDES: &str = "/v1/overrides";
/// `GET` `?domain=&limit=`: [`Event`]s, the newest first, as a list.
pub const HISTORY: &str = "/v1/history";
/// `GET` `?domain=&partition=`: [`UsageReply`]; 404 where no policy counts that party now.
pub const USAGE: &str = "/v1/usage";
/// `POST` [`Reset`]: [`Changed`]; 404 where there is no counter.
pub const RESET: &str = "/v1/reset";
/// `GET` `?domain=&policy=&limit=`: [`Top`].
pub const TOP: &str = "/v1/top";
/// `GET`: [`DomainInfo`]s, as a list. `DELETE` [`ForgetDomain`]: [`Changed`]; 409 while the domain
/// is in use.
pub const DOMAINS: &str = "/v1/domains";
/// `GET`: server-sent events, one [`Snapshot`] a second, each as the `data` of an event without a
/// name.
pub const EVENTS: &str = "/v1/events";

pub use quotagate_store::server::STORE_HEADER;

/// Longest name of the operator who makes a change, in bytes; the rest is cut.
pub const MAX_BY: usize = 128;
/// Longest time of a dial or an override: 366 days.
pub const MAX_FOR_MS: u64 = 366 * 24 * 60 * 60 * 1000;
/// Most partitions that a search for a party gives.
pub const MAX_FOUND: usize = 100;
pub use quotagate_store::control::MAX_HISTORY;

/// All that is known of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Board {
    /// The domain.
    pub domain: String,
    /// Its version of dials and overrides; 0 while there never was any.
    pub version: u64,
    /// Whether dials and overrides outlive this store's process.
    pub durable: bool,
    /// Every policy that a proxy has reported, by name.
    pub policies: Vec<PolicyInfo>,
    /// The dials in force.
    pub dials: Vec<DialEntry>,
    /// How many overrides there are.
    pub overrides: u64,
}

/// A policy as its filters' configuration says, dials left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyInfo {
    /// Its name.
    pub name: String,
    /// Units a window where nothing else is said of a partition.
    pub quota: u64,
    /// Length of its window in seconds.
    pub window_s: u32,
    /// Whether each partition's window is shifted by a time of its own.
    pub stagger: bool,
    /// Whether it refuses.
    pub mode: Mode,
    /// What becomes of its requests while the store fails.
    pub on_failure: OnFailure,
    /// What it counts by; empty: one counter for everybody. Absent: no filter has said so yet.
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
    /// Milliseconds until it reverts by itself; absent: it does not.
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
    /// The name of a policy that is known, or `*`.
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

/// Clears a dial, readable or not; 404 where there is none.
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
    /// So many units a window.
    Quota(u64),
    /// As many as are asked for.
    Unlimited,
    /// None.
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
    /// Milliseconds until it ends by itself; absent: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_ms: Option<u64>,
    /// The operator who set it.
    pub by: String,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Why no request can match it, where that is known: the policy is gone, or counts by something
    /// else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmatched: Option<String>,
}

/// Sets the override of one partition of one policy, in place of one that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetOverride {
    /// The domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The name of a policy that is known.
    pub policy: String,
    /// The partition as people name it or as keys have it, its entries in any order; no secret. The
    /// store refuses one that the policy cannot count.
    pub partition: String,
    /// What it grants.
    pub allow: Allow,
    /// Milliseconds, 1000 to [`MAX_FOR_MS`], after which it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// The operator who sets it.
    pub by: String,
}

/// Clears an override; 404 where there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClearOverride {
    /// The domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The policy.
    pub policy: String,
    /// The partition as people name it or as keys have it; no secret.
    pub partition: String,
    /// The operator who clears it.
    pub by: String,
}

/// Deletes the counter of the current window: its partition has its whole quota once more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reset {
    /// The domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The policy.
    pub policy: String,
    /// The partition as people name it or as keys have it; no secret.
    pub partition: String,
    /// The operator who resets it.
    pub by: String,
}

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The domain that it was made in.
    pub domain: String,
    /// The version of dials and overrides after it.
    pub version: u64,
    /// Whether it outlives this store's process.
    pub durable: bool,
    /// What was done, in a sentence.
    pub done: String,
    /// The partition that was changed, as keys have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
}

/// A change that is remembered.
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
    /// How many policies are known of it.
    pub policies: u64,
    /// How many dials are in force.
    pub dials: u64,
    /// How many overrides there are.
    pub overrides: u64,
    /// Milliseconds since the last report that this store knows of. It learns of a report to
    /// another store up to ten minutes late.
    pub silent_ms: u64,
}

/// Removes what is remembered of a domain that no filter reports any more: its policies and its
/// name. Counters and history stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetDomain {
    /// The domain.
    pub domain: String,
    /// The operator who forgets it.
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
    /// The quota in force as far as this store knows; absent where it is unlimited.
    pub quota: Option<u64>,
    /// Where that quota comes from.
    pub quota_from: QuotaFrom,
    /// Length of the window in seconds.
    pub window_s: u32,
    /// Milliseconds until the window ends.
    pub reset_ms: u64,
}

/// Where a party is counted now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReply {
    /// Every partition that contains the party, by domain, policy and partition, [`MAX_FOUND`] at
    /// most.
    pub found: Vec<Usage>,
    /// Its overrides that no request can match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<OverrideEntry>,
    /// Why there may be more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// Where a quota that is shown comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuotaFrom {
    /// A run-time override.
    Override,
    /// The last reservation that this store has seen for it in this window: a static override, a
    /// tier, `quota_from`, a dial or the policy's own. A dial that ended or changed since shows
    /// with the next one.
    Reservation,
    /// A dial.
    Dial,
    /// The policy's `quota`, as a proxy reported it; tiers and the like are not known.
    Policy,
}

/// The partitions that stand out, as far as this store has seen them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Top {
    /// By the part of their quota that is used in the current window, the fullest first.
    pub fullest: Vec<Usage>,
    /// By refusals within about the last five minutes, the most refused first. What a policy in
    /// shadow mode let through is not among them.
    pub refused: Vec<Refused>,
    /// The policies with requests that they could not count or identify within the last five
    /// minutes, the most such requests first.
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
    /// Requests that it could not count, since the store failed.
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
    /// Requests that filters refused by themselves, and one for each reservation that this store
    /// did not grant in full, however many waited for it. Counted by a sketch of bounded memory: at
    /// most `error` too many.
    pub requests: u64,
    /// How many of `requests` may be others'.
    pub error: u64,
}

/// What the live page shows, once a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The store's time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// What is wrong with the backend; empty: it is ready.
    pub faults: Vec<String>,
    /// What works and should be mended.
    pub warnings: Vec<String>,
    /// Which backend it is: `memory`, `redis`, `redis-cluster`, `redis-sentinel`.
    pub backend: String,
    /// Calls served per second, over the last second.
    pub calls_per_s: f64,
    /// Mean time of those calls in milliseconds; absent: there were none.
    pub call_ms: Option<f64>,
    /// All domains.
    pub boards: Vec<Board>,
    /// Requests per second of each policy that is known.
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
    /// Admitted, the oldest first: one value for each 5 s of the last 5 minutes, at most 60.
    pub admitted: Vec<f64>,
    /// Refused.
    pub refused: Vec<f64>,
    /// Let through in shadow mode, though they were over the quota.
    pub shadow_refused: Vec<f64>,
    /// Those without an identity.
    pub missing_identity: Vec<f64>,
    /// Those that it could not count, since the store failed.
    pub store_error: Vec<f64>,
}

/// An error: what is wrong and how it is mended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// In a sentence.
    pub error: String,
    /// The field that is at fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The names that could have been meant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<String>,
}
