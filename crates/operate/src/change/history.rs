//! Which operator changed what. Each change is one step with its entry here and a new version.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;

use quotagate_store::control::{Change, HashName};

use super::overrides::canonical;
use crate::api::{Changed, Event, MAX_HISTORY};
use crate::control::ControlHandle;
use crate::domain::directory::Directory;
use crate::domain::views::Views;
use crate::pattern::{parts, party_of};
use crate::record::documents::published;
use crate::record::write;
use crate::{Fault, TRIES, millis};

/// The history of each domain, and the steps that change a domain.
pub struct History {
    pub(crate) control: ControlHandle,
    views: Arc<Views>,
    directory: Arc<Directory>,
    on_change: OnceLock<OnChange>,
}

/// Receives each change that is in history now, and the domain of it.
pub type OnChange = Box<dyn Fn(&str, &Event) -> BoxFuture<'static, ()> + Send + Sync>;

/// Which changes are listed. Absent: all.
#[derive(Clone, Copy, Debug, Default)]
pub struct HistoryFilter<'a> {
    /// Of this policy.
    pub policy: Option<&'a str>,
    /// Of partitions that contain this party, encoded as in keys.
    pub party: Option<&'a str>,
    /// By the operator with this name.
    pub by: Option<&'a str>,
    /// Since this time, in milliseconds since the Unix epoch.
    pub since_ms: Option<u64>,
}

/// A change of a field.
pub(crate) struct Edit {
    /// The new value of the field; `None` deletes the field.
    pub new: Option<Vec<u8>>,
    /// The text in history.
    pub done: String,
}

/// A change that was made.
pub(crate) struct Made {
    pub version: u64,
    pub done: String,
}

impl History {
    pub(crate) fn new(
        control: ControlHandle,
        views: Arc<Views>,
        directory: Arc<Directory>,
    ) -> Self {
        Self { control, views, directory, on_change: OnceLock::new() }
    }

    /// Passes each change of this process to `receive`, which is set once.
    pub fn on_change(&self, receive: OnChange) {
        let _ = self.on_change.set(receive);
    }

    /// The changes of a domain, the newest first.
    ///
    /// # Errors
    /// If the domain is not known, or the backend fails.
    pub async fn list(&self, domain: Option<&str>, limit: usize) -> Result<Vec<Event>, Fault> {
        self.find(domain, HistoryFilter::default(), limit).await
    }

    /// Those changes of a domain that pass a filter, the newest first.
    ///
    /// # Errors
    /// If the domain is not known, or the backend fails.
    pub async fn find(
        &self,
        domain: Option<&str>,
        filter: HistoryFilter<'_>,
        limit: usize,
    ) -> Result<Vec<Event>, Fault> {
        let domain = self.directory.domain(domain).await?;
        // As keys have it, unless the party is so long that they have a digest.
        let party = filter
            .party
            .map(|typed| party_of(typed).unwrap_or(typed))
            .map(|party| canonical("", "any", party).unwrap_or_else(|_| party.to_owned()));
        let filter = HistoryFilter { party: party.as_deref(), ..filter };
        let limit = limit.clamp(1, MAX_HISTORY);
        let most = if filter.is_all() { limit } else { MAX_HISTORY };
        let entries = self.control.history(&domain, most).await?;
        let read = |entry: Vec<u8>| serde_json::from_slice::<Event>(&entry).ok();
        let events = entries.into_iter().filter_map(read).filter(|event| filter.has(event));
        Ok(events.take(limit).collect())
    }

    /// Changes one field: `edit` computes the new value from the old one and the backend's time. If
    /// another change comes between, it starts again.
    pub(crate) async fn change(
        &self,
        domain: &str,
        hash: HashName,
        field: &str,
        by: &str,
        edit: impl Fn(Option<&[u8]>, Duration) -> Result<Edit, Fault>,
    ) -> Result<Made, Fault> {
        let document = self.document(domain).await;
        for _ in 0..TRIES {
            let snapshot = self.control.read(hash, domain).await?;
            let old = snapshot.get(field);
            let Edit { new, done } = edit(old, snapshot.now)?;
            let (policy, partition) = match hash {
                HashName::Overrides => parts(field)
                    .map_or((field, None), |(policy, partition)| (policy, Some(partition))),
                _ => (field, None),
            };
            let event = Event::new(millis(snapshot.now), by, done)
                .of(policy, partition)
                .values(old, new.as_deref());
            let event = Event { document, ..event };
            let change = Change {
                hash,
                field: field.to_owned(),
                old: old.map(<[u8]>::to_vec),
                new,
                event: Some(write(&event)),
            };
            if let Some(version) = self.control.change(domain, &change).await? {
                self.changed(domain, &event).await;
                return Ok(Made { version, done: event.done });
            }
        }
        Err(Fault::Contended)
    }

    /// Adds a change to history that was made outside the hashes of the domain.
    pub(crate) async fn record(&self, domain: &str, event: Event) -> Result<Made, Fault> {
        let event = Event { document: self.document(domain).await, ..event };
        // No field ever has this name, so the step only adds to history.
        let change = Change {
            hash: HashName::Dials,
            field: "#".to_owned(),
            old: None,
            new: None,
            event: Some(write(&event)),
        };
        let made = self.control.change(domain, &change).await?;
        let version = made.ok_or(Fault::Contended)?;
        self.changed(domain, &event).await;
        Ok(Made { version, done: event.done })
    }

    /// The number of the document that is published; 0 if none is. `None` if nobody knows, or if it
    /// is for a share of the proxies only.
    pub(crate) async fn document(&self, domain: &str) -> Option<u64> {
        let read = self.control.read(HashName::Documents, domain).await.ok()?;
        let published = published(&read)?;
        let newest = published.newest_at(read.now);
        newest.percent.is_none().then_some(if newest.is_withdrawal() { 0 } else { newest.number })
    }

    /// Logs a change that is in history, and rereads the domain so that proxies of this store see
    /// it at once.
    pub(crate) async fn changed(&self, domain: &str, event: &Event) {
        tracing::info!("{}, by {}, in {domain}", event.done, event.by);
        if let Some(receive) = self.on_change.get() {
            receive(domain, event).await;
        }
        self.views.reread(domain).await;
    }

    /// The reply to the operator who made a change.
    pub(crate) fn reply(&self, domain: String, made: Made, partition: Option<String>) -> Changed {
        let durable = self.control.durable();
        let Made { version, done } = made;
        Changed { domain, version, durable, done, remark: None, partition }
    }
}

impl HistoryFilter<'_> {
    /// Whether every change is listed.
    const fn is_all(&self) -> bool {
        let Self { policy, party, by, since_ms } = self;
        policy.is_none() && party.is_none() && by.is_none() && since_ms.is_none()
    }

    fn has(&self, event: &Event) -> bool {
        self.policy.is_none_or(|policy| event.policy.as_deref() == Some(policy))
            && self.party.is_none_or(|party| event.is_about(party))
            && self.by.is_none_or(|by| event.by == by)
            && self.since_ms.is_none_or(|since| event.at_ms >= since)
    }
}
