//! What calls show.

use serde::{Deserialize, Serialize};

use super::is_zero;
use super::usage::Usage;

/// The fullest and the most refused partitions, as all stores and proxies that share the backend
/// saw them. This store knows everything of its own calls, and of the others what they publish: the
/// fullest and the most refused partitions of each, a few seconds late.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Top {
    /// By the used part of their quota in the current window, the fullest first.
    pub fullest: Vec<Usage>,
    /// The slots of those of them that are of concurrency limits, as the backend had them within
    /// the last second. Those that could not be read at once are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<PartitionSlots>,
    /// By refusals within about the last five minutes, the most refused first. Requests that a
    /// policy in shadow mode let through do not count.
    pub refused: Vec<Refused>,
    /// The same by requests that a policy in shadow mode, or that marks, let through.
    #[serde(default)]
    pub would_refuse: Vec<Refused>,
    /// The policies with requests that they could not count or identify in the last five minutes,
    /// the most such requests first.
    #[serde(default)]
    pub uncounted: Vec<Uncounted>,
    /// Whose calls these are: this process, then the others by their names.
    #[serde(default)]
    pub publishers: Vec<Publisher>,
    /// The hosts whose native modules fell silent within the last hour, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<SilentProxy>,
    /// Why some are missing; absent if all could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

impl Top {
    /// Whether no request was seen.
    pub const fn is_empty(&self) -> bool {
        self.fullest.is_empty()
            && self.refused.is_empty()
            && self.would_refuse.is_empty()
            && self.uncounted.is_empty()
    }
}

/// A process that counts, and publishes what it sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publisher {
    /// Unique to the process: 16 random hexadecimal digits.
    pub id: String,
    /// What kind of process it is.
    pub kind: PublisherKind,
    /// The name of its host.
    pub host: String,
    /// Since when it runs, in milliseconds since the Unix epoch.
    pub since_ms: u64,
}

/// A kind of process that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PublisherKind {
    /// A store, `quotagate serve`.
    Store,
    /// A proxy with the native module.
    Proxy,
}

/// A host on which proxies with the native module published, and publish no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilentProxy {
    /// The host's name.
    pub host: String,
    /// For how many milliseconds it has been silent; the longest time of several proxies.
    pub silent_ms: u64,
}

/// The slots of a partition of a concurrency limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionSlots {
    /// The domain.
    pub domain: String,
    /// The policy.
    pub policy: String,
    /// The partition, encoded as in keys.
    pub partition: String,
    /// Slots that requests hold.
    pub held: u64,
    /// The limit in force as far as this store knows; absent if it is unlimited or unknown.
    pub limit: Option<u64>,
    /// Slots that requests wait for.
    pub waiting: u64,
    /// For how many milliseconds its longest live request has held a slot.
    pub longest_ms: u64,
    /// Workers that are missing here: they are too many, or nobody can read what they hold. While
    /// one cannot be read, no slot is granted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

/// A partition with requests beyond its quota, which were refused or let through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The domain.
    pub domain: String,
    /// The policy.
    pub policy: String,
    /// The partition, encoded as in keys.
    pub partition: String,
    /// Requests that filters found to be beyond it on their own, and one for each reservation that
    /// was not granted in full, however many requests waited for it. A sketch of bounded memory
    /// counts them: at most `error` too many.
    pub requests: u64,
    /// How many of `requests` may belong to other partitions.
    pub error: u64,
    /// For how many milliseconds the partition has been refused, without a pause of about five
    /// minutes.
    /// This may be longer than the time in which `requests` were counted.
    #[serde(default)]
    pub for_ms: u64,
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

/// The requests of a policy in each minute of the last six hours, since this store runs: those of
/// all stores and proxies, as far as it knew them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MinuteRequests {
    /// The store's time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// When the last minute of the lists ends: at most two minutes ago.
    pub end_ms: u64,
    /// Admitted, the oldest first: one value for each minute, at most 360. All lists have the same
    /// length, and begin when this store did.
    pub admitted: Vec<u32>,
    /// Refused.
    pub refused: Vec<u32>,
    /// Over the quota, and let through in mode shadow or mark.
    pub let_through: Vec<u32>,
}
