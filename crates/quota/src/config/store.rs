//! The object `store`.

use std::time::Duration;

use quotagate_protocol::OnFailure;

use super::reach::{KeyPrefix, Reach, ReachType, Token};
use super::time::UpToAMinute;
use crate::document::{At, Node, NonEmpty, Type, object};

/// How the filter reaches the store, and what happens when it cannot.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreConfig {
    /// Where the counters are.
    pub reach: Reach,
    /// The longest that a request waits for the store: 1 ms to 60 s.
    pub timeout: Duration,
    /// What happens to requests while the store fails, unless their policy says otherwise.
    pub on_failure: OnFailure,
    /// For [`OnFailure::Local`]: the part of a quota that each worker may admit by itself. Above 0,
    /// at most 1.
    pub local_share: f64,
}

object! {
    /// How the filter reaches the store of the counters, and what happens when it cannot.
    Store(StoreFields<'a>) -> StoreConfig {
        /// The longest that a request waits for the store.
        default("50ms") timeout: UpToAMinute = "100ms",
        /// What happens to requests while the store fails, unless their policy says otherwise.
        default("allow") on_failure: OnFailure = "deny",
        /// For `on_failure: local`: the part of a quota that each worker may admit by itself.
        default(0.1) local_share: Fraction = 0.25,
        /// Beside `cluster`: the bearer token that the store checks (`quotagate serve
        /// --token-file`).
        optional token: At<Token>,
        /// Beside `redis`: the file that holds the password of the user in Redis. It is read again
        /// for each connection.
        optional password_file: At<NonEmpty> = "/run/secrets/redis",
        /// Beside `redis`: the first part of every key in Redis; `qg` if it is left out.
        optional prefix: At<KeyPrefix> = "qg",
        + reach: ReachType,
    }
    rule {"not": {"anyOf": [
        {"required": ["cluster", "password_file"]},
        {"required": ["cluster", "prefix"]},
        {"required": ["redis", "token"]}
    ]}}
}

impl StoreFields<'_> {
    fn build(self) -> Option<StoreConfig> {
        Some(StoreConfig {
            reach: self.reach?.with(self.token, self.password_file, self.prefix)?,
            timeout: self.timeout?,
            on_failure: self.on_failure?,
            local_share: self.local_share?,
        })
    }
}

/// A number above 0 and at most 1. Envoy passes a number with a fraction on as a string.
enum Fraction {}

impl Type for Fraction {
    type Out<'a> = f64;

    fn read(node: &Node<'_>) -> Option<f64> {
        match node.decimal() {
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
