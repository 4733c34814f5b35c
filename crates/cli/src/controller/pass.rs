//! A pass: merge what the cluster has, publish what differs, and write what became of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use quotagate_kubernetes::{
    AncestorOutcome, AncestorRef, DocumentProgress, DomainOutcome, Domains, MergedDocument,
    ObjectName, Objects, PolicyOutcome, QuotaPolicy, QuotaPolicyStatus, Reason, StatusChange,
    Verdict, merge, status,
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::documents::{DocumentStore, DocumentWish};
use super::leadership::Leadership;
use super::metrics::{AcceptedLabel, ControllerMetrics, DomainLabel};
use super::watched::{Watched, WatchedKind};

/// Who owns the fields of a status.
const MANAGER: &str = "quotagate-controller";
/// How often the status of an object may change because of its proxies, or because other objects
/// made a new document.
const PROGRESS: Duration = Duration::from_secs(30);
/// How long the API server may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Statuses that are written at once.
const AT_ONCE: usize = 16;
/// Statuses that a pass writes because of progress alone, so that changes do not wait for them.
const PROGRESS_A_PASS: usize = 64;

/// Makes passes.
pub(super) struct Reconciler {
    pub(super) domains: Domains,
    pub(super) watched: Arc<Watched>,
    pub(super) store: DocumentStore,
    pub(super) metrics: Arc<ControllerMetrics>,
    client: Client,
    events: Recorder,
    /// What the objects make, and after how many changes.
    merged: Option<(u64, MergedObjects)>,
    progress: BTreeMap<String, DocumentProgress>,
    /// When the progress of an object was written, if that is not long ago.
    progress_written: BTreeMap<ObjectName, Instant>,
    /// When there is something to write that was put off.
    due: Option<Instant>,
}

/// What the objects make.
struct MergedObjects {
    /// A document a domain, and what should be published.
    documents: Vec<(MergedDocument, DocumentWish)>,
    /// Objects that cannot be read, and why.
    unreadable: BTreeMap<ObjectName, String>,
}

/// How a pass ended.
#[derive(Debug, Default)]
pub(super) struct PassEnd {
    /// What must be tried again.
    pub(super) faults: Vec<String>,
    /// When there is something to write that was put off.
    pub(super) due: Option<Instant>,
}

impl Reconciler {
    pub(super) fn new(
        client: &Client,
        domains: Domains,
        watched: Arc<Watched>,
        store: DocumentStore,
        metrics: Arc<ControllerMetrics>,
        instance: String,
    ) -> Self {
        let reporter = Reporter { controller: MANAGER.to_owned(), instance: Some(instance) };
        Self {
            domains,
            watched,
            store,
            metrics,
            client: client.clone(),
            events: Recorder::new(client.clone(), reporter),
            merged: None,
            progress: BTreeMap::new(),
            progress_written: BTreeMap::new(),
            due: None,
        }
    }

    /// Forgets what it wrote, because another controller has acted meanwhile.
    pub(super) fn begin(&mut self) {
        self.progress_written.clear();
        self.progress.clear();
    }

    /// Publishes and writes as long as it leads.
    pub(super) async fn pass(&mut self, changes: u64, leadership: &Leadership) -> PassEnd {
        let begun = Instant::now();
        let mut end = PassEnd::default();
        let mut is_changed = false;
        let merged = match self.merged.take() {
            Some((of, merged)) if of == changes => merged,
            _ => {
                is_changed = true;
                self.merge()
            }
        };
        for (domain, (_, wish)) in self.domains.iter().zip(&merged.documents) {
            if !leadership.acts() {
                break;
            }
            let settled = self.store.settle(domain, wish).await;
            let name = domain.name().to_owned();
            let label = DomainLabel { domain: name.clone() };
            if let Some(done) = settled.done {
                tracing::info!("{done}");
                self.metrics.published.get_or_create(&label).inc();
            }
            end.faults.extend(settled.fault);
            let number = settled.progress.published.as_ref().map_or(0, |found| found.number);
            self.metrics.documents.get_or_create(&label).set(number);
            is_changed |= self.progress.get(&name) != Some(&settled.progress);
            self.progress.insert(name, settled.progress);
        }
        if leadership.acts() && (is_changed || self.is_due()) {
            self.write(&merged, &mut end).await;
            self.metrics.passes.observe(begun.elapsed().as_secs_f64());
        }
        self.merged = Some((changes, merged));
        end.due = self.due;
        if !end.faults.is_empty() {
            self.metrics.faults.inc();
        }
        end
    }

