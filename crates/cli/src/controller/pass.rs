//! A pass: merge what the cluster has, publish what differs, and write what became of it.

use std::collections::{BTreeMap, BTreeSet};
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
    StoreFault, Verdict, merge, status,
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::documents::{DocumentStore, DocumentWish, SettleEnd};
use super::leadership::Leadership;
use super::metrics::{AcceptedLabel, ControllerMetrics, DomainLabel};
use super::retry::Retries;
use super::watched::{Watched, WatchedKind};

/// Who owns the fields of a status.
const MANAGER: &str = "quotagate-controller";
/// How often the status of an object may change because of its proxies, or because other objects
/// made a new document.
const PROGRESS: Duration = Duration::from_secs(30);
/// How long the API server may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// After so long an answer, the store is asked for no further domain in this pass.
const SLOW: Duration = Duration::from_secs(2);
/// Most bytes of the note of an event.
const MAX_NOTE: usize = 1024;
/// Statuses that are written at once.
const AT_ONCE: usize = 16;
/// How often statuses are compared when no object changes: others may have changed a status.
const COMPARISON: Duration = Duration::from_secs(30);
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
    progress: BTreeMap<String, Result<DocumentProgress, StoreFault>>,
    /// What was said last of a domain.
    said: BTreeMap<String, Option<(bool, String)>>,
    /// Domains that could not be settled, and objects whose status could not be written.
    domain_retries: Retries<String>,
    status_retries: Retries<ObjectName>,
    /// The first domain that the last pass did not ask for.
    not_asked: Option<String>,
    /// When the progress of an object was written, if that is not long ago.
    progress_written: BTreeMap<ObjectName, Instant>,
    /// When statuses are compared again, although nothing has changed.
    due: Instant,
}

/// What the objects make.
struct MergedObjects {
    /// A document a domain, and what should be published.
    documents: Vec<(MergedDocument, DocumentWish)>,
    /// Objects that cannot be read, and why.
    unreadable: BTreeMap<ObjectName, String>,
}

