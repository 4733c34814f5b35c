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

    /// Whether proxies have a document of this domain and this digest in force.
    fn is_in_force(&self, domain: &str, digest: &str) -> bool;
}
