//! Which operator changed what. Each change is one step with its entry here and a new version.

use std::sync::Arc;
use std::time::Duration;

use quotagate_store::control::{Change, HashName};

use crate::api::{Changed, Event, MAX_HISTORY};
use crate::control::ControlHandle;
use crate::domain::directory::Directory;
use crate::domain::views::Views;
use crate::record::write;
use crate::{Fault, TRIES, millis};

/// The history of each domain, and the steps that change a domain.
pub struct History {
    pub(crate) control: ControlHandle,
    views: Arc<Views>,
    directory: Arc<Directory>,
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
        Self { control, views, directory }
    }

    /// The changes of a domain, the newest first.
    ///
    /// # Errors
    /// If the domain is not known, or the backend fails.
    pub async fn list(&self, domain: Option<&str>, limit: usize) -> Result<Vec<Event>, Fault> {
        let domain = self.directory.domain(domain).await?;
        let entries = self.control.history(&domain, limit.clamp(1, MAX_HISTORY)).await?;
        let read = |entry: Vec<u8>| serde_json::from_slice::<Event>(&entry).ok();
        Ok(entries.into_iter().filter_map(read).collect())
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
        for _ in 0..TRIES {
            let snapshot = self.control.read(hash, domain).await?;
            let old = snapshot.get(field);
            let Edit { new, done } = edit(old, snapshot.now)?;
            let event = Event { at_ms: millis(snapshot.now), by: by.to_owned(), done };
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

    /// Logs a change that is in history, and rereads the domain so that proxies of this store see
    /// it at once.
    pub(crate) async fn changed(&self, domain: &str, event: &Event) {
        tracing::info!("{}, by {}, in {domain}", event.done, event.by);
        self.views.reread(domain).await;
    }

    /// The reply to the operator who made a change.
    pub(crate) fn reply(&self, domain: String, made: Made, partition: Option<String>) -> Changed {
        let durable = self.control.durable();
        let Made { version, done } = made;
        Changed { domain, version, durable, done, remark: None, partition }
    }
}
