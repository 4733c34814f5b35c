//! The index of the processes that publish.

use std::time::Duration;

use quotagate_store::control::Snapshot;
use serde::{Deserialize, Serialize};

use super::identity::clean;
use crate::api::Publisher;
use crate::millis;
use crate::record::is_process_id;

/// How long an entry counts after it was written. A process writes it every minute.
pub const KEPT: Duration = Duration::from_secs(3 * 60);

/// An entry of the index, under the publisher's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublisherRecord {
    /// Who publishes.
    #[serde(flatten)]
    pub publisher: Publisher,
    /// When it was written, in milliseconds of the backend's clock.
    pub at_ms: u64,
}

/// The entries of the publishers that entered themselves lately. An unreadable one is ignored.
pub fn live(index: &Snapshot) -> impl Iterator<Item = PublisherRecord> {
    let now = millis(index.now);
    let since = millis(index.now.saturating_sub(KEPT));
    index.fields.iter().filter_map(move |(name, value)| {
        let record: PublisherRecord = serde_json::from_slice(value).ok()?;
        let Publisher { id, host, since_ms, .. } = &record.publisher;
        let sound = id == name && is_process_id(id) && clean(host) == *host && *since_ms <= now;
        // A clock that was set back must not keep an entry for ever.
        let fresh = (since..=now.saturating_add(millis(KEPT))).contains(&record.at_ms);
        (sound && fresh).then_some(record)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::PublisherKind;
    use crate::record::write;

    #[test]
    fn old_and_hostile_entries_are_ignored() {
        let id = "0123456789abcdef";
        let record = |host: &str, since_ms, at_ms| {
            let (id, host) = (id.to_owned(), host.to_owned());
            let publisher = Publisher { id, kind: PublisherKind::Proxy, host, since_ms };
            write(&PublisherRecord { publisher, at_ms })
        };
        let now = Duration::from_secs(1000);
        let listed = |name: &str, value: Vec<u8>| {
            let fields = vec![(name.to_owned(), value)];
            live(&Snapshot { now, fields, ..Snapshot::default() }).count()
        };
        assert_eq!(listed(id, record("web-1", 5000, 990_000)), 1);
        for (name, value) in [
            ("0123456789abcdee", record("web-1", 5000, 990_000)),
            (id, record("web 1", 5000, 990_000)),
            (id, record("", 5000, 990_000)),
            (id, record("web-1", 1_000_001, 990_000)),
            (id, record("web-1", 5000, 819_999)),
            (id, record("web-1", 5000, u64::MAX)),
            (id, b"{}".to_vec()),
        ] {
            assert_eq!(listed(name, value.clone()), 0, "{}", String::from_utf8_lossy(&value));
        }
    }
}
