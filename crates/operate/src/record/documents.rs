//! The records of published documents, by number, and of the last one.

use std::time::Duration;

use quotagate_protocol::dials::DocumentVersion;
use quotagate_protocol::share_of;
use quotagate_store::control::{LAST_DOCUMENT, Snapshot};
use serde::{Deserialize, Serialize};

use crate::api::{DocumentKind, DocumentRecord};
use crate::millis;

/// What the last publication left in force. As JSON it is the record of the document that all
/// proxies take up, with others beside it: a store whose build knows no shares names the former to
/// all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedState {
    /// What all proxies take up, if nothing is published for a share.
    #[serde(flatten)]
    pub all: DocumentRecord,
    /// What a share of them takes up instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<DocumentRecord>,
    /// What is in force again when the time of [`all`](Self::all) is over. Number 0: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<DocumentRecord>,
}

impl PublishedState {
    /// After this publication, where `base` was in force for all proxies.
    pub fn after(record: DocumentRecord, base: DocumentRecord) -> Self {
        match (record.percent, record.until_ms) {
            (Some(_), _) => Self { all: base, share: Some(record), before: None },
            (None, Some(_)) => Self { all: record, share: None, before: Some(base) },
            (None, None) => Self { all: record, share: None, before: None },
        }
    }

    /// The record of the last publication.
    pub fn newest(&self) -> &DocumentRecord {
        self.share.as_ref().unwrap_or(&self.all)
    }

    /// The last publication, if it is for a share of the proxies or for a time, and that is not
    /// over.
    pub fn limited_at(&self, now: Duration) -> Option<&DocumentRecord> {
        Some(self.newest()).filter(|record| record.is_limited() && !record.is_over(millis(now)))
    }

    /// Whether the time of the last publication is over.
    pub fn is_over_at(&self, now: Duration) -> bool {
        self.newest().is_over(millis(now))
    }

    /// What is in force without a limited publication, and when its time is over.
    pub fn base(&self) -> &DocumentRecord {
        self.before.as_ref().unwrap_or(&self.all)
    }
}

/// What the record of the last publication says.
pub enum LastRecord {
    /// Nothing was published yet.
    Absent,
    /// What was published last, or that it was withdrawn.
    Known(Box<PublishedState>),
    /// It was damaged or deleted: nobody knows what is published.
    Unreadable,
}

/// The record of the last document. Without one, whatever else is there says that there was one.
pub fn last(snapshot: &Snapshot) -> LastRecord {
    match snapshot.get(LAST_DOCUMENT).map(serde_json::from_slice) {
        Some(Ok(state)) => LastRecord::Known(Box::new(state)),
        None if snapshot.left_out == 0 && records(snapshot).is_empty() => LastRecord::Absent,
        _ => LastRecord::Unreadable,
    }
}

/// What a damaged record means, for the log and for operators.
pub const LOST_RECORD: &str = "the record of the published document cannot be read, so \
    proxies keep the document that they have: publish one again, or withdraw it";

/// What is published in a domain, and for how long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publications {
    base: DocumentRecord,
    /// What is published for a share of the proxies or for a time. Else, and when its time is over,
    /// `base` is in force.
    limited: Option<DocumentRecord>,
}

/// What a rate limit service should have now that follows published rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishedRules {
    /// Its own rules: nothing is published, or this number withdrew what was.
    Own(u64),
    /// Its own rules: the policy document of this number is published, which is for filters.
    Policies(u64),
    /// The rule file of this version.
    File(DocumentVersion),
}

impl PublishedRules {
    /// The number of the last publication; 0 if there was none.
    pub const fn number(&self) -> u64 {
        match self {
            Self::Own(number) | Self::Policies(number) => *number,
            Self::File(version) => version.number,
        }
    }
}

/// Which documents the proxies of a domain should have now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedDocuments {
    /// What those should have that belong to no share.
    pub(crate) all: DocumentVersion,
    /// What so many percent of them should have instead.
    pub(crate) share: Option<(DocumentVersion, u8)>,
}

/// What proxies of a domain should have in force; `None` if nobody knows. Then they keep what they
/// have.
pub fn published(snapshot: &Snapshot) -> Option<Publications> {
    match last(snapshot) {
        LastRecord::Absent => Some(Publications::default()),
        LastRecord::Known(state) => {
            let limited = Some(state.newest()).filter(|newest| newest.is_limited()).cloned();
            Some(Publications { base: state.base().clone(), limited })
        }
        LastRecord::Unreadable => None,
    }
}

