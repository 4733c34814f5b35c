//! The records of published documents, by number, and of the last one.

use std::time::Duration;

use quotagate_protocol::dials::DocumentVersion;
use quotagate_protocol::share_of;
use quotagate_store::control::{LAST_DOCUMENT, Snapshot};
use serde::{Deserialize, Serialize};

use crate::api::DocumentRecord;
use crate::millis;

/// What the last publication left in force. As JSON it is the record of the document that all
/// proxies take up, with the one of a share beside it: a store whose build knows no shares names
/// the former to all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedState {
    /// What all proxies take up, if nothing is published for a share.
    #[serde(flatten)]
    pub all: DocumentRecord,
    /// What a share of them takes up instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<DocumentRecord>,
}

impl PublishedState {
    /// The record of the last publication.
    pub fn newest(&self) -> &DocumentRecord {
        self.share.as_ref().unwrap_or(&self.all)
    }

    /// The last publication, if it is for a share of the proxies or for a time.
    pub fn limited(&self) -> Option<&DocumentRecord> {
        Some(self.newest()).filter(|record| record.is_limited())
    }
}

/// What the record of the last publication says.
pub enum LastRecord {
    /// Nothing was published yet.
    Absent,
    /// What was published last, or that it was withdrawn.
    Known(PublishedState),
    /// It was damaged or deleted: nobody knows what is published.
    Unreadable,
}

/// The record of the last document. Without one, whatever else is there says that there was one.
pub fn last(snapshot: &Snapshot) -> LastRecord {
    match snapshot.get(LAST_DOCUMENT).map(serde_json::from_slice) {
        Some(Ok(state)) => LastRecord::Known(state),
        None if snapshot.left_out == 0 && records(snapshot).is_empty() => LastRecord::Absent,
        _ => LastRecord::Unreadable,
    }
}

/// What a damaged record means, for the log and for operators.
pub const LOST_RECORD: &str = "the record of the published document cannot be read, so \
    proxies keep the document that they have: publish one again, or withdraw it";

/// Which documents the store names to the proxies of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedDocuments {
    all: DocumentVersion,
    limited: Option<Limited>,
}

/// A document that is published for a share of the proxies or for a time. Else, and when its time
/// is over, [`NamedDocuments::all`] is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Limited {
    version: DocumentVersion,
    percent: Option<u8>,
    until_ms: Option<u64>,
}

/// What proxies of a domain should have in force; `None` if nobody knows. Then they keep what they
/// have.
pub fn published(snapshot: &Snapshot) -> Option<NamedDocuments> {
    let state = match last(snapshot) {
        LastRecord::Absent => return Some(NamedDocuments::default()),
        LastRecord::Known(state) => state,
        LastRecord::Unreadable => return None,
    };
    let newest = state.newest();
    // Without the record of the one before, that of a time stays.
    let before = match &state.share {
        Some(_) => Some(state.all.version()),
        None => newest.until_ms.and_then(|_| before(snapshot, newest.number)),
    };
    let (percent, until_ms) = (newest.percent, newest.until_ms);
    let limited = Limited { version: newest.version(), percent, until_ms };
    Some(match before {
        Some(all) => NamedDocuments { all, limited: Some(limited) },
        None => NamedDocuments { all: limited.version, limited: None },
    })
}

/// What was in force before this number was published; `None` if its record is lost.
pub fn before(snapshot: &Snapshot, number: u64) -> Option<DocumentVersion> {
    let before = number.saturating_sub(1);
    let record = records(snapshot).into_iter().find(|record| record.number == before);
    let none = (before == 0).then(DocumentVersion::default);
    record.map(|record| record.version()).or(none)
}

impl NamedDocuments {
    /// The document that the proxy with this name should have; the name is empty if the proxy
    /// states none.
    pub fn of(&self, proxy: &str, now: Duration) -> &DocumentVersion {
        let has = |percent: u8| !proxy.is_empty() && share_of(proxy) < u64::from(percent);
        let limited = self.limited_at(now).filter(|of| of.percent.is_none_or(has));
        limited.map_or(&self.all, |of| &of.version)
    }

    /// Whether proxies should have different documents.
    pub fn differ(&self, now: Duration) -> bool {
        self.limited_at(now).is_some_and(|of| of.percent.is_some())
    }

    /// The one with this number, or else the one that is not for a share.
    pub fn numbered(&self, number: u64, now: Duration) -> &DocumentVersion {
        let limited = self.limited_at(now);
        let named = limited.filter(|of| of.percent.is_none() || of.version.number == number);
        named.map_or(&self.all, |of| &of.version)
    }

    /// Whether a document is published, for all proxies or for a share.
    pub fn any_at(&self, now: Duration) -> bool {
        !self.all.digest.is_empty() || self.limited_at(now).is_some()
    }

    /// Whether the time of the last one is over.
    pub fn has_ended_at(&self, now: Duration) -> bool {
        self.limited.is_some() && self.limited_at(now).is_none()
    }

    fn limited_at(&self, now: Duration) -> Option<&Limited> {
        let has_time = |of: &&Limited| of.until_ms.is_none_or(|until| millis(now) < until);
        self.limited.as_ref().filter(has_time)
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
