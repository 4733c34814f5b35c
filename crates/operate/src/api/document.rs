//! Published documents.

use quotagate_protocol::dials::DocumentVersion;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::domain::DocumentsInForce;
use super::{is_false, is_zero};

/// A document that an operator published, or the withdrawal of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentRecord {
    /// Its number: 1, 2, ... in each domain.
    pub number: u64,
    /// Whom it is for.
    #[serde(default, skip_serializing_if = "DocumentKind::is_policies")]
    pub kind: DocumentKind,
    /// Its digest; empty for a withdrawal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// How many policies it has, or rules.
    #[serde(default)]
    pub policies: u64,
    /// The operator who published it.
    pub by: String,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// What the operator noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The number whose content it has again, if it is a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_to: Option<u64>,
    /// Which share of the proxies takes it up first, in percent. Absent: all do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// When its time is over, in milliseconds since the Unix epoch. Then the one before is in force
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// Whether a store published it that has it in its folder.
    #[serde(default, skip_serializing_if = "is_false")]
    pub of_folder: bool,
}

/// Whom a published document is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DocumentKind {
    /// Filters: it is a policy document.
    #[default]
    Policies,
    /// Rate limit services: it is a rule file.
    Rules,
}

impl DocumentKind {
    const fn is_policies(&self) -> bool {
        matches!(self, Self::Policies)
    }

    /// The kind of a document as operators send it: a rule file is a text.
    pub fn of(document: &Value) -> Self {
        if document.is_string() { Self::Rules } else { Self::Policies }
    }

    /// What it is called in a sentence.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Policies => "a policy document",
            Self::Rules => "a rule file of the rate limit service",
        }
    }
}

impl DocumentRecord {
    /// Whether it is for a share of the proxies or for a time.
    pub fn is_limited(&self) -> bool {
        self.percent.is_some() || self.until_ms.is_some()
    }

    /// Whether its time is over at this moment.
    pub fn is_over(&self, now_ms: u64) -> bool {
        self.until_ms.is_some_and(|until| until <= now_ms)
    }

    /// Whether it withdraws what was published.
    pub fn is_withdrawal(&self) -> bool {
        self.digest.is_empty()
    }

    /// Why nothing of this kind can be published while this is in force, if it is of the other one:
    /// those that it is for would lose it unseen.
    pub fn excludes(&self, domain: &str, kind: DocumentKind) -> Option<String> {
        (!self.is_withdrawal() && self.kind != kind).then(|| {
            format!(
                "{domain} has {} published, as number {}, and this is {}: withdraw that one first",
                self.kind.words(),
                self.number,
                kind.words()
            )
        })
    }

    /// As proxies hear of it: they treat a rule file as a withdrawal.
    pub fn version(&self) -> DocumentVersion {
        let digest = match self.kind {
            DocumentKind::Policies => self.digest.clone(),
            DocumentKind::Rules => String::new(),
        };
        DocumentVersion { number: self.number, digest }
    }
}

/// The published documents of a domain, and what its proxies made of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedDocuments {
    /// The domain.
    pub domain: String,
    /// Whether they survive a restart of this store.
    pub durable: bool,
    /// The last 64, the newest first. The first one is published, unless it is a withdrawal. If it
    /// is for a share of the proxies, the others have the one after it.
    pub documents: Vec<DocumentRecord>,
    /// Why nobody knows which one is published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// Whether the record of what is published cannot be read. Then `incomplete` says what helps.
    #[serde(default, skip_serializing_if = "is_false")]
    pub lost: bool,
    /// What proxies have in force.
    pub in_force: DocumentsInForce,
    /// How many of the live proxies have what is published.
    #[serde(default)]
    pub taken_up: TakenUp,
    /// The same by proxy and worker, those that are behind first.
    #[serde(default)]
    pub proxies: Vec<ProxyDocument>,
    /// The live proxies that have been silent for a minute.
    #[serde(default)]
    pub silent: Vec<SilentDocument>,
    /// How many rows of `proxies` and `silent` are left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// The rate limit services whose rules have the domain, those that are behind first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceRules>,
    /// What proxies refuse, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// How many live proxies have the published document, or their own ones while none is published. A
