//! The records of published documents, by number, and of the last one.

use quotagate_protocol::dials::DocumentVersion;
use quotagate_store::control::{LAST_DOCUMENT, Snapshot};

use crate::api::DocumentRecord;

/// What the record of the last publication says.
pub enum LastRecord {
    /// Nothing was published yet.
    Absent,
    /// What was published last, or that it was withdrawn.
    Known(DocumentRecord),
    /// It was damaged or deleted: nobody knows what is published.
    Unreadable,
}

/// The record of the last document. Without one, whatever else is there says that there was one.
pub fn last(snapshot: &Snapshot) -> LastRecord {
    match snapshot.get(LAST_DOCUMENT).map(serde_json::from_slice) {
        Some(Ok(record)) => LastRecord::Known(record),
        None if snapshot.left_out == 0 && records(snapshot).is_empty() => LastRecord::Absent,
        _ => LastRecord::Unreadable,
    }
}

/// What a damaged record means, for the log and for operators.
pub const LOST_RECORD: &str = "the record of the published document cannot be read, so \
    proxies keep the document that they have: publish one again, or withdraw it";

/// What proxies of a domain should have in force; `None` if nobody knows. Then they keep what they
/// have.
pub fn published(snapshot: &Snapshot) -> Option<DocumentVersion> {
    match last(snapshot) {
        LastRecord::Absent => Some(DocumentVersion::default()),
        LastRecord::Known(last) => Some(last.version()),
        LastRecord::Unreadable => None,
    }
}

/// All records, the newest first. One that does not fit its name is left out: anything may have
/// written it.
pub fn records(snapshot: &Snapshot) -> Vec<DocumentRecord> {
    let read = |(name, value): &(String, Vec<u8>)| {
        let record: DocumentRecord = serde_json::from_slice(value).ok()?;
        (name == LAST_DOCUMENT || record.number.to_string() == *name).then_some(record)
    };
    let mut records: Vec<_> = snapshot.fields.iter().filter_map(read).collect();
    records.sort_by_key(|record| std::cmp::Reverse(record.number));
    records.dedup_by_key(|record| record.number);
    records
}
