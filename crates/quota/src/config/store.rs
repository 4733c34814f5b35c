//! The section `store`.

use std::fmt;
use std::time::Duration;

use super::duration;
use super::reader::Node;
use crate::protocol::OnFailure;

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

/// Longest token: it is sent with every call.
const MAX_TOKEN: usize = 4096;

pub(super) fn parse(node: &Node<'_>) -> Option<StoreConfig> {
    let mut object = node.object()?;
    let cluster = object.required("cluster", Node::text);
    let timeout = object.optional("timeout", |n| duration::up_to_a_minute(n, "50ms"), || DEFAULT_TIMEOUT);
    let on_failure = object.optional("on_failure", on_failure, || OnFailure::Allow);
    let local_share = object.optional("local_share", share, || DEFAULT_LOCAL_SHARE);
    let token = object.optional("token", |n| token(n).map(Some), || None);
    object.finish();
    Some(StoreConfig {
        cluster: cluster?.into(),
        timeout: timeout?,
        on_failure: on_failure?,
        local_share: local_share?,
        token: token?.map(Box::from),
    })
}

pub(super) fn on_failure(node: &Node<'_>) -> Option<OnFailure> {
    let words = [("allow", OnFailure::Allow), ("deny", OnFailure::Deny), ("local", OnFailure::Local)];
    node.choice(&words)
}

/// Envoy hands a number with a fraction over as a string.
fn share(node: &Node<'_>) -> Option<f64> {
    let decimal = |text: &&str| text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let written = || node.value().as_str().filter(decimal)?.parse().ok();
    match node.value().as_f64().or_else(written) {
        Some(share) if share > 0.0 && share <= 1.0 => Some(share),
        _ => {
            node.fault(format!("must be a number above 0 and at most 1, is {}", node.shown()));
            None
        }
    }
}

/// The alphabet of bearer tokens (`b64token` of RFC 6750). What was written instead is never shown.
fn token<'a>(node: &Node<'a>) -> Option<&'a str> {
    let text = node.text()?;
    node.no_longer_than(text, MAX_TOKEN)?;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/".contains(&b);
    let padded = text.trim_end_matches('=');
    if !padded.is_empty() && padded.bytes().all(allowed) {
        return Some(text);
    }
    node.fault("must be a bearer token: letters, digits and -._~+/, and = only at its end");
    None
}
