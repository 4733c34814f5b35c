//! The JSON of the admin address, shared by the server, the commands and their tests. The live page
//! uses the same JSON.
//!
//! All paths begin with [`ROOT`]. If the store has a token, every path requires it as
//! `Authorization: Bearer ..`. A change requires `Content-Type: application/json`, so that a page
//! of another site cannot send one. Errors are answered as [`ErrorReply`].
//!
//! `domain` may be left out if the store knows only one. A change may have a `reason`, for history.

mod dial;
mod document;
mod domain;
mod overrides;
mod top;
mod usage;

pub use quotagate_store::control::MAX_HISTORY;
pub use quotagate_store::server::STORE_HEADER;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::change::author::Author;

pub use self::dial::{ClearDial, DialEntry, SetDial};
pub use self::document::{
    DocumentKind, DocumentRecord, DocumentState, DocumentText, ProxyDocument, PublishDocument,
    PublishedDocuments, ServiceRules, SilentDocument, TakenUp, WithdrawDocument, WorkerDocument,
};
pub use self::domain::{
    Board, DocumentInfo, DocumentsInForce, DomainInfo, ForgetDomain, PolicyInfo,
};
pub use self::overrides::{Allow, ClearOverride, OverrideEntry, SetOverride};
pub use self::top::{
    MinuteRequests, PartitionSlots, Publisher, PublisherKind, Refused, SilentProxy, Top, Uncounted,
};
pub use self::usage::{
    PartiesPage, PartyUsage, PatternName, ProxySlots, QuotaFrom, Release, Reset, SlotsHeld, Usage,
    UsageReply, WindowSpan,
};

/// Whether JSON leaves this truth out.
pub(crate) const fn is_false(truth: &bool) -> bool {
    !*truth
}

/// Whether JSON leaves this number out.
pub(crate) const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The first part of every path.
pub const ROOT: &str = "/v1/";
/// `GET`: [`Board`]s of the domain asked for, or of all, as a list.
pub const BOARDS: &str = "/v1/boards";
/// `PUT` [`SetDial`], `DELETE` [`ClearDial`]: [`Changed`].
pub const DIALS: &str = "/v1/dials";
/// `GET` `?domain=&policy=&limit=`: [`OverrideEntry`]s, as a list; without a limit, all of them.
/// `PUT` [`SetOverride`], `DELETE` [`ClearOverride`]: [`Changed`].
pub const OVERRIDES: &str = "/v1/overrides";
/// `GET` `?domain=&policy=&partition=&by=&since_ms=&limit=`: [`Event`]s, the newest first, as a
/// list.
pub const HISTORY: &str = "/v1/history";
/// `GET` `?domain=`: [`PublishedDocuments`]. `POST` [`PublishDocument`], `DELETE`
/// [`WithdrawDocument`]: [`Changed`]; 409 if another one was published meanwhile.
pub const DOCUMENTS: &str = "/v1/documents";
/// `GET` `?domain=&number=`: [`DocumentText`]; without a number, of the one in force.
pub const DOCUMENT_TEXT: &str = "/v1/documents/text";
/// `GET` `?domain=&partition=&last=`: [`UsageReply`]; 404 if no policy counts that party now. With
/// `last=true`, of the last windows that have ended.
pub const USAGE: &str = "/v1/usage";
/// `GET` `?domain=&policy=&from=&last=`: [`PartiesPage`].
pub const PARTIES: &str = "/v1/parties";
/// `POST` [`Reset`]: [`Changed`]; 404 if there is no counter.
pub const RESET: &str = "/v1/reset";
/// `POST` [`Release`]: [`Changed`]; 404 if nobody holds a slot.
pub const RELEASE: &str = "/v1/release";
/// `GET` `?domain=&policy=&limit=`: [`Top`].
pub const TOP: &str = "/v1/top";
/// `GET`: [`DomainInfo`]s, as a list. `DELETE` [`ForgetDomain`]: [`Changed`]; 409 while the domain
/// is in use.
pub const DOMAINS: &str = "/v1/domains";
/// `GET` `?domain=&policy=`: [`MinuteRequests`].
pub const REQUESTS: &str = "/v1/requests";
/// `GET`: server-sent events, one per second. The first one, `whole`, is everything that the live
/// page shows as a JSON object. Each further one, `changes`, is a JSON merge patch (RFC 7396) of
/// that. A listener who misses some gets `whole` again.
pub const EVENTS: &str = "/v1/events";

/// Longest name of the operator who makes a change, in bytes; a longer name is cut.
pub const MAX_BY: usize = 128;
/// Longest reason of a change, in bytes; a longer one is cut.
pub const MAX_REASON: usize = 256;
/// Why a rule file is not published for a share, after the name of the field or flag.
pub const NO_SHARE_OF_RULES: &str = "is for policy documents: nothing divides the rate limit \
    services of a domain, which all take a rule file up. Leave it out, or publish the file for a time";
/// Who makes what time does: a dial or an override ends.
pub const NOBODY: &str = "-";
/// Longest time of a dial or an override: 366 days.
pub const MAX_FOR_MS: u64 = 366 * 24 * 60 * 60 * 1000;
/// Most partitions that a search for a party finds.
pub const MAX_FOUND: usize = 100;

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The domain that was changed.
    pub domain: String,
    /// The version of dials and overrides after the change.
    pub version: u64,
    /// Whether the change survives a restart of this store.
    pub durable: bool,
    /// What was done, in a sentence.
    pub done: String,
    /// Why the change refuses nobody, or less than it seems to, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// The partition that was changed, encoded as in keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
}

/// A change in the history of a domain, by an operator or by time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The operator who made it: the name of the token, or that which a trusted proxy gave. Without
    /// a [`role`](Author::role), only what the caller said; [`NOBODY`] if time made it.
    pub by: String,
    /// What was done, in a sentence.
    pub done: String,
    /// More about who made it.
    #[serde(flatten)]
    pub author: Author,
    /// The policy that was changed, or `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The partition that was changed, encoded as in keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The number of the document that was published then; 0 if none was, so that the embedded ones
    /// decided. Absent if nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<u64>,
    /// What was there before; absent if nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// What is there now; absent if nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

impl Event {
    /// Whether it changed this party: all of its entries are in the partition.
    pub fn is_about(&self, party: &str) -> bool {
        let own = || self.partition.iter().flat_map(|partition| partition.split(','));
        party.split(',').all(|entry| own().any(|own| own == entry))
    }
}

/// An error: what is wrong, and how to fix it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// What is wrong and how to fix it, in a sentence.
    pub error: String,
    /// The wrong field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The known names for that field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<String>,
}
