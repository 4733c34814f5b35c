//! Domains and their policies.

use quotagate_protocol::dials::{DocumentOverrides, PartitionEntry};
use quotagate_protocol::{Kind, Mode, OnFailure};
use serde::{Deserialize, Serialize};

use super::dial::DialEntry;
use super::{is_false, is_zero};

/// The state of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Board {
    /// The domain.
    pub domain: String,
    /// Its version of dials and overrides; 0 before the first change.
    pub version: u64,
    /// Whether dials and overrides survive a restart of this store.
    pub durable: bool,
    /// Every policy that a proxy has reported, by name.
    pub policies: Vec<PolicyInfo>,
    /// The dials in force.
    pub dials: Vec<DialEntry>,
    /// How many overrides there are.
    pub overrides: u64,
    /// Why it may be old, or not all: a part of the backend is away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// A policy as configured in its filters, without dials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyInfo {
    /// Its name.
    pub name: String,
    /// Units per window of a partition that no tier and no override applies to.
    pub quota: u64,
    /// The kind of its window; absent if it is fixed.
    #[serde(default, skip_serializing_if = "Kind::is_fixed")]
    pub kind: Kind,
    /// Length of its window in seconds; 0 for a calendar window.
    pub window_s: u32,
    /// Whether each partition's window has its own offset.
    pub stagger: bool,
    /// Whether it refuses.
    pub mode: Mode,
    /// What becomes of its requests while the store fails.
    pub on_failure: OnFailure,
    /// What it counts by. Empty: one counter for everybody. Absent: not reported yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_by: Option<Vec<PartitionEntry>>,
    /// Whether a tier or `quota_from` can give a partition another quota.
    #[serde(default)]
    pub tiers: bool,
    /// What the overrides of its document give some partitions.
    #[serde(default, skip_serializing_if = "DocumentOverrides::is_none")]
    pub overrides: DocumentOverrides,
    /// Whether the real cost of a request replaces the reserved one, so that a counter may have
    /// debt.
    #[serde(default)]
    pub settles: bool,
    /// When a proxy last reported it, in milliseconds since the Unix epoch; may be minutes old.
    pub seen_ms: u64,
    /// The digest of the document that says so; empty if the proxies state none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// Whether no proxy has reported it for 15 minutes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gone: bool,
    /// The same policy in other documents that proxies reported lately, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Self>,
}

impl PolicyInfo {
    /// The policy in every document that proxies reported lately, the latest first.
    pub fn forms(&self) -> impl Iterator<Item = &Self> + Clone {
        std::iter::once(self).chain(&self.also)
    }

    /// Whether two documents say the same of the policy, as far as proxies have reported it.
    fn is_as(&self, other: &Self) -> bool {
        let plain = |one: &Self, partition_by| Self {
            partition_by,
            seen_ms: 0,
            digest: String::new(),
            gone: false,
            also: Vec::new(),
            ..one.clone()
        };
        let both = self.partition_by.as_ref().zip(other.partition_by.as_ref());
        both.is_none_or(|(one, other)| one == other) && plain(self, None) == plain(other, None)
    }
}

/// A domain that filters have reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainInfo {
    /// The domain.
    pub domain: String,
    /// How many of its policies are known.
    pub policies: u64,
    /// How many dials are in force.
    pub dials: u64,
    /// How many overrides there are.
    pub overrides: u64,
    /// Milliseconds since the last report that this store knows. It sees a report to another store
    /// up to ten minutes late.
    pub silent_ms: u64,
    /// The documents in force.
    #[serde(default)]
    pub in_force: DocumentsInForce,
    /// Faults of the domain, in sentences: what the backend lost, and what document proxies refuse.
    /// Of a domain whose proxies have none in force, nothing else is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
    /// Why it may be old, or others missing: a part of the backend is away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// The policy documents that the proxies of a domain reported within the last minute, to any store.
/// A process may have several: of several filters, or of routes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentsInForce {
    /// The proxies that reported one.
    pub proxies: u64,
    /// The documents, those of the most proxies first.
    pub documents: Vec<DocumentInfo>,
    /// The policies that differ between the documents, and those that not all of them have. Empty
    /// if all proxies have the same documents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differ: Vec<String>,
    /// Those of the proxies that take published documents up.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub live: u64,
    /// The proxies that have been silent for a minute, and reported to this store within ten that
    /// they take published documents up. 0 if too many proxies report to other stores to tell.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub silent: u64,
}

/// A policy document that proxies report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentInfo {
    /// Its digest.
    pub digest: String,
    /// Its number, if it is a published one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub number: u64,
    /// The proxies that reported it.
    pub proxies: u64,
    /// Their requests in the last five minutes. One counts for each policy that applied to it.
    #[serde(default)]
    pub requests: u64,
    /// How many of those were refused.
    #[serde(default)]
    pub refused: u64,
}

impl DocumentsInForce {
    /// Whether a proxy has the document of this digest.
    pub fn has(&self, digest: &str) -> bool {
        self.documents.iter().any(|document| document.digest == digest)
    }

    /// Whether some proxies lack a document that others have.
    pub fn differs(&self) -> bool {
        self.documents.iter().any(|document| document.proxies < self.proxies)
    }

    /// Adds which of these policies the documents do not agree on, if proxies differ.
    #[must_use]
    pub fn compared(mut self, policies: &[PolicyInfo]) -> Self {
        if self.differs() {
            let agree = |policy: &&PolicyInfo| {
                let mut forms = self
                    .documents
                    .iter()
                    .map(|document| policy.forms().find(|form| form.digest == document.digest));
                let first = forms.next().flatten();
                first.is_some_and(|first| {
                    forms.all(|form| form.is_some_and(|form| form.is_as(first)))
                })
            };
            let reported = |policy: &&PolicyInfo| policy.forms().any(|form| self.has(&form.digest));
            let differ = policies.iter().filter(reported).filter(|policy| !agree(policy));
            self.differ = differ.map(|policy| policy.name.clone()).collect();
        }
        self
    }

    /// That some proxies have another document, in a sentence.
    pub fn sentence(&self, domain: &str) -> Option<String> {
        if !self.differs() {
            return None;
        }
        let all = self.proxies;
        let of = |DocumentInfo { digest, number, proxies, .. }: &DocumentInfo| {
            let verb = if *proxies == 1 { "has" } else { "have" };
            let number = if *number == 0 { String::new() } else { format!(" (number {number})") };
            format!("{proxies} of {all} proxies {verb} {digest}{number}")
        };
        // The one that fewer proxies have is the one to look at.
        let documents: Vec<String> = self.documents.iter().rev().map(of).collect();
        let differ = match self.differ.as_slice() {
            [] => "they say the same of every policy".to_owned(),
            differ => format!("they differ in {}", differ.join(", ")),
        };
        Some(format!(
            "{domain} has {} documents: {}; {differ}",
            documents.len(),
            documents.join(", ")
        ))
    }
}

/// Removes a domain that no filter reports any more: its policies and its name. Counters and
/// history stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetDomain {
    /// The domain.
    pub domain: String,
    /// The operator who removes it.
    pub by: String,
}
