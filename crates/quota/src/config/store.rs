//! The section `store`.

use std::time::Duration;

use super::duration;
use super::reader::Node;

/// How the store is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The Envoy cluster of the store.
    pub cluster: Box<str>,
    /// The longest that a request waits for quota: 1 ms to 60 s.
    pub timeout: Duration,
    /// What becomes of requests while the store fails.
    pub on_failure: OnFailure,
}

/// What becomes of a request while the store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// It is admitted, without quota headers.
    Allow,
    /// It is answered with 503.
    Deny,
}

const DEFAULT_TIMEOUT: Duration = Duration::from_millis(50);

pub(super) fn parse(node: &Node<'_>) -> Option<StoreConfig> {
    let mut object = node.object()?;
    let cluster = object.required("cluster", Node::text);
    let timeout = object.optional("timeout", duration::timeout, || DEFAULT_TIMEOUT);
    let on_failure = object.optional(
        "on_failure",
        |n| n.choice(&[("allow", OnFailure::Allow), ("deny", OnFailure::Deny)], &["local"]),
        || OnFailure::Allow,
    );
    object.later(&["local_share", "token"]);
    object.finish();
    Some(StoreConfig { cluster: cluster?.into(), timeout: timeout?, on_failure: on_failure? })
}
