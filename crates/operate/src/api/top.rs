//! What calls show.

use serde::{Deserialize, Serialize};

use super::domain::Board;
use super::usage::Usage;

/// The fullest and the most refused partitions, as all stores and proxies that share the backend
/// saw them. This store knows everything of its own calls, and of the others what they publish: the
/// fullest and the most refused partitions of each, a few seconds late.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Top {
    /// By the used part of their quota in the current window, the fullest first.
    pub fullest: Vec<Usage>,
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
    /// Milliseconds since the last of them was heard.
    pub silent_ms: u64,
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
    /// Over the quota, let through and marked.
    pub marked: Vec<f64>,
    /// Without an identity.
    pub missing_identity: Vec<f64>,
    /// Not counted because the store failed.
    pub store_error: Vec<f64>,
}

/// What the live page shows, once a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The store's time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// What is wrong with the backend; empty if it is ready.
    pub faults: Vec<String>,
    /// What works, but should be fixed.
    pub warnings: Vec<String>,
    /// The policy documents that filters refused in the last minute, a sentence for each domain.
    #[serde(default)]
    pub documents: Vec<String>,
    /// For each domain with several policy documents, which proxies have which one, in a sentence.
    #[serde(default)]
    pub mixed: Vec<String>,
    /// The backend: `memory`, `redis`, `redis-cluster`, `redis-sentinel`.
    pub backend: String,
    /// Calls served per second by all stores and proxies: by this one over the last second.
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