/// proxy is live if its own document says `live: true` and it reported within the last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenUp {
    /// Those that have it in all of their workers.
    pub have: u64,
    /// All of them.
    pub live: u64,
    /// When the last worker of those that have it took it up, as [`WorkerDocument::since_ms`];
    /// absent if none has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
}

/// The workers of a proxy that have one document. If its workers have several, a proxy has several
/// rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyDocument {
    /// The name of its process: 16 hexadecimal digits.
    pub proxy: String,
    /// The digest of the document.
    pub digest: String,
    /// Its number, if it is a published one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub number: u64,
    /// Whether its own document says `live: true`.
    pub live: bool,
    /// What that means.
    pub state: DocumentState,
    /// The number of the published document that it refuses; 0 for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refuses: u64,
    /// The workers that have it: 128 at most.
    pub workers: Vec<WorkerDocument>,
}

/// The rules of the domain that a rate limit service has in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRules {
    /// The name of its process: 16 hexadecimal digits.
    pub service: String,
    /// The name of its host.
    pub host: String,
    /// The digest of the published rule file; empty for its own rules.
    pub digest: String,
    /// The number of that file; 0 for its own rules.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub number: u64,
    /// Whether it takes published rule files up, because it runs with `--published`.
    pub follows: bool,
    /// What that means.
    pub state: DocumentState,
    /// The number of the rule file that it refuses; 0 for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refuses: u64,
    /// Why it does not have what is published, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub complaint: String,
    /// Since when it has them, as [`WorkerDocument::since_ms`].
    pub since_ms: u64,
}

/// A worker that has some document in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerDocument {
    /// Its index in its process.
    pub worker: u32,
    /// Since when, to the second, in milliseconds since the Unix epoch. The worker says for how
    /// long; the moment is by the clock of Redis, or of the store with `memory:`.
    pub since_ms: u64,
}

/// What the document of a worker is. Those to look at come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DocumentState {
    /// Another one than the published one.
    Behind,
    /// Nobody knows what is published.
    Unknown,
    /// The published one.
    Published,
    /// The own one of the proxy, or of the service, because it is not live or nothing is published.
    Own,
}

/// A live proxy that does not report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilentDocument {
    /// The name of its process.
    pub proxy: String,
    /// The digest of the document that it reported last.
    pub digest: String,
    /// Its number, if it is a published one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub number: u64,
    /// When, as [`WorkerDocument::since_ms`].
    pub last_ms: u64,
}

/// A published document with its content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DocumentText {
    /// The domain.
    pub domain: String,
    /// Who published it, when.
    #[serde(flatten)]
    pub record: DocumentRecord,
    /// The document, without `store`, `digest_key` and `live`, which each proxy's own document
    /// says. A rule file is a text.
    pub document: Value,
}

/// Publishes a document for the proxies of its domain whose own document says `live: true`, or a
/// rule file for the rate limit services that follow published rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishDocument {
    /// The domain: that of the document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The document, an object, or the rule file, a text; or else
    /// [`rollback_to`](Self::rollback_to).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Value>,
    /// The number of an earlier document, whose content is published again. That of a document for
    /// a share of the proxies or for a time promotes it: all proxies take it up, for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_to: Option<u64>,
    /// The number of the last document that the operator has seen; 0 for none. If another one was
    /// published since, the store refuses this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Publishes it for this share of the proxies, 1 to 99 percent. Only with a policy document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// Publishes it for so many milliseconds. Only with a document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// A note for those who look at the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The operator who publishes it.
    pub by: String,
}

/// Withdraws the published document: proxies go back to their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WithdrawDocument {
    /// The domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// See [`PublishDocument::after`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// A note for those who look at the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The operator who withdraws it.
    pub by: String,
}
