//! Writes what this process saw to the backend.
//!
//! It writes every [`EVERY`] while there is traffic, and every 10 s while it has something to show.
//! Otherwise it only renews its entry in the index, so that others can tell an idle process from
//! one that is gone. It enters the index with its first traffic. Its fields expire [`KEPT`] after
//! the last write.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use quotagate_store::control::{ControlStore, HashName, MAX_PUBLISHED, MAX_PUBLISHERS, Upsert};
use quotagate_store::store::StoreError;

use super::identity::Identity;
use super::index::{KEPT as INDEX_KEPT, PublisherRecord, live};
use super::item::Picture;
use crate::api::PublisherKind;
use crate::millis;
use crate::record::write;
use crate::watch::{StoreTotals, Totals, Watch};

/// How often a process publishes at most.
pub const EVERY: Duration = Duration::from_secs(5);
/// The age of the last write at which it publishes without traffic: at the second tick after it,
/// although the write ended some moments after its own tick.
const AGAIN: Duration = Duration::from_secs(8);
/// How long a picture is kept after its last write.
pub const KEPT: Duration = Duration::from_secs(20);
/// How often a process writes its entry in the index.
const REGISTER: Duration = Duration::from_secs(60);
/// How long it stays silent after the backend refused, or because there are too many others.
const REFUSED: Duration = Duration::from_secs(60);

/// What was written last.
pub struct PicturePublisher {
    pulse: u64,
    totals: Totals,
    written: Option<Instant>,
    /// How many fields may be in the backend.
    fields: usize,
    /// When the index was read, and the backend's time at that moment.
    registered: Option<(Instant, Duration)>,
    not_before: Instant,
}

impl PicturePublisher {
    /// Nothing was written yet.
    pub fn new(watch: &Watch) -> Self {
        let totals = watch.calls.totals();
        let not_before = totals.at;
        let (pulse, registered) = (watch.pulse(), None);
        Self { pulse, totals, written: None, fields: MAX_PUBLISHED, registered, not_before }
    }

    /// Publishes if there is something new to show, or something old to keep. Call it every
    /// [`EVERY`]. `ready` says whether this process can count every request.
    pub async fn publish(
        &mut self,
        control: &dyn ControlStore,
        me: &Identity,
        watch: &Watch,
        ready: bool,
    ) {
        let (pulse, totals) = (watch.pulse(), watch.calls.totals());
        let pace = totals.since(&std::mem::replace(&mut self.totals, totals));
        let kept = self.written.is_some_and(|at| at.elapsed() < AGAIN);
        if (pulse == self.pulse && kept) || totals.at < self.not_before {
            return;
        }
        self.pulse = pulse;
        let mut picture = Picture::take(watch, pace, 0);
        let Totals { calls, failed, micros, .. } = totals;
        picture.store = Some(StoreTotals { calls, failed, micros, ready });
        // A store has its own in its metrics.
        if me.publisher().kind == PublisherKind::Proxy {
            picture.add_totals(watch);
        }
        let written = match (picture.is_empty(), self.registered) {
            (true, None) => return,
            (true, Some((at, _))) if at.elapsed() < REGISTER => return,
            (true, Some(_)) => self.register(control, me).await.map(drop),
            (false, _) => self.write(control, me, picture).await,
        };
        match written {
            Ok(()) => self.written = Some(Instant::now()),
            Err(StoreError::Refused(reason)) => {
                tracing::debug!("cannot publish what this process saw: {reason}");
                self.not_before = Instant::now() + REFUSED;
            }
            // `/readyz` reports this fault.
            Err(_) => self.written = None,
        }
    }