    fn is_due(&self) -> bool {
        self.due.is_some_and(|due| due <= Instant::now())
    }

    fn merge(&self) -> MergedObjects {
        let (mut objects, mut unreadable) = (Objects::default(), BTreeMap::new());
        for (kind, name, object) in self.watched.all() {
            if let Err(faults) = objects.add(&object) {
                let why = faults.join("; ");
                tracing::warn!("{why}");
                if kind == WatchedKind::QuotaPolicy {
                    unreadable.insert(name, why);
                }
            }
        }
        let documents = self.domains.iter().map(|domain| {
            let merged = merge(&objects, domain);
            let wish = DocumentWish::of(&merged);
            (merged, wish)
        });
        MergedObjects { documents: documents.collect(), unreadable }
    }

    /// Writes the statuses that differ.
    async fn write(&mut self, merged: &MergedObjects, end: &mut PassEnd) {
        let now = Instant::now();
        self.due = None;
        let second = Timestamp::now().as_second();
        let time = Timestamp::from_second(second).unwrap_or_default();
        let by_name: Vec<BTreeMap<&ObjectName, &PolicyOutcome>> = merged
            .documents
            .iter()
            .map(|(document, _)| {
                document.outcomes.iter().map(|outcome| (&outcome.object, outcome)).collect()
            })
            .collect();
        let (mut wanted, mut late, mut accepted, mut all) = (Vec::new(), 0_usize, 0_i64, 0_i64);
        let objects = self.watched.objects(WatchedKind::QuotaPolicy);
        self.progress_written.retain(|_, at| at.elapsed() < PROGRESS);
        for (name, value) in objects {
            let uid = value["metadata"]["uid"].as_str().map(str::to_owned);
            let (object, refused) = readable(&name, value, merged.unreadable.get(&name));
            let outcomes = self.domains.iter().zip(&by_name).filter_map(|(domain, by_name)| {
                let outcome = refused.as_ref().or_else(|| by_name.get(&name).copied())?;
                let progress = self.progress.get(domain.name())?;
                Some(DomainOutcome { domain, outcome, progress })
            });
            let new = status(&name, &object, &outcomes.collect::<Vec<_>>(), time);
            all += 1;
            accepted += i64::from(is_accepted(&new));
            let old = object.status;
            match StatusChange::between(old.as_ref(), &new) {
                StatusChange::Nothing => {}
                StatusChange::Progress => {
                    let due = self.progress_written.get(&name).map(|at| *at + PROGRESS);
                    let due = match late {
                        PROGRESS_A_PASS.. => Some(now),
                        _ => due.filter(|due| *due > now),
                    };
                    match due {
                        Some(due) => self.due = Some(self.due.map_or(due, |at| at.min(due))),
                        None => {
                            late += 1;
                            self.progress_written.insert(name.clone(), now);
                            wanted.push(Wanted { name, uid, old, new });
                        }
                    }
                }
                StatusChange::Outcome => wanted.push(Wanted { name, uid, old, new }),
            }
        }
        let label =
            |accepted| self.metrics.policies.get_or_create(&AcceptedLabel { accepted }).clone();
        label("true").set(accepted);
        label("false").set(all - accepted);
        let written: Vec<Result<(), String>> =
            stream::iter(wanted.iter().map(|wanted| self.patch(wanted)))
                .buffer_unordered(AT_ONCE)
                .collect()
                .await;
        let faults: Vec<String> = written.into_iter().filter_map(Result::err).collect();
        if !faults.is_empty() {
            self.due = Some(now);
        }
        end.faults.extend(faults);
    }