/// How a pass ended.
#[derive(Debug)]
pub(super) struct PassEnd {
    /// Whether everything is published and written.
    pub(super) is_whole: bool,
    /// When the next one is due.
    pub(super) due: Instant,
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
            said: BTreeMap::new(),
            domain_retries: Retries::default(),
            status_retries: Retries::default(),
            not_asked: None,
            progress_written: BTreeMap::new(),
            due: Instant::now(),
        }
    }

    /// Forgets what it wrote and what failed, because another controller may have acted meanwhile.
    pub(super) fn begin(&mut self) {
        self.progress_written.clear();
        self.progress.clear();
        self.store.begin();
        self.domain_retries = Retries::default();
        self.status_retries = Retries::default();
        self.due = Instant::now();
    }

    /// Publishes and writes as long as it leads.
    pub(super) async fn pass(&mut self, changes: u64, leadership: &Leadership) -> PassEnd {
        let begun = Instant::now();
        let (mut is_changed, mut is_whole, mut is_slow) = (false, true, false);
        let merged = match self.merged.take() {
            Some((of, merged)) if of == changes => merged,
            _ => {
                is_changed = true;
                self.merge()
            }
        };
        let mut domains: Vec<_> = self.domains.iter().zip(&merged.documents).collect();
        let first = self.not_asked.take();
        let first = domains.iter().position(|(domain, _)| Some(domain.name()) == first.as_deref());
        domains.rotate_left(first.unwrap_or_default());
        for (domain, (_, wish)) in domains {
            let name = domain.name().to_owned();
            if !self.domain_retries.is_due(&name) {
                is_whole = false;
                continue;
            }
            let asked = Instant::now();
            let settled = match is_slow {
                // Statuses wait for this, so the next pass asks for it first.
                true => self.store.late(&name, wish),
                false => match leadership.during(self.store.settle(domain, wish)).await {
                    Some(settled) => settled,
                    // Its time was over, but the Lease was renewed meanwhile.
                    None if leadership.acts() => self.store.late(&name, wish),
                    None => return PassEnd { is_whole: false, due: Instant::now() },
                },
            };
            match settled.end {
                SettleEnd::Failed(_) if is_slow => {
                    self.not_asked.get_or_insert(name.clone());
                }
                SettleEnd::Failed(_) => self.domain_retries.failed(&name),
                _ => self.domain_retries.succeeded(&name),
            }
            is_slow |= asked.elapsed() >= SLOW;
            is_whole &= settled.end.is_good();
            self.note(&name, &settled.end, settled.progress.as_ref().ok());
            settled.end.say(self.said.entry(name.clone()).or_default());
            is_changed |= self.progress.get(&name) != Some(&settled.progress);
            self.progress.insert(name, settled.progress);
        }
        if leadership.acts() && (is_changed || self.due <= Instant::now()) {
            is_whole &= self.write(&merged, leadership).await;
            self.metrics.passes.observe(begun.elapsed().as_secs_f64());
        }
        self.merged = Some((changes, merged));
        if !is_whole {
            self.metrics.faults.inc();
        }
        let due = self.domain_retries.next().map_or(self.due, |retry| retry.min(self.due));
        PassEnd { is_whole, due }
    }

    /// Counts what became of a domain.
    fn note(&self, domain: &str, end: &SettleEnd, progress: Option<&DocumentProgress>) {
        let label = DomainLabel { domain: domain.to_owned() };
        if matches!(end, SettleEnd::Changed(_)) {
            self.metrics.published.get_or_create(&label).inc();
        }
        self.metrics.unpublished.get_or_create(&label).set(i64::from(!end.is_good()));
        let published = progress.and_then(|progress| progress.published.as_ref().ok());
        let number = published.map_or(0, |published| published.number);
        self.metrics.documents.get_or_create(&label).set(number);
    }

    /// A line for each object that is not accepted, or not in force.
    pub(super) fn refusals(&self) -> Vec<String> {
        let merged = self.merged.iter().flat_map(|(_, merged)| &merged.documents);
        let outcomes = merged.flat_map(|(document, _)| &document.outcomes);
        outcomes.flat_map(crate::merge::refusals).collect()
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
            // A wrong name in the configuration is no reason to take what teams have out of force.
            let has_none = merged.outcomes.iter().all(|outcome| outcome.policies.is_empty());
            let wish = match domain.lacks(&objects) {
                Some(why) if has_none && objects.names().next().is_some() => {
                    DocumentWish::Faulty(why)
                }
                _ => DocumentWish::of(&merged),
            };
            (merged, wish)
        });
        MergedObjects { documents: documents.collect(), unreadable }
    }

    /// Writes the statuses that differ. Says whether all could be written.
    async fn write(&mut self, merged: &MergedObjects, leadership: &Leadership) -> bool {
        let now = Instant::now();
        self.due = now + COMPARISON;
        let second = Timestamp::now().as_second();
        let time = Timestamp::from_second(second).unwrap_or_default();
        let by_name: Vec<BTreeMap<&ObjectName, &PolicyOutcome>> = merged
            .documents
            .iter()
            .map(|(document, _)| {
                document.outcomes.iter().map(|outcome| (&outcome.object, outcome)).collect()
            })
            .collect();
        let mut is_whole = true;
        let (mut wanted, mut late, mut accepted, mut all) = (Vec::new(), 0_usize, 0_i64, 0_i64);
        let objects = self.watched.objects(WatchedKind::QuotaPolicy);
        self.progress_written.retain(|_, at| at.elapsed() < PROGRESS);
        let names: BTreeSet<&ObjectName> = objects.iter().map(|(name, _)| name).collect();
        self.status_retries.retain(|name| names.contains(name));
        for (name, value) in objects {
            let uid = value.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned);
            let (object, refused) = readable(&name, value, merged.unreadable.get(&name));
            let outcomes = self.domains.iter().zip(&by_name).filter_map(|(domain, by_name)| {
                let outcome = refused.as_ref().or_else(|| by_name.get(&name).copied())?;
                let progress = self.progress.get(domain.name());
                let progress = progress.map_or(Err(StoreFault::Unreachable), |progress| {
                    progress.as_ref().map_err(|fault| *fault)
                });
                Some(DomainOutcome { domain, outcome, progress })
            });
            let new = status(&name, &object, &outcomes.collect::<Vec<_>>(), time);
            all += 1;
            accepted += i64::from(is_accepted(&new));
            let old = object.status;
            match StatusChange::between(old.as_ref(), &new) {
                StatusChange::Nothing => self.status_retries.succeeded(&name),
                _ if !self.status_retries.is_due(&name) => is_whole = false,
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
        let this = &*self;
        let patches = wanted.iter().map(|wanted| async move {
            (&wanted.name, leadership.during(this.patch(wanted)).await)
        });
        let written: Vec<_> = stream::iter(patches).buffer_unordered(AT_ONCE).collect().await;
        for (name, written) in written {
            match written {
                Some(Ok(())) => self.status_retries.succeeded(name),
                Some(Err(why)) => {
                    tracing::warn!("{why}");
                    self.status_retries.failed(name);
                    is_whole = false;
                }
                // It does not lead any more.
                None => is_whole = false,
            }
        }
        self.due = self.status_retries.next().map_or(self.due, |retry| retry.min(self.due));
        is_whole
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
        if let Some((type_, reason, mut note)) = news(wanted.old.as_ref(), new) {
            if note.len() > MAX_NOTE {
                while note.len() > MAX_NOTE - 3 {
                    note.pop();
                }
                note.push_str("...");
            }
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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::sync::Mutex;

    use super::*;
    use crate::controller::fake_api::FakeApi;
    use crate::operate::AdminAddr;

    const POLICIES: &str = "/apis/quotagate.io/v1alpha1/namespaces/team-a/quotapolicies";

    fn policy(name: &str, quota: u64) -> Value {
        json!({
            "apiVersion": "quotagate.io/v1alpha1", "kind": "QuotaPolicy",
            "metadata": {"namespace": "team-a", "name": name, "generation": quota},
            "spec": {
                "targetRefs": [
                    {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "r"},
                ],
                "policies": [
                    {"name": name, "partitionBy": [], "quota": quota, "window": "1m"},
                ],
            },
        })
    }

    fn name(name: &str) -> ObjectName {
        ObjectName { namespace: "team-a".to_owned(), name: name.to_owned() }
    }

    /// Makes passes beside a store that is away.
    struct Scene {
        api: FakeApi,
        watched: Arc<Watched>,
        reconciler: Reconciler,
    }

    impl Scene {
        async fn new() -> Self {
            let api = FakeApi::default();
            let metrics = Arc::new(ControllerMetrics::new());
            let watched = Watched::of(&api, Arc::clone(&metrics));
            let away = "127.0.0.1:1".parse().unwrap();
            let store = DocumentStore::new(away, None, "test".to_owned(), "cluster 1");
            let domains = Domains::one("shop").unwrap();
            let name = "test".to_owned();
            let (client, of) = (api.client(), Arc::clone(&watched));
            let reconciler = Reconciler::new(&client, domains, of, store, metrics, name);
            Self { api, watched, reconciler }
        }

        async fn apply(&self, policy: Value) {
            let name = policy["metadata"]["name"].as_str().unwrap();
            self.api.put(&format!("{POLICIES}/{name}"), policy.clone());
            self.watched.apply(WatchedKind::QuotaPolicy, policy).await;
        }

        async fn pass(&mut self) -> PassEnd {
            let changes = *self.watched.changes().borrow();
            self.reconciler.pass(changes, &Leadership::renewed(Instant::now())).await
        }

        fn patches(&self, name: &str) -> usize {
            self.api.calls("PATCH", &format!("{name}/status"))
        }
    }

    #[tokio::test]
    async fn status_that_is_rejected_holds_back_no_other_and_is_not_tried_again_at_once() {
        let mut scene = Scene::new().await;
        scene.api.refuses("odd/status", 422);
        scene.apply(policy("odd", 1)).await;
        scene.apply(policy("good", 2)).await;
        let end = scene.pass().await;
        assert!(!end.is_whole && end.due < Instant::now() + COMPARISON);
        assert_eq!([scene.patches("odd"), scene.patches("good")], [1, 1]);
        // On a busy machine, one second may pass until the next one.
        (0..6).for_each(|_| scene.reconciler.status_retries.failed(&name("odd")));
        scene.apply(policy("third", 3)).await;
        scene.pass().await;
        assert_eq!(
            [scene.patches("odd"), scene.patches("good"), scene.patches("third")],
            [1, 1, 1]
        );
    }

    #[tokio::test]
    async fn own_statuses_make_no_further_pass_and_those_of_others_are_set_right() {
        let mut scene = Scene::new().await;
        scene.apply(policy("good", 2)).await;
        scene.pass().await;
        let changes = *scene.watched.changes().borrow();
        let mut written = scene.api.get(&format!("{POLICIES}/good"));
        assert_eq!(written["status"]["quota"], "2/1m");
        scene.watched.apply(WatchedKind::QuotaPolicy, written.clone()).await;
        scene.reconciler.due = Instant::now();
        scene.pass().await;
        assert_eq!((*scene.watched.changes().borrow(), scene.patches("good")), (changes, 1));

        written["status"] = json!({"quota": "none"});
        scene.watched.apply(WatchedKind::QuotaPolicy, written).await;
        scene.pass().await;
        assert_eq!(scene.patches("good"), 1, "it compares now and then");
        scene.reconciler.due = Instant::now();
        scene.pass().await;
        assert_eq!(scene.patches("good"), 2);
    }

    #[tokio::test]
    async fn gateway_that_is_not_there_takes_no_quota_out_of_force() {
        let mut scene = Scene::new().await;
        let own = json!([{"name": "own", "partition_by": [], "quota": 9, "window": "1m"}]);
        let domains = json!({"domains": [{
            "domain": "shop", "gateways": ["g/mistyped"], "store": {"cluster": "c"}, "policies": own
        }]});
        scene.reconciler.domains = Domains::read(&domains).unwrap();
        let wish = |scene: &Scene| scene.reconciler.merge().documents.remove(0).1;
        assert!(matches!(wish(&scene), DocumentWish::Document { .. }), "of no team");
        scene.apply(policy("good", 2)).await;
        assert!(matches!(wish(&scene), DocumentWish::Faulty(_)));
    }

    #[tokio::test]
    async fn domain_that_takes_too_long_is_tried_again_and_stops_no_status() {
        let mut scene = Scene::new().await;
        // It accepts connections and never answers.
        let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = hangs.local_addr().unwrap().to_string().parse().unwrap();
        scene.reconciler.store = DocumentStore::new(address, None, "test".to_owned(), "cluster 1");
        scene.apply(policy("good", 2)).await;
        let domain = |name: &str, gateways: &[&str]| json!({"domain": name, "gateways": gateways, "store": {"cluster": "c"}});
        let domains = json!({"domains": [domain("shop", &["g/a"]), domain("other", &["g/b"])]});
        scene.reconciler.domains = Domains::read(&domains).unwrap();
        let leadership = Leadership::renewed_after(Duration::from_millis(50));
        let end = scene.reconciler.pass(1, &leadership).await;
        assert!(!end.is_whole);
        // It was not asked for the second one, which has not failed.
        let is_due = |name: &str| scene.reconciler.domain_retries.is_due(&name.to_owned());
        assert_eq!([is_due("other"), is_due("shop")], [false, true]);
        assert_eq!(scene.patches("good"), 1);
    }

    /// A store that cannot read any domain, and takes so long to say so. Returns its address, and
    /// the domains that it is asked for.
    fn store_without_redis(takes: Duration) -> (AdminAddr, Arc<Mutex<Vec<String>>>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let note = Arc::clone(&asked);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut request = [0; 4096];
                let read = stream.read(&mut request).unwrap_or_default();
                let text = String::from_utf8_lossy(&request[..read]);
                let domain = ["shop", "other"].into_iter().find(|name| text.contains(name));
                note.lock().unwrap().push(domain.unwrap_or_default().to_owned());
                std::thread::sleep(takes);
                let _ = stream.write_all(
                    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
                );
            }
        });
        (address, asked)
    }

    #[tokio::test]
    async fn domain_that_the_store_cannot_serve_keeps_no_other_from_being_asked() {
        for (takes, first, second) in [
            (Duration::ZERO, &["other", "shop"][..], &[][..]),
            // So slow that statuses would wait: the next pass begins with the other one.
            (SLOW + Duration::from_millis(100), &["other"][..], &["shop"][..]),
        ] {
            let mut scene = Scene::new().await;
            let (address, asked) = store_without_redis(takes);
            scene.reconciler.store =
                DocumentStore::new(address, None, "test".to_owned(), "cluster 1");
            let domain = |name: &str| json!({"domain": name, "gateways": [format!("g/{name}")], "store": {"cluster": "c"}});
            let domains = json!({"domains": [domain("other"), domain("shop")]});
            scene.reconciler.domains = Domains::read(&domains).unwrap();
            for expected in [first, second] {
                scene.pass().await;
                let asked = std::mem::take(&mut *asked.lock().unwrap());
                assert_eq!(asked, *expected, "{takes:?}");
            }
        }
    }

    #[tokio::test]
    async fn who_does_not_lead_writes_nothing() {
        let mut scene = Scene::new().await;
        scene.apply(policy("good", 2)).await;
        let before = Leadership::renewed(Instant::now() - Duration::from_secs(60));
        let end = scene.reconciler.pass(1, &before).await;
        assert!(!end.is_whole);
        assert_eq!(scene.patches("good"), 0);
    }

    #[test]
    fn status_of_another_version_does_not_refuse_an_object() {
        let mut value = policy("p", 2);
        value["status"] = json!({"ancestors": "none"});
        let name = name("p");
        let (object, refused) = readable(&name, value.clone(), None);
        assert!(object.status.is_none() && refused.is_none());
        assert!(Objects::default().add(&value).is_ok());
        value["spec"]["policies"] = json!("none");
        assert!(readable(&name, value, None).1.is_some());
    }
}
