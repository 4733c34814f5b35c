//! Events for people: an object is refused, or comes back.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder};
use quotagate_kubernetes::{ObjectName, QuotaPolicyStatus};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::watched_kinds::WatchedKind;

/// How long the API server may take to answer.
pub(super) const ANSWER: Duration = Duration::from_secs(5);
/// Most bytes of the note of an event.
const MAX_NOTE: usize = 1024;

/// A Kubernetes event about an object.
pub(super) struct ObjectEvent {
    event: Event,
    object: ObjectReference,
}

impl ObjectEvent {
    /// The event about a status that says something new, if it does.
    pub(super) fn of(
        name: &ObjectName,
        uid: Option<String>,
        old: Option<&QuotaPolicyStatus>,
        new: &QuotaPolicyStatus,
    ) -> Option<Self> {
        let (type_, reason, note) = newly_said(old, new)?;
        let event = Event {
            type_,
            reason,
            note: Some(short(note)),
            action: "Merge".to_owned(),
            secondary: None,
        };
        let resource = WatchedKind::QuotaPolicy.resource();
        let object = ObjectReference {
            api_version: Some(resource.api_version),
            kind: Some(resource.kind),
            name: Some(name.name.clone()),
            namespace: Some(name.namespace.clone()),
            uid,
            ..ObjectReference::default()
        };
        Some(Self { event, object })
    }
}

/// Publishes events beside the passes: the statuses say the same, and must not wait for them.
pub(super) struct EventPublisher {
    recorder: Recorder,
    tasks: JoinSet<()>,
}

impl EventPublisher {
    pub(super) fn new(recorder: Recorder) -> Self {
        Self { recorder, tasks: JoinSet::new() }
    }

    /// Begins to publish these, one after the other.
    pub(super) fn publish(&mut self, events: Vec<ObjectEvent>) {
        while self.tasks.try_join_next().is_some() {}
        if events.is_empty() {
            return;
        }
        let recorder = self.recorder.clone();
        self.tasks.spawn(async move {
            for ObjectEvent { event, object } in events {
                // An API server that is away hears of it by the statuses, later.
                match timeout(ANSWER, recorder.publish(&event, &object)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!("event: {error}"),
                    Err(_) => return,
                }
            }
        });
    }

    /// Waits until all are published.
    pub(super) async fn done(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// The conditions of a status, with their type.
pub(super) fn conditions<'s>(
    status: Option<&'s QuotaPolicyStatus>,
    kind: &str,
) -> Vec<(&'s str, &'s str, &'s str)> {
    let ancestors = status.into_iter().flat_map(|status| &status.ancestors);
    ancestors
        .flat_map(|ancestor| &ancestor.conditions)
        .filter(|condition| condition.type_ == kind)
        .map(|found| (&*found.status, &*found.reason, &*found.message))
        .collect()
}

/// What a status newly says: that the object is refused, or that it is in the document again.
fn newly_said(
    old: Option<&QuotaPolicyStatus>,
    new: &QuotaPolicyStatus,
) -> Option<(EventType, String, String)> {
    let of = |status, kind| {
        let found = conditions(status, kind).into_iter();
        found.map(|(status, reason, _)| (status.to_owned(), reason.to_owned())).collect::<Vec<_>>()
    };
    let changed =
        ["Accepted", "Programmed"].into_iter().filter(|kind| of(old, kind) != of(Some(new), kind));
    let changed: Vec<&str> = changed.collect();
    let all = changed.iter().flat_map(|kind| conditions(Some(new), kind));
    let mut all: Vec<_> = all.collect();
    // What is wrong comes first.
    all.sort_by_key(|(status, ..)| *status == "True");
    let (status, reason, message) = *all.first()?;
    let kind = if status == "True" { EventType::Normal } else { EventType::Warning };
    Some((kind, reason.to_owned(), message.to_owned()))
}

/// A note that the API server takes.
fn short(mut note: String) -> String {
    if note.len() > MAX_NOTE {
        while note.len() > MAX_NOTE - 3 {
            note.pop();
        }
        note.push_str("...");
    }
    note
}
