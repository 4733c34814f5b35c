//! The part of a pass that writes statuses: those that differ, each by itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::runtime::events::{Recorder, Reporter};
use quotagate_kubernetes::{
    AncestorOutcome, AncestorRef, DomainOutcome, Domains, ObjectName, PolicyOutcome, QuotaPolicy,
    QuotaPolicyStatus, Reason, StatusChange, Verdict, status,
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::leadership::Leadership;
use super::lineage::DomainProgress;
use super::merged::MergedObjects;
use super::metrics::{AcceptedLabel, ControllerMetrics};
use super::object_events::{ANSWER, EventPublisher, ObjectEvent, conditions};
use super::publishing::Publisher;
use super::retry::Retries;
use super::watched::Watched;
use super::watched_kinds::WatchedKind;

/// Who owns the fields of a status.
const MANAGER: &str = "quotagate-controller";
/// How often the status of an object may change because of its proxies alone.
const PROGRESS: Duration = Duration::from_secs(30);
/// Statuses that are written at once.
const AT_ONCE: usize = 16;
/// How often statuses are compared when no object changes: others may have changed a status.
pub(super) const COMPARISON: Duration = Duration::from_secs(30);
/// Statuses that a pass writes because of progress alone, so that changes do not wait for them.
const PROGRESS_A_PASS: usize = 64;

/// Writes statuses.
pub(super) struct Statuses {
    client: Client,
    watched: Arc<Watched>,
    metrics: Arc<ControllerMetrics>,
    pub(super) events: EventPublisher,
    /// Objects whose status could not be written.
    pub(super) retries: Retries<ObjectName>,
    /// When the progress of an object was written, if that is not long ago.
    progress_written: BTreeMap<ObjectName, Instant>,
    /// The number of the document in which an object last changed, by domain.
    since: BTreeMap<ObjectName, BTreeMap<String, Since>>,
    /// When statuses are compared again, although nothing has changed.
    pub(super) due: Instant,
}

/// Since when an object has been as it is.
#[derive(Clone, Copy, Debug)]
struct Since {
    /// Of what the document says of it.
    fingerprint: u64,
    number: u64,
}

impl Statuses {
    pub(super) fn new(
        client: &Client,
        watched: Arc<Watched>,
        metrics: Arc<ControllerMetrics>,
        instance: String,
    ) -> Self {
        let reporter = Reporter { controller: MANAGER.to_owned(), instance: Some(instance) };
        Self {
            client: client.clone(),
            watched,
            metrics,
            events: EventPublisher::new(Recorder::new(client.clone(), reporter)),
            retries: Retries::default(),
            progress_written: BTreeMap::new(),
            since: BTreeMap::new(),
            due: Instant::now(),
        }
    }

    /// Forgets what it wrote and what failed, because another controller may have written
    /// meanwhile.
    pub(super) fn begin(&mut self) {
        self.progress_written.clear();
        self.since.clear();
        self.retries = Retries::default();
        self.due = Instant::now();
    }

    /// Writes the statuses that differ. Says whether all could be written.
    pub(super) async fn write(
        &mut self,
        domains: &Domains,
        merged: &MergedObjects,
        publisher: &Publisher,
        leadership: &Leadership,
    ) -> bool {
        let (wanted, mut is_whole) = self.differing(domains, merged, publisher);
        let this = &*self;
        let patches = wanted
            .iter()
            .map(|wanted| async move { (wanted, leadership.during(this.patch(wanted)).await) });
        let written: Vec<_> = stream::iter(patches).buffer_unordered(AT_ONCE).collect().await;
        let mut events = Vec::new();
        for (Wanted { name, uid, old, new }, written) in written {
            match written {
                Some(Ok(PatchEnd::Gone)) => self.retries.succeeded(name),
                Some(Ok(PatchEnd::Written)) => {
                    self.retries.succeeded(name);
                    events.extend(ObjectEvent::of(name, uid.clone(), old.as_ref(), new));
                }
                Some(Err(why)) => {
                    tracing::warn!("{why}");
                    self.retries.failed(name);
                    is_whole = false;
                }
                // It does not lead any more.
                None => is_whole = false,
            }
        }
        self.events.publish(events);
        self.due = self.retries.next().map_or(self.due, |retry| retry.min(self.due));
        is_whole
    }

    /// The statuses that should be written now, and whether these are all that differ.
    fn differing(
        &mut self,
        domains: &Domains,
        merged: &MergedObjects,
        publisher: &Publisher,
    ) -> (Vec<Wanted>, bool) {
        let now = Instant::now();
        self.due = now + COMPARISON;
        let second = Timestamp::now().as_second();
        let time = Timestamp::from_second(second).unwrap_or_default();
        let of_domains: Vec<_> = domains
            .iter()
            .zip(&merged.domains)
            .map(|(domain, merged)| (domain, merged, publisher.progress(domain.name())))
            .collect();
        let by_name: Vec<BTreeMap<&ObjectName, &PolicyOutcome>> = merged
            .domains
            .iter()
            .map(|of| of.document.outcomes.iter().map(|it| (&it.object, it)).collect())
            .collect();
        let mut is_whole = true;
        let (mut wanted, mut late, mut accepted, mut all) = (Vec::new(), 0_usize, 0_i64, 0_i64);
        let objects: BTreeMap<ObjectName, Value> =
            self.watched.objects(WatchedKind::QuotaPolicy).into_iter().collect();
        self.progress_written.retain(|_, at| at.elapsed() < PROGRESS);
        self.retries.retain(|name| objects.contains_key(name));
        self.since.retain(|name, _| objects.contains_key(name));
        for (name, value) in objects {
            let uid = value.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned);
            let (object, refused) = readable(&name, value, merged.unreadable.get(&name));
            let mut of_object = Vec::new();
            for ((domain, merged, progress), by_name) in of_domains.iter().zip(&by_name) {
                let outcome = refused.as_ref().or_else(|| by_name.get(&name).copied());
                let fingerprint = merged.fingerprints.get(&name).copied();
                let progress = progress.map(|progress| {
                    progress.since(self.since(&name, domain.name(), fingerprint, progress))
                });
                of_object.extend(outcome.map(|outcome| (*domain, outcome, progress)));
            }
            let outcomes = of_object.iter().map(|(domain, outcome, progress)| DomainOutcome {
                domain,
                outcome,
                progress: progress.as_ref().map_err(|fault| *fault),
            });
            let new = status(&name, &object, &outcomes.collect::<Vec<_>>(), time);
            all += 1;
            accepted += i64::from(is_accepted(&new));
            let old = object.status;
            match StatusChange::between(old.as_ref(), &new) {
                StatusChange::Nothing => self.retries.succeeded(&name),
                _ if !self.retries.is_due(&name) => is_whole = false,
                StatusChange::Progress => {
                    let due = self.progress_written.get(&name).map(|at| *at + PROGRESS);
                    let due = match late {
                        PROGRESS_A_PASS.. => Some(now),
                        _ => due.filter(|due| *due > now),
                    };
                    match due {
                        Some(due) => self.due = self.due.min(due),
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
        (wanted, is_whole)
    }

    /// The number of the document in which an object last changed. So a change of one object
    /// changes no status of another one.
    fn since(
        &mut self,
        name: &ObjectName,
        domain: &str,
        fingerprint: Option<u64>,
        progress: &DomainProgress,
    ) -> Option<u64> {
        let Some(fingerprint) = fingerprint else {
            // It is in no document. If it comes back, it counts from then on.
            if let Some(known) = self.since.get_mut(name) {
                known.remove(domain);
            }
            return None;
        };
        let newest = progress.number()?;
        let known = self.since.entry(name.clone()).or_default();
        let known = known
            .entry(domain.to_owned())
            .and_modify(|known| {
                let has = progress.published.as_ref().is_ok_and(|of| of.has(known.number));
                if known.fingerprint != fingerprint || !has {
                    *known = Since { fingerprint, number: newest };
                }
            })
            .or_insert(Since { fingerprint, number: newest });
        Some(known.number)
    }

    async fn patch(&self, wanted: &Wanted) -> Result<PatchEnd, String> {
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
                Ok(PatchEnd::Written)
            }
            // It was deleted meanwhile.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(PatchEnd::Gone),
            Err(error) => Err(format!("status of QuotaPolicy {name}: {error}")),
        }
    }
}

/// A status that differs.
struct Wanted {
    name: ObjectName,
    uid: Option<String>,
    old: Option<QuotaPolicyStatus>,
    new: QuotaPolicyStatus,
}

/// What became of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatchEnd {
    Written,
    /// The object is not there any more.
    Gone,
}

/// An object; or of one that cannot be read, what there is, and that it is refused.
fn readable(
    name: &ObjectName,
    value: Value,
    why: Option<&String>,
) -> (QuotaPolicy, Option<PolicyOutcome>) {
    let part = |part: &str| value.get(part).cloned().unwrap_or_default();
    let spec = serde_json::from_value(part("spec"));
    let why = why.cloned().or_else(|| spec.as_ref().err().map(ToString::to_string));
    let object = QuotaPolicy {
        metadata: serde_json::from_value(part("metadata")).unwrap_or_default(),
        spec: spec.unwrap_or_default(),
        status: serde_json::from_value(part("status")).ok(),
    };
    let Some(why) = why else { return (object, None) };
    let target = value.pointer("/spec/targetRefs/0");
    let text = |field: &str| {
        let text = target.and_then(|target| target.get(field)?.as_str());
        text.unwrap_or_default().to_owned()
    };
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

fn is_accepted(status: &QuotaPolicyStatus) -> bool {
    conditions(Some(status), "Accepted").iter().all(|(status, ..)| *status == "True")
}

#[cfg(test)]
mod tests {
    use quotagate_kubernetes::{Objects, PublishedNumber};
    use quotagate_operate::api::{DocumentRecord, PublishedDocuments};

    use super::*;
    use crate::controller::fake_api::FakeApi;
    use crate::controller::lineage::{FleetDocuments, Lineage};

    #[tokio::test]
    async fn object_keeps_its_number_until_the_document_says_something_else_of_it() {
        let api = FakeApi::default();
        let metrics = Arc::new(ControllerMetrics::new());
        let watched = Watched::of(&api, Arc::clone(&metrics));
        let mut statuses = Statuses::new(&api.client(), watched, metrics, "test".to_owned());
        let mut lineage = Lineage::default();
        // The last publication of several, and what the document says of two objects.
        for (number, before, of_first, of_second, expected) in [
            (1, &[1][..], Some(10), 20, [Some(1), Some(1)]),
            (2, &[1, 2], Some(10), 21, [Some(1), Some(2)]),
            (3, &[1, 2, 3], Some(10), 21, [Some(1), Some(2)]),
            (4, &[1, 2, 3, 4], Some(11), 21, [Some(4), Some(2)]),
            // An operator has published number 5.
            (6, &[1, 2, 3, 4, 5, 6], Some(11), 21, [Some(6), Some(6)]),
            // The first one has no place for a moment.
            (7, &[1, 2, 3, 4, 5, 6, 7], None, 21, [None, Some(6)]),
            (8, &[1, 2, 3, 4, 5, 6, 7, 8], Some(11), 21, [Some(8), Some(6)]),
        ] {
            let record =
                |number: &u64| DocumentRecord { number: *number, ..DocumentRecord::default() };
            let documents = before.iter().rev().map(record).collect();
            let listed = PublishedDocuments { documents, ..PublishedDocuments::default() };
            lineage.found(&PublishedNumber { number, digest: number.to_string() }, &listed);
            let progress = DomainProgress {
                published: Ok(lineage.clone()),
                fleet: Ok(FleetDocuments::default()),
            };
            let of_both = [("first", of_first), ("second", Some(of_second))];
            let since = of_both.map(|(name, fingerprint)| {
                let name = ObjectName { namespace: "team-a".to_owned(), name: name.to_owned() };
                statuses.since(&name, "shop", fingerprint, &progress)
            });
            assert_eq!(since, expected, "number {number}");
        }
    }

    #[test]
    fn status_of_another_version_does_not_refuse_an_object() {
        let mut value = json!({
            "apiVersion": "quotagate.io/v1alpha1", "kind": "QuotaPolicy",
            "metadata": {"namespace": "team-a", "name": "p"},
            "spec": {
                "targetRefs": [{"group": "g", "kind": "HTTPRoute", "name": "r"}],
                "policies": [{"name": "q", "partitionBy": [], "quota": 2, "window": "1m"}],
            },
            "status": {"ancestors": "none"},
        });
        let name = ObjectName { namespace: "team-a".to_owned(), name: "p".to_owned() };
        let (object, refused) = readable(&name, value.clone(), None);
        assert!(object.status.is_none() && refused.is_none());
        assert!(Objects::default().add(&value).is_ok());
        value["spec"]["policies"] = json!("none");
        assert!(readable(&name, value, None).1.is_some());
    }
}
