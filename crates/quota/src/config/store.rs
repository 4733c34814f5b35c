//! The section `store`.

use std::fmt;
use std::time::Duration;

use super::duration;
use super::policy::OnFailure;
use super::reader::Node;

/// How the store is reached.
#[derive(Clone, PartialEq)]
pub struct StoreConfig {
    /// The Envoy cluster of the store.
    pub cluster: Box<str>,
    /// The longest that a request waits for quota: 1 ms to 60 s.
    pub timeout: Duration,
    /// What becomes of requests while the store fails, where their policy does not say so itself.
    pub on_failure: OnFailure,
    /// For [`OnFailure::Local`]: the part of a quota that each worker may admit by itself, more than 0 and at most 1.
    pub local_share: f64,
    /// The bearer token that the store checks.
    pub token: Option<Box<str>>,
}

impl fmt::Debug for StoreConfig {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, timeout, on_failure, local_share, token: _ } = self;
        write!(f, "StoreConfig({cluster}, {timeout:?}, {on_failure:?}, {local_share})")
    }
}

const DEFAULT_LOCAL_SHARE: f64 = 0.1;
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
    Some(StoreConfig {
        cluster: cluster?.into(),
        timeout: timeout?,
        on_failure: on_failure?,
        local_share: DEFAULT_LOCAL_SHARE,
        token: None,
    })
}
