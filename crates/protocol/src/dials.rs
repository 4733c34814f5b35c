//! `POST /v1/telemetry?domain=..`: a worker reports what it counted, and the store answers with the
//! dials that operators have set for its domain.
//!
//! A dial overrides fields of a policy until an operator clears it or it expires. For each field,
//! the dial of a policy wins over the dial of `*`.

use serde::{Deserialize, Serialize};

use super::window::share_of;
use super::{Kind, Mode, OnFailure, is_default, lenient};

/// The path of the call; its query is `domain=<domain>`. Its body is a [`Report`], or empty.
pub const TELEMETRY_PATH: &str = "/v1/telemetry";
/// The path on which a worker asks for the published document of its domain; its query is
/// `domain=<domain>&digest=<digest>&number=<number>` with the [digest](DOCUMENT_DIGEST) of the
/// document that it has, and the number that the store named. The reply is a [`DocumentReply`].
pub const DOCUMENT_PATH: &str = "/v1/document";
/// Largest published document, in bytes of JSON. A reply with it is at most
/// [`MAX_BODY`](super::MAX_BODY) bytes long.
pub const MAX_DOCUMENT: usize = super::MAX_BODY - 1024;
/// Largest reply in bytes: a filter reads no more, so a store sends no more.
pub const MAX_REPLY: usize = 64 * 1024;
/// The policy name of a dial for all policies.
pub const ALL_POLICIES: &str = "*";
/// Largest report, in bytes of JSON.
pub const MAX_REPORT: usize = 12 * 1024;
/// Most counters that a report names as refused.
pub const MAX_REFUSALS: usize = 8;
/// Most bytes of JSON that [`PolicyReport::partition_by`] takes, of one policy and of all policies
/// of a report together.
pub const MAX_PARTITION_BY: usize = 2048;
/// Longest key of a counter that a report names, in bytes.
pub const MAX_REPORTED_KEY: usize = 384;
/// The length of [`Report::proxy`].
pub const PROXY_ID: usize = 16;
/// The length of [`Report::digest`].
pub const DOCUMENT_DIGEST: usize = 12;
/// Longest text of a fault in a report, in bytes.
pub const MAX_FAULT: usize = 200;

/// The dials of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DialsReply {
    /// Grows with each change of a dial or of a runtime override; 0 before the first.
    pub version: u64,
    /// The dials in force: at most one for each policy, and one for [`ALL_POLICIES`].
    pub dials: Vec<Dial>,
    /// The policies with a runtime override of at least one partition, and [`ALL_POLICIES`] if an
    /// override holds for a party in all of them. The store may grant a cost above their quota.
    #[serde(default)]
    pub overridden: Vec<String>,
    /// The published document. Absent if the store does not know it now, or is of a version that
    /// has no published documents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<DocumentVersion>,
}

/// Which document is published in a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentVersion {
    /// Its number, which grows with each change, also with a withdrawal; 0 if there is no record of
    /// any. A worker that has a published document then keeps it, because the record was lost.
    pub number: u64,
    /// Its [digest](DOCUMENT_DIGEST); empty if none is published, or the last one was withdrawn.
    /// Then the embedded documents decide.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
}

/// The reply to a worker that asks for the published document, which is a `D`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentReply<D> {
    /// As [`DocumentVersion::number`].
    pub number: u64,
    /// As [`DocumentVersion::digest`].
    #[serde(default)]
    pub digest: String,
    /// The document. Absent if the worker has it, or if none is published.
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    pub document: Option<D>,
}

/// The fields of a policy that a dial sets. One that is absent stays as configured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DialFields {
    /// Whether it refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Whom it refuses although its mode is shadow. Part of the mode: only with a mode, which is
    /// [`Mode::Shadow`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforced_for: Option<EnforcedShare>,
    /// Its quota, 0 to [`MAX_UNITS`](super::MAX_UNITS); a dial of [`ALL_POLICIES`] has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// What happens to its requests while the store fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
}

impl DialFields {
    /// Whether it sets no field.
    pub const fn is_empty(&self) -> bool {
        self.mode.is_none() && self.quota.is_none() && self.on_failure.is_none()
    }