    async fn write(
        &mut self,
        control: &dyn ControlStore,
        me: &Identity,
        mut picture: Picture,
    ) -> Result<(), StoreError> {
        let (at, now) = match self.registered.filter(|(at, _)| at.elapsed() < REGISTER) {
            Some(registered) => registered,
            None => match self.register(control, me).await {
                // The index may be away while the rest can be written.
                Err(error) if error.is_outage() => self.registered.ok_or(error)?,
                registered => registered?,
            },
        };
        picture.at_ms = millis(now.saturating_add(at.elapsed()));
        let fields = picture.fields();
        let delete = (fields.len()..self.fields).map(|index| index.to_string()).collect();
        let count = fields.len();
        self.fields = self.fields.max(count);
        let upsert = Upsert { delete, fields, max_fields: MAX_PUBLISHED, keep_for: KEPT };
        control.upsert(HashName::Published, me.id(), &upsert).await?;
        self.fields = count;
        Ok(())
    }

    async fn register(
        &mut self,
        control: &dyn ControlStore,
        me: &Identity,
    ) -> Result<(Instant, Duration), StoreError> {
        let registered = register(control, me).await?;
        self.registered = Some(registered);
        Ok(registered)
    }
}

/// Enters this process into the index, and removes those that are gone. Returns the backend's time.
async fn register(
    control: &dyn ControlStore,
    me: &Identity,
) -> Result<(Instant, Duration), StoreError> {
    let index = control.read(HashName::Publishers, "").await?;
    let read = Instant::now();
    let present: HashSet<String> = live(&index).map(|record| record.publisher.id).collect();
    let names = index.fields.iter().map(|(name, _)| name);
    let gone: Vec<String> = names.filter(|name| !present.contains(*name)).cloned().collect();
    if present.len() >= MAX_PUBLISHERS && !present.contains(me.id()) {
        return Err(StoreError::Refused(format!("{MAX_PUBLISHERS} others publish already")));
    }
    let record =
        PublisherRecord { publisher: me.publisher_at(index.now), at_ms: millis(index.now) };
    let upsert = Upsert {
        delete: gone,
        fields: vec![(me.id().to_owned(), write(&record))],
        max_fields: MAX_PUBLISHERS,
        keep_for: INDEX_KEPT,
    };
    control.upsert(HashName::Publishers, "", &upsert).await?;
    Ok((read, index.now))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quotagate_protocol::{Grant, Reservation};
    use quotagate_store::store::{CheckedReservation, Store};

    use super::*;

    fn count(watch: &Watch, partition: &str) {
        let ask = CheckedReservation::new(Reservation {
            key: format!("d:p:{{{partition}}}").into(),
            window_s: 60,
            quota: 10,
            want: 1,
            min: 1,
            ..Reservation::default()
        });
        let grant = Grant {
            granted: 1,
            used: 1,
            quota: 10,
            reset_ms: 60_000,
            window: 7,
            ..Grant::default()
        };
        watch.reserved(&ask.unwrap(), &Ok(grant));
        watch.calls.add(200, Duration::from_millis(1));
    }

    fn parts() -> (Arc<dyn Store>, Identity, Watch) {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        (store, Identity::new(PublisherKind::Store), Watch::default())
    }

    async fn published(store: &Arc<dyn Store>, me: &Identity) -> Option<Picture> {
        let read = store.control().read(HashName::Published, me.id()).await.unwrap();
        Picture::read(&read.fields)
    }

    #[tokio::test]
    async fn nothing_is_written_without_traffic() {
        let (store, me, watch) = parts();
        let mut publisher = PicturePublisher::new(&watch);
        publisher.publish(store.control(), &me, &watch, true).await;
        assert_eq!(published(&store, &me).await, None);
        assert_eq!(store.control().read(HashName::Publishers, "").await.unwrap().fields, []);
        for (partition, count_of) in [("a", 1), ("b", 2), ("a", 2)] {
            count(&watch, partition);
            publisher.publish(store.control(), &me, &watch, true).await;
            let picture = published(&store, &me).await.unwrap();
            assert_eq!(picture.fullest.len(), count_of);
            assert!(picture.pace.per_s > 0.0);
        }
        let at_ms = published(&store, &me).await.unwrap().at_ms;
        tokio::time::sleep(Duration::from_millis(5)).await;
        publisher.publish(store.control(), &me, &watch, true).await;
        assert_eq!(published(&store, &me).await.unwrap().at_ms, at_ms, "nothing is new");
        publisher.written = publisher.written.and_then(|at| at.checked_sub(AGAIN));
        publisher.publish(store.control(), &me, &watch, true).await;
        assert!(published(&store, &me).await.unwrap().at_ms > at_ms, "it would expire");
        let index = store.control().read(HashName::Publishers, "").await.unwrap();
        assert_eq!(live(&index).map(|record| record.publisher.id).collect::<Vec<_>>(), [me.id()]);
    }

    #[tokio::test]
    async fn only_proxies_publish_the_totals_of_policies() {
        for (kind, totals) in [(PublisherKind::Store, 0), (PublisherKind::Proxy, 2)] {
            let (store, _, watch) = parts();
            let policy = |name| {
                serde_json::json!({"name": name, "quota": 5, "window_s": 60, "stagger": false,
                    "mode": "enforce", "on_failure": "allow", "admitted": 3})
            };
            let report = serde_json::json!({"policies": [policy("p"), policy("q")]});
            watch.reported("d", &serde_json::from_value(report).unwrap());
            let (me, mut publisher) = (Identity::new(kind), PicturePublisher::new(&watch));
            publisher.publish(store.control(), &me, &watch, true).await;
            let picture = published(&store, &me).await.unwrap();
            assert_eq!(picture.totals.len(), totals, "{kind:?}");
        }
    }

    #[tokio::test]
    async fn idle_process_renews_its_entry_every_minute() {
        let (store, me, watch) = parts();
        let index = async || store.control().read(HashName::Publishers, "").await.unwrap();
        let mut publisher = PicturePublisher::new(&watch);
        let entered = |ago| Instant::now().checked_sub(ago).map(|at| (at, Duration::ZERO));
        publisher.registered = entered(REGISTER / 2);
        publisher.publish(store.control(), &me, &watch, true).await;
        assert_eq!(live(&index().await).count(), 0, "its entry is not old enough");
        publisher.registered = entered(REGISTER);
        publisher.publish(store.control(), &me, &watch, true).await;
        assert_eq!(live(&index().await).count(), 1);
        assert_eq!(published(&store, &me).await, None, "it has nothing to show");
    }

    #[tokio::test]
    async fn publishers_are_bounded_and_make_room_when_they_are_gone() {
        let (store, me, watch) = parts();
        let enter = async |at: Duration| {
            let others = (0..MAX_PUBLISHERS).map(|_| Identity::new(PublisherKind::Proxy));
            let fields = others.map(|other| {
                let publisher = other.publisher_at(at);
                let record = PublisherRecord { publisher, at_ms: millis(at) };
                (other.id().to_owned(), write(&record))
            });
            let before = store.control().read(HashName::Publishers, "").await.unwrap().fields;
            let upsert = Upsert {
                delete: before.into_iter().map(|(name, _)| name).collect(),
                fields: fields.collect(),
                max_fields: MAX_PUBLISHERS,
                keep_for: INDEX_KEPT,
            };
            store.control().upsert(HashName::Publishers, "", &upsert).await.unwrap();
        };
        let now = store.control().read(HashName::Publishers, "").await.unwrap().now;
        count(&watch, "a");
        enter(now).await;
        PicturePublisher::new(&watch).publish(store.control(), &me, &watch, true).await;
        assert_eq!(published(&store, &me).await, None, "{MAX_PUBLISHERS} others publish");
        enter(now.saturating_sub(INDEX_KEPT * 2)).await;
        PicturePublisher::new(&watch).publish(store.control(), &me, &watch, true).await;
        assert!(published(&store, &me).await.is_some());
        let index = store.control().read(HashName::Publishers, "").await.unwrap();
        assert_eq!(index.fields.len(), 1, "the others are gone");
    }
}