    async fn patch(&self, wanted: &Wanted) -> Result<(), String> {
        let Wanted { name, new, .. } = wanted;
        let resource = WatchedKind::QuotaPolicy.resource();
        let body = json!({
            "apiVersion": resource.api_version, "kind": resource.kind,
            "metadata": {"name": name.name, "namespace": name.namespace}, "status": new,
        });
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &name.namespace, &resource);
        let parameters = PatchParams::apply(MANAGER).force();
        let patch = Patch::Apply(&body);
        let patched = timeout(ANSWER, api.patch_status(&name.name, &parameters, &patch)).await;
        let Ok(patched) = patched else {
            return Err(format!("status of QuotaPolicy {name}: the API server does not answer"));
        };
        match patched {
            Ok(_) => {
                self.watched.wrote(name, new);
                self.metrics.patches.inc();
            }
            // It was deleted meanwhile.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(error) => return Err(format!("status of QuotaPolicy {name}: {error}")),
        }
        if let Some((type_, reason, note)) = news(wanted.old.as_ref(), new) {
            let event = Event {
                type_,
                reason,
                note: Some(note),
                action: "Merge".to_owned(),
                secondary: None,
            };
            let object = ObjectReference {
                api_version: Some(resource.api_version),
                kind: Some(resource.kind),
                name: Some(name.name.clone()),
                namespace: Some(name.namespace.clone()),
                uid: wanted.uid.clone(),
                ..ObjectReference::default()
            };
            // It is only news: the status says the same.
            if let Ok(Err(error)) = timeout(ANSWER, self.events.publish(&event, &object)).await {
                tracing::debug!("event of QuotaPolicy {name}: {error}");
            }
        }
        Ok(())
    }
}

/// A status that differs.
struct Wanted {
    name: ObjectName,
    uid: Option<String>,
    old: Option<QuotaPolicyStatus>,
    new: QuotaPolicyStatus,
}

/// An object; or of one that cannot be read, what there is, and that it is refused.
fn readable(
    name: &ObjectName,
    value: Value,
    why: Option<&String>,
) -> (QuotaPolicy, Option<PolicyOutcome>) {
    let why = match (why, serde_json::from_value::<QuotaPolicy>(value.clone())) {
        (None, Ok(object)) => return (object, None),
        (Some(why), _) => why.clone(),
        (None, Err(error)) => error.to_string(),
    };
    let part = |part: &str| value.get(part).cloned().unwrap_or_default();
    let object = QuotaPolicy {
        metadata: serde_json::from_value(part("metadata")).unwrap_or_default(),
        spec: Default::default(),
        status: serde_json::from_value(part("status")).ok(),
    };
    let target = &value["spec"]["targetRefs"][0];
    let text = |field: &str| target[field].as_str().unwrap_or_default().to_owned();
    let ancestor = AncestorRef {
        group: text("group"),
        kind: text("kind"),
        namespace: name.namespace.clone(),
        name: text("name"),
        section_name: None,
    };
    let accepted = Verdict { holds: false, reason: Reason::Invalid, message: why };
    let ancestors = vec![AncestorOutcome { ancestor, accepted, programmed: None }];
    let outcome =
        PolicyOutcome { object: name.clone(), ancestors, policies: Vec::new(), notes: Vec::new() };
    (object, Some(outcome))
}

/// The conditions of a status, with their type.
fn conditions<'s>(
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

fn is_accepted(status: &QuotaPolicyStatus) -> bool {
    conditions(Some(status), "Accepted").iter().all(|(status, ..)| *status == "True")
}

/// What people should hear of, if anything: the object is refused, or in the document again.
fn news(
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
