//! Counters of partitions.

use quotagate_protocol::{Kind, Mode};
use serde::{Deserialize, Serialize};

use super::overrides::OverrideEntry;
use super::{is_false, is_zero};

/// A partition and its counter in the current window of one policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The domain.
    pub domain: String,
    /// The policy.
    pub policy: String,
    /// The partition, encoded as in keys.
    pub partition: String,
    /// Units used in the window; slots that requests hold now, if the policy limits requests in
    /// flight.
    pub used: u64,
    /// How many of them are debt: units beyond the quota, of a policy that settles costs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub debt: u64,
    /// The quota in force as far as this store knows; absent if it is unlimited or unknown.
    pub quota: Option<u64>,
    /// Where that quota comes from.
    pub quota_from: QuotaFrom,
    /// The kind of the window; absent if it is fixed.
    #[serde(default, skip_serializing_if = "Kind::is_fixed")]
    pub kind: Kind,
    /// Length of the window in seconds. Windows of a calendar differ.
    pub window_s: u32,
    /// Milliseconds until the window ends; until the last unit returns if the window is sliding.
    /// For a policy that limits requests in flight, which has no window, this is 0 in the usage of
    /// a party. In lists, it is the time until this store forgets the last message about the slots.
    pub reset_ms: u64,
}

impl Usage {
    /// The debt of a counter with this quota, if its policy `settles` costs.
    pub fn debt(used: u64, quota: Option<u64>, settles: bool) -> u64 {
        quota.filter(|_| settles).map_or(0, |quota| used.saturating_sub(quota))
    }
}

/// A partition that contains a party: its counter, and whether requests are refused because of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartyUsage {
    /// The counter.
    #[serde(flatten)]
    pub usage: Usage,
    /// What the policy does with requests of this partition over its quota: by its dial, else by
    /// the dial of all policies, else by its document.
    pub mode: Mode,
    /// Whether no proxy has reported the policy for 15 minutes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gone: bool,
    /// The numbers of the documents that decide: those in force whose policy has this counter, in
    /// order. 0 stands for the embedded ones. Several, while proxies have different documents;
    /// none, if no proxy has reported lately, or for a window that has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub documents: Vec<u64>,
    /// Requests refused within about the last five minutes, counted as in
    /// [`Refused`](super::Refused).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
    /// The same of requests that the policy let through, because it is in shadow mode or marks.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub would_refuse: u64,
    /// How many of `refused` may belong to other partitions; of `would_refuse`, if none was
    /// refused.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused_error: u64,
    /// For how many milliseconds its requests have been beyond the quota, without a pause of about
    /// five minutes; absent if they were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_for_ms: Option<u64>,
    /// The requests of the policy, of all partitions, that cost `if_missing` within about the last
    /// five minutes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub settled_if_missing: u64,
    /// The quota that would hold without its runtime override; absent without one, or if this store
    /// does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_override: Option<u64>,
    /// Its runtime override, if that holds for every partition that contains a party.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<PatternName>,
    /// The window, if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span: Option<WindowSpan>,
    /// Who holds its slots, if the policy limits requests in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<SlotsHeld>,
}

/// The slots of a partition that workers hold, or wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotsHeld {
    /// Slots that requests wait for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waiting: u64,
    /// The proxies, those with the most slots first.
    pub proxies: Vec<ProxySlots>,
    /// Workers that are missing here: they are too many, or nobody can read what they hold. While
    /// one cannot be read, no slot is granted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

/// The slots of a partition that the workers of one proxy hold, or wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxySlots {
    /// The name of its process.
    pub proxy: String,
    /// Slots that it holds.
    pub held: u64,
    /// Slots that its requests wait for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waiting: u64,
    /// For how many milliseconds its longest live request has held a slot.
    pub longest_ms: u64,
    /// Milliseconds until its slots are free, unless it says before that it holds them. It says so
    /// every 3 s while it lives.
    pub ends_ms: u64,
    /// For how many milliseconds it has said nothing, if that is longer than 4 s. Then it is dead
    /// or does not reach the store.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub silent_ms: u64,
}

/// A window that has ended, in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSpan {
    /// Its first second.
    pub start_s: u64,
    /// The second after its last one.
    pub end_s: u64,
}

/// An override of every partition that contains a party.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatternName {
    /// The policy, or `*`.
    pub policy: String,
    /// The party, with `,*` for any other entries.
    pub partition: String,
}

impl PartyUsage {
    /// A counter without anything else.
    pub(crate) const fn of(usage: Usage, mode: Mode) -> Self {
        Self {
            usage,
            mode,
            gone: false,
            documents: Vec::new(),
            refused: 0,
            would_refuse: 0,
            refused_error: 0,
            refused_for_ms: None,
            settled_if_missing: 0,
            without_override: None,
            pattern: None,
            span: None,
            slots: None,
        }
    }

    /// Whether the policy refuses requests of the partition now, or would in another mode than
    /// shadow or mark: the quota is used up, or requests were refused lately.
    pub fn is_over(&self) -> bool {
        self.refused > 0
            || self.would_refuse > 0
            || self.usage.quota.is_some_and(|quota| self.usage.used >= quota)
            || self.has_unread_slots()
    }

    /// Whether some slots cannot be read: more than `used` may be held, and none is granted.
    pub fn has_unread_slots(&self) -> bool {
        self.slots.as_ref().is_some_and(|slots| slots.left_out > 0)
    }
}

/// Where the quota in [`Usage`] comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuotaFrom {
    /// A runtime override.
    Override,
    /// The last reservation for the partition in this window, as the backend keeps it or this
    /// store saw it. The documents that proxies reported do not say whose quota it named. If a
    /// dial has ended or changed since, the next reservation shows it.
    Reservation,
    /// The last reservation's, which is that of a tier or of `quota_from`, because the document has
    /// no overrides.
    Tier,
    /// The last reservation's, which is an override of the document, because that has no tiers and
    /// no `quota_from`.
    Document,
    /// A dial.
    Dial,
    /// The policy's `quota`, as a proxy reported it. Its document gives no partition another one,
    /// or the last reservation said that it has none.
    Policy,
    /// Nobody knows it: the policy has tiers, `quota_from` or overrides in its document, and no
    /// filter and store of this version counted the partition in this window; or proxies have
    /// documents that name different quotas.
    Unknown,
}

/// The counters that count a party now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReply {
    /// The partitions that contain the party, by domain, policy and partition; at most
    /// [`MAX_FOUND`](super::MAX_FOUND).
    pub found: Vec<PartyUsage>,
    /// The overrides of every partition that contains the party, or a part of it, whether counted
    /// or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<OverrideEntry>,
    /// Its overrides that no request can match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<OverrideEntry>,
    /// Why there may be more; absent if the search was complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// Some of the counters of a policy in their current windows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartiesPage {
    /// The partitions, in no order.
    pub found: Vec<PartyUsage>,
    /// What `from` has to be for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Why some may be missing; absent if none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
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

/// Frees the slots of a partition that workers hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// The domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The policy.
    pub policy: String,
    /// The partition as an operator types it or as in keys; it must not contain a secret.
    pub partition: String,
    /// The name of a proxy's process, to free the slots of its workers alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
    /// The operator who frees them.
    pub by: String,
}
