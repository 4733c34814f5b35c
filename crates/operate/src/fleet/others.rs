//! Reads what other processes published. An operator who looks causes it, at most every [`FRESH`],
//! and a store that counts requests by minute.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};
use quotagate_store::control::{ControlStore, HashName, MAX_PUBLISHERS, Snapshot};
use tokio::sync::Mutex;
use tokio::time::timeout_at;

use super::index::live;
use super::item::Picture;
use super::publish::KEPT;
use crate::api::Publisher;
use crate::millis;

/// How long a reading is used again.
const FRESH: Duration = Duration::from_secs(3);
/// The longest that a reading takes.
const PATIENCE: Duration = Duration::from_millis(700);
/// What is wrong when it takes longer.
const LATE: &str = "the backend did not answer in time";
/// Publishers that are read together.
const TOGETHER: usize = 16;

/// The last reading.
#[derive(Default)]
pub struct Others(Mutex<Option<Arc<Reading>>>);

/// What other processes had published at one moment.
pub struct Reading {
    /// When it was read.
    pub at: Instant,
    /// Each publisher, how old its picture was at that moment in milliseconds, and the picture.
    pub pictures: Vec<(Publisher, u64, Picture)>,
    /// Whether every publisher of the index was read.
    pub is_whole: bool,
    /// Why some are missing.
    pub incomplete: Option<String>,
    /// The list of publishers, and when it was read.
    pub index: Option<(Instant, Snapshot)>,
}

impl Others {
    /// The pictures of all others but `me`. Those who ask during a reading wait for its result.
    pub async fn read(&self, control: &dyn ControlStore, me: &str) -> Arc<Reading> {
        let mut last = self.0.lock().await;
        if let Some(reading) = last.as_ref().filter(|reading| reading.at.elapsed() < FRESH) {
            return Arc::clone(reading);
        }
        let index = last.as_ref().and_then(|reading| reading.index.clone());
        let reading = Arc::new(Reading::of(control, me, index).await);
        *last = Some(Arc::clone(&reading));
        reading
    }
}

impl Reading {
    /// `last` is the list of publishers as last read. It serves while the part of the backend is
    /// away that has the list.
    async fn of(control: &dyn ControlStore, me: &str, last: Option<(Instant, Snapshot)>) -> Self {
        let start = tokio::time::Instant::now();
        let until = start + PATIENCE;
        let soon = if last.is_some() { start + PATIENCE / 2 } else { until };
        let read = match timeout_at(soon, control.read(HashName::Publishers, "")).await {
            Ok(read) => read.map_err(|error| error.to_string()),
            Err(_) => Err(LATE.to_owned()),
        };
        let at = Instant::now();
        let (kept, index, unlisted) = match (read, last) {
            (Ok(index), _) => ((at, index.clone()), index, None),
            (Err(why), Some((read, index))) => {
                let now = index.now.saturating_add(read.elapsed());
                ((read, index.clone()), Snapshot { now, ..index }, Some(why))
            }
            (Err(why), None) => {
                let incomplete = Some(format!("what others counted cannot be read: {why}"));
                return Self { at, pictures: Vec::new(), is_whole: false, incomplete, index: None };
            }
        };
        let full = index.fields.len() >= MAX_PUBLISHERS || index.left_out > 0;
        // As of the time of the list: nobody can renew an entry while it is away. What each of them
        // published expires by itself.
        let publishers = live(&kept.1).map(|record| record.publisher);
        let publishers: Vec<_> = publishers.filter(|publisher| publisher.id != me).collect();
        let count = publishers.len();
        let mut reads = stream::iter(publishers)
            .map(|publisher| async move {
                let read = control.read(HashName::Published, &publisher.id).await;
                (publisher, read)
            })
            .buffer_unordered(TOGETHER);
        let (mut pictures, mut answered, mut failed) = (Vec::new(), 0_usize, None);
        while let Ok(Some((publisher, read))) = timeout_at(until, reads.next()).await {
            match read {
                Ok(fields) => {
                    answered = answered.saturating_add(1);
                    pictures.extend(aged(publisher, &fields, &index));
                }
                Err(error) => failed = Some(error.to_string()),
            }
        }
        pictures.sort_by(|(one, ..), (other, ..)| {
            (one.kind, &one.host, &one.id).cmp(&(other.kind, &other.host, &other.id))
        });
        let is_whole = answered == count && unlisted.is_none();
        let incomplete = if answered < count {
            let why = failed.unwrap_or_else(|| LATE.to_owned());
            let missing = count.saturating_sub(answered);
            Some(format!("what {missing} of {count} others counted cannot be read: {why}"))
        } else if let Some(why) = unlisted {
            Some(format!("what new stores and proxies counted may be missing: {why}"))
        } else if full {
            Some(format!("at most {MAX_PUBLISHERS} stores and proxies publish what they counted"))
        } else {
            None
        };
        Self { at, pictures, is_whole, incomplete, index: Some(kept) }
    }
}

/// The picture in these fields; `None` if there is none, or an old one.
fn aged(
    publisher: Publisher,
    fields: &Snapshot,
    index: &Snapshot,
) -> Option<(Publisher, u64, Picture)> {
    let picture = Picture::read(&fields.fields)?;
    let (now, kept) = (millis(index.now), millis(KEPT));
    let age_ms = now.saturating_sub(picture.at_ms);
    let early = picture.at_ms.saturating_sub(now) > kept;
    // Only the metrics of native modules need the totals.
    let picture = Picture { totals: Vec::new(), ..picture };
    (age_ms <= kept && !early).then_some((publisher, age_ms, picture))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::identity::Identity;
    use crate::fleet::index::PublisherRecord;
    use crate::record::write;

    #[tokio::test]
    async fn publishers_stay_known_while_their_list_is_away() {
        let at = Duration::from_secs(1000);
        let publisher = Identity::new(crate::api::PublisherKind::Store).publisher_at(at);
        let record = PublisherRecord { publisher: publisher.clone(), at_ms: millis(at) };
        let fields = vec![(publisher.id, write(&record))];
        let index = Snapshot { now: at, fields, ..Snapshot::default() };
        let long_ago = Instant::now().checked_sub(Duration::from_secs(600)).unwrap();
        // Nothing listens there.
        let store = quotagate_store::open(&"redis://127.0.0.1:1".parse().unwrap(), "qg");
        let reading = Reading::of(store.control(), "me", Some((long_ago, index))).await;
        let why = reading.incomplete.unwrap();
        assert!(why.starts_with("what 1 of 1 others counted cannot be read"), "{why}");
    }

    #[test]
    fn old_pictures_are_ignored() {
        let publisher = Identity::new(crate::api::PublisherKind::Store).publisher();
        let index = Snapshot { now: Duration::from_secs(100), ..Snapshot::default() };
        let age = |at_ms| {
            let fields = Picture { at_ms, ..Picture::default() }.fields();
            let fields = Snapshot { fields, ..Snapshot::default() };
            aged(publisher.clone(), &fields, &index).map(|(_, age_ms, _)| age_ms)
        };
        assert_eq!([age(99_000), age(80_000), age(100_500)], [Some(1000), Some(20_000), Some(0)]);
        assert_eq!([age(79_999), age(0), age(120_001), age(u64::MAX)], [None; 4]);
        assert!(aged(publisher, &Snapshot::default(), &index).is_none());
    }
}
