//! Who makes the changes of a task, from where and why.
//!
//! A change passes through many functions, and every entry in history needs its author. As the
//! author belongs to a request, a task carries it, as it carries a tracing span. A change outside
//! such a task has only the name that its caller gives.

use quotagate_store::server::OperatorRole;
use serde::{Deserialize, Serialize};

use crate::api::{Event, NOBODY};

/// What time does, as an action.
const EXPIRY: &str = "expiry";

tokio::task_local! {
    static AUTHOR: Author;
}

/// Who makes a change, from where and why, as far as the server knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    /// The role of the token. Absent if no named token or trusted proxy says who it is, so that the
    /// name is only what the caller said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<OperatorRole>,
    /// The address that the request came from: an IP address with a port, or `unix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The header that named the operator, if a trusted proxy did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// What the operator did: the method and the path of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// What the caller said as its name (`--by`), beside the name of its token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// Why, as the operator said (`--reason`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Author {
    /// Time, which ends dials, overrides and documents.
    pub(crate) fn time() -> Self {
        Self { action: Some(EXPIRY.to_owned()), ..Self::default() }
    }

    /// A store that publishes the files of its folder.
    pub(crate) fn folder() -> Self {
        Self { action: Some("folder".to_owned()), ..Self::default() }
    }

    /// Makes changes as this author.
    pub async fn makes<F: Future>(self, changes: F) -> F::Output {
        AUTHOR.scope(self, changes).await
    }
}

impl Event {
    /// A change by the author of this task, or else by the caller with this name.
    pub(crate) fn new(at_ms: u64, by: &str, done: String) -> Self {
        Self {
            at_ms,
            by: by.to_owned(),
            done,
            author: AUTHOR.try_with(Author::clone).unwrap_or_default(),
            policy: None,
            partition: None,
            document: None,
            before: None,
            after: None,
        }
    }

    /// What time did.
    pub(crate) fn ended(at_ms: u64, done: String) -> Self {
        Self { author: Author::time(), ..Self::new(at_ms, NOBODY, done) }
    }

    /// Of a policy, and of a partition of it.
    #[must_use]
    pub(crate) fn of(mut self, policy: &str, partition: Option<&str>) -> Self {
        self.policy = Some(policy.to_owned());
        self.partition = partition.map(str::to_owned);
        self
    }

    /// With the values before and after it, as JSON.
    #[must_use]
    pub(crate) fn values(mut self, before: Option<&[u8]>, after: Option<&[u8]>) -> Self {
        let read = |value: Option<&[u8]>| serde_json::from_slice(value?).ok();
        (self.before, self.after) = (read(before), read(after));
        self
    }
}