    /// The mode for this partition, if a mode is set.
    pub fn mode_of(&self, partition: &str) -> Option<Mode> {
        let is_enforced = self.enforced_for.as_ref().is_some_and(|of| of.has(partition));
        if is_enforced { Some(Mode::Enforce) } else { self.mode }
    }

    /// These fields, and those of `other` that are absent here.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let is_own = self.mode.is_some();
        Self {
            mode: self.mode.or(other.mode),
            enforced_for: if is_own { self.enforced_for } else { other.enforced_for },
            quota: self.quota.or(other.quota),
            on_failure: self.on_failure.or(other.on_failure),
        }
    }

    /// These fields, except those that `other` sets, too.
    #[must_use]
    pub fn without(self, other: &Self) -> Self {
        Self {
            mode: self.mode.filter(|_| other.mode.is_none()),
            enforced_for: self.enforced_for.filter(|_| other.mode.is_none()),
            quota: self.quota.filter(|_| other.quota.is_none()),
            on_failure: self.on_failure.filter(|_| other.on_failure.is_none()),
        }
    }
}

/// The partitions for which a policy in mode shadow refuses all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnforcedShare {
    /// How many of a hundred partitions, 0 to 100. The digest of a partition decides, so it is the
    /// same in each proxy and policy, and a greater share keeps those of a smaller one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub percent: u8,
    /// Partitions by name, encoded as in keys: every one that contains all entries of one of these,
    /// at most [`MAX_NAMED`](Self::MAX_NAMED).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
}

impl EnforcedShare {
    /// Most names.
    pub const MAX_NAMED: usize = 32;
    /// Most bytes of all names.
    pub const MAX_BYTES: usize = 2048;

    /// Whether all values are within their bounds.
    pub fn is_sound(&self) -> bool {
        let bytes: usize = self.only.iter().map(String::len).sum();
        self.percent <= 100
            && (self.percent > 0 || !self.only.is_empty())
            && self.only.len() <= Self::MAX_NAMED
            && bytes <= Self::MAX_BYTES
    }

    /// Whether a partition is one of them.
    pub fn has(&self, partition: &str) -> bool {
        let contains = |party: &String| {
            party.split(',').all(|entry| partition.split(',').any(|own| own == entry))
        };
        share_of(partition) < u64::from(self.percent) || self.only.iter().any(contains)
    }
}

/// The dial of one policy, or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dial {
    /// The name of a policy, or [`ALL_POLICIES`].
    pub policy: String,
    /// What it sets.
    #[serde(flatten)]
    pub fields: DialFields,
    /// Milliseconds from now until it expires. Absent if it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
}

/// The telemetry of a worker. The store shows it to operators, and decides by [`Self::proxy`] which
/// of two published documents it names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The [version of the protocol](super::PROTOCOL) that the worker speaks; 0 if it states none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub protocol: u32,
    /// The version of the worker's build; empty if it states none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build: String,
    /// The process of the worker, which all of its workers state: [`PROXY_ID`] random hexadecimal
    /// digits; empty if it states none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub proxy: String,
    /// The digest of the policy document in force: [`DOCUMENT_DIGEST`] hexadecimal digits; empty if
    /// none is in force, or if the worker states none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// The number of that document, if it is a published one; 0 for the embedded document.
    #[serde(default, skip_serializing_if = "is_default")]
    pub number: u64,
    /// For how many seconds the worker has had that document in force, under that number.
    #[serde(default, skip_serializing_if = "is_default")]
    pub in_force_s: u64,
    /// Whether the worker takes published documents up, because its embedded document says
    /// `live: true`. Such a worker reports without traffic, too.
    #[serde(default, skip_serializing_if = "is_default")]
    pub live: bool,
    /// Which of the workers of its process it is.
    #[serde(default, skip_serializing_if = "is_default")]
    pub worker: u32,
    /// Every policy of its configuration, those with `mode: off` included. A worker with more than
    /// 64 reports some of them at a time. A store leaves out those that it cannot read.
    #[serde(deserialize_with = "lenient::items")]
    pub policies: Vec<PolicyReport>,
    /// The counters that the worker refused most often without a call since its last report, at
    /// most [`MAX_REFUSALS`].
    #[serde(default, deserialize_with = "lenient::items")]
    pub refused: Vec<Refusals>,
    /// The same of the counters for which it let requests through, because their policy is in
    /// shadow mode or marks.
    #[serde(default, deserialize_with = "lenient::items", skip_serializing_if = "Vec::is_empty")]
    pub would_refuse: Vec<Refusals>,
    /// The document that was refused; absent if the worker runs the one that it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong_document: Option<RefusedDocument>,
}