impl Publications {
    /// Whether there is no record at all: nothing was published yet, or all records were lost.
    pub const fn is_absent(&self) -> bool {
        self.base.number == 0 && self.limited.is_none()
    }

    /// The number of what is in force at this time of the backend, unless that was withdrawn.
    pub fn number_at(&self, now: Duration) -> Option<u64> {
        Some(self.newest_at(now)).filter(|newest| !newest.is_withdrawal()).map(|of| of.number)
    }

    /// Which documents proxies should have at this time of the backend.
    pub fn at(&self, now: Duration) -> NamedDocuments {
        let newest = self.newest_at(now);
        match newest.percent {
            Some(percent) => NamedDocuments {
                all: self.base.version(),
                share: Some((newest.version(), percent)),
            },
            // Proxies take number 0 for a record that was lost.
            None if newest.number == 0
                && let Some(ended) = &self.limited =>
            {
                DocumentVersion { number: ended.number, digest: String::new() }.into()
            }
            None => newest.version().into(),
        }
    }

    /// What rate limit services should have at this time of the backend.
    pub fn rules_at(&self, now: Duration) -> PublishedRules {
        let newest = self.newest_at(now);
        let DocumentRecord { number, digest, .. } = newest.clone();
        match newest.kind {
            _ if newest.is_withdrawal() => PublishedRules::Own(number),
            DocumentKind::Rules => PublishedRules::File(DocumentVersion { number, digest }),
            DocumentKind::Policies => PublishedRules::Policies(number),
        }
    }

    /// The last publication whose time is not over.
    pub fn newest_at(&self, now: Duration) -> &DocumentRecord {
        self.limited.as_ref().filter(|_| !self.has_ended_at(now)).unwrap_or(&self.base)
    }

    /// Whether the time of the last one is over.
    pub fn has_ended_at(&self, now: Duration) -> bool {
        self.ended_for(now).is_some()
    }

    /// For how long the time of the last one has been over.
    pub fn ended_for(&self, now: Duration) -> Option<Duration> {
        let until = self.limited.as_ref().and_then(|of| of.until_ms)?;
        now.checked_sub(Duration::from_millis(until))
    }
}

impl From<DocumentVersion> for NamedDocuments {
    /// The same for all proxies.
    fn from(all: DocumentVersion) -> Self {
        Self { all, share: None }
    }
}

impl NamedDocuments {
    /// The document of the proxy with this name; the name is empty if the proxy states none.
    pub fn of_proxy(&self, proxy: &str) -> &DocumentVersion {
        let has = |percent: u8| !proxy.is_empty() && share_of(proxy) < u64::from(percent);
        let share = self.share.as_ref().filter(|(_, percent)| has(*percent));
        share.map_or(&self.all, |(version, _)| version)
    }

    /// The document of every proxy; `None` if they should have different ones.
    pub const fn of_all(&self) -> Option<&DocumentVersion> {
        if self.share.is_none() { Some(&self.all) } else { None }
    }

    /// The one with this number, or else the one that is not for a share.
    pub fn numbered(&self, number: u64) -> &DocumentVersion {
        let share = self.share.as_ref().filter(|(version, _)| version.number == number);
        share.map_or(&self.all, |(version, _)| version)
    }

    /// The one that is not for a share, and the one that is.
    pub fn iter(&self) -> impl Iterator<Item = &DocumentVersion> {
        std::iter::once(&self.all).chain(self.share.iter().map(|(version, _)| version))
    }
}

/// All records, the newest first. One that does not fit its name is left out: anything may have
/// written it.
pub fn records(snapshot: &Snapshot) -> Vec<DocumentRecord> {
    let read = |(name, value): &(String, Vec<u8>)| {
        let record: DocumentRecord = serde_json::from_slice(value).ok()?;
        // What a share of the proxies has first may have nothing before it, which has no number.
        let is_named = name == LAST_DOCUMENT || record.number.to_string() == *name;
        (is_named && record.number > 0).then_some(record)
    };
    let mut records: Vec<_> = snapshot.fields.iter().filter_map(read).collect();
    records.sort_by_key(|record| std::cmp::Reverse(record.number));
    records.dedup_by_key(|record| record.number);
    records
}
