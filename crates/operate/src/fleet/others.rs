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
}

impl Others {
    /// The pictures of all others but `me`. Those who ask during a reading wait for its result.
    pub async fn read(&self, control: &dyn ControlStore, me: &str) -> Arc<Reading> {
        let mut last = self.0.lock().await;
        if let Some(reading) = last.as_ref().filter(|reading| reading.at.elapsed() < FRESH) {
            return Arc::clone(reading);
        }
        let reading = Arc::new(Reading::of(control, me).await);
        *last = Some(Arc::clone(&reading));
        reading
    }
}

impl Reading {
    async fn of(control: &dyn ControlStore, me: &str) -> Self {
        let until = tokio::time::Instant::now() + PATIENCE;
        let nothing = |why: String| {
            let incomplete = Some(format!("what others counted cannot be read: {why}"));
            Self { at: Instant::now(), pictures: Vec::new(), is_whole: false, incomplete }
        };
        let index = match timeout_at(until, control.read(HashName::Publishers, "")).await {
            Ok(Ok(index)) => index,
            Ok(Err(error)) => return nothing(error.to_string()),
            Err(_) => return nothing(LATE.to_owned()),
        };
        let at = Instant::now();
        let full = index.fields.len() >= MAX_PUBLISHERS || index.left_out > 0;
        let publishers: Vec<_> = live(&index).filter(|publisher| publisher.id != me).collect();
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
        let incomplete = if answered < count {
            let why = failed.unwrap_or_else(|| LATE.to_owned());
            let missing = count.saturating_sub(answered);
            Some(format!("what {missing} of {count} others counted cannot be read: {why}"))
        } else if full {
            Some(format!("at most {MAX_PUBLISHERS} stores and proxies publish what they counted"))
        } else {
            None
        };
        Self { at, pictures, is_whole: answered == count, incomplete }
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
    (age_ms <= kept && !early).then_some((publisher, age_ms, picture))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::identity::Identity;

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