/// A policy document that a filter refused because it has faults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedDocument {
    /// Its first fault: at most [`MAX_FAULT`] characters of printable ASCII.
    #[serde(default)]
    pub fault: String,
    /// The number of its faults.
    #[serde(default)]
    pub faults: u32,
    /// Whether the last good document stays in force. Otherwise none is, and `on_failure` decides
    /// every request.
    #[serde(default)]
    pub keeps_last_good: bool,
    /// The number of the document, if it was a published one; 0 for the embedded document.
    #[serde(default, skip_serializing_if = "is_default")]
    pub number: u64,
}

/// A policy as its configuration says, dials left out, and its requests since the last report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyReport {
    /// Its name.
    pub name: String,
    /// Units per window, for a partition without another quota.
    pub quota: u64,
    /// The kind of its window. Left out if it is fixed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kind: Kind,
    /// Length of its window in seconds; 0, which is left out, for a calendar window.
    #[serde(default, skip_serializing_if = "is_default")]
    pub window_s: u32,
    /// Whether each partition's window is shifted by a time of its own.
    pub stagger: bool,
    /// Whether it refuses.
    pub mode: Mode,
    /// What happens to its requests while the store fails.
    pub on_failure: OnFailure,
    /// The entries of `partition_by`. Empty: one counter for all requests. Absent: this report
    /// leaves them out, since a worker with many policies reports some of them at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_by: Option<Vec<PartitionEntry>>,
    /// Whether a tier or `quota_from` can give a partition another quota.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tiers: bool,
    /// What the overrides of its document give some partitions.
    #[serde(default, skip_serializing_if = "DocumentOverrides::is_none")]
    pub overrides: DocumentOverrides,
    /// Whether the real cost of a request replaces the reserved one, so that a counter may have
    /// debt.
    #[serde(default, skip_serializing_if = "is_default")]
    pub settles: bool,
    /// Requests that it counted and that were let through.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub admitted: u64,
    /// Requests that it refused.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
    /// Requests that it would have refused outside shadow mode.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub shadow_refused: u64,
    /// Requests that it marked.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub marked: u64,
    /// Requests without an identity.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missing_identity: u64,
    /// Requests that it could not count, since the store failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub store_error: u64,
    /// Of the admitted requests, those that cost `if_missing`, because their responses did not say
    /// the cost or broke off.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub settled_if_missing: u64,
}

/// What the `overrides` of a policy document give the partitions that they name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DocumentOverrides {
    /// There are none.
    #[default]
    None,
    /// Quotas of their own.
    Quotas,
    /// Some are not counted at all, so no runtime override and no dial reaches them.
    Unlimited,
}

impl DocumentOverrides {
    /// Whether there are none.
    pub const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

/// One entry of a policy's `partition_by`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionEntry {
    /// Its name in the configuration.
    pub name: String,
    /// How it looks in keys, one form for each source: encoded labels, joined by `,`. `=~` follows
    /// a label whose value is always a digest. `=/64` follows the label of an address if IPv6
    /// clients count by their first 64 bits, and `=/24/64` if IPv4 clients count by their first
    /// 24. `-` stands for a missing value.
    pub forms: Vec<String>,
}

/// How often a worker refused because of one counter, without asking the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// `<domain>:<policy>:{<partition>}`.
    pub key: String,
    /// Requests beyond the quota.
    pub requests: u64,
}

/// A report has a size limit, so counts of 0 are left out.
fn is_zero(count: &u64) -> bool {
    *count == 0
}
