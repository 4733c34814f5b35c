//! The object `store`.

use std::fmt;
use std::time::Duration;

use super::time::UpToAMinute;
use crate::document::{Node, NonEmpty, Type, object};
use crate::protocol::OnFailure;

/// How the filter reaches the store.
#[derive(Clone, PartialEq)]
pub struct StoreConfig {
    /// The Envoy cluster of the store.
    pub cluster: Box<str>,
    /// The longest that a request waits for the store: 1 ms to 60 s.
    pub timeout: Duration,
    /// What happens to requests while the store fails, unless their policy says otherwise.
    pub on_failure: OnFailure,
    /// For [`OnFailure::Local`]: the part of a quota that each worker may admit by itself. Above 0,
    /// at most 1.
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

/// Longest token, in bytes. The filter sends it with every call.
const MAX_TOKEN: usize = 4096;

object! {
    /// How the filter reaches the store of the counters, and what happens when it cannot.
    Store(StoreFields<'a>) -> StoreConfig {
        /// The name of the Envoy cluster of `quotagate serve`.
        required cluster: NonEmpty = "quota_store",
        /// The longest that a request waits for the store.
        default("50ms") timeout: UpToAMinute = "100ms",
        /// What happens to requests while the store fails, unless their policy says otherwise.
        default("allow") on_failure: OnFailure = "deny",
        /// For `on_failure: local`: the part of a quota that each worker may admit by itself.
        default(0.1) local_share: Share = 0.25,
        /// The bearer token that the store checks (`quotagate serve --token-file`).
        optional token: Token,
    }
}

impl StoreFields<'_> {
    fn build(self) -> Option<StoreConfig> {
        Some(StoreConfig {
            cluster: self.cluster?.into(),
            timeout: self.timeout?,
            on_failure: self.on_failure?,
            local_share: self.local_share?,
            token: self.token?.map(Box::from),
        })
    }
}

/// A number above 0 and at most 1. Envoy passes a number with a fraction on as a string.
enum Share {}

impl Type for Share {
    type Out<'a> = f64;

    fn read(node: &Node<'_>) -> Option<f64> {
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

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        serde_json::json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1})
    }
}

/// A bearer token (`b64token` of RFC 6750). No message shows the text.
enum Token {}

impl Type for Token {
    type Out<'a> = &'a str;

    fn read<'a>(node: &Node<'a>) -> Option<&'a str> {
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

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        serde_json::json!({"type": "string", "pattern": "^[A-Za-z0-9._~+/-]+=*$", "maxLength": MAX_TOKEN})
    }
}
