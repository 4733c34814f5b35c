//! What an operator who looks at a counter learns from calls.

use super::Beyond;
use crate::api::Refused;

/// What calls showed of counters. The rest is read from the backend.
pub trait CallSight: Sync {
    /// The quota that the last reservation of this key named in the window with this number, before
    /// any override.
    fn last(&self, key: &str, number: u64) -> Option<u64>;

    /// The requests beyond the quota lately of the partition with this key.
    fn beyond(&self, beyond: Beyond, key: &str) -> Option<Refused>;

    /// Under which numbers proxies have a document of this domain and this digest in force, in
    /// order; 0 for an embedded one. None, if no proxy has it.
    fn numbers(&self, domain: &str, digest: &str) -> Vec<u64>;

    /// The requests of a policy within the last five minutes that cost `if_missing`.
    fn settled_if_missing(&self, domain: &str, policy: &str) -> u64;
}
