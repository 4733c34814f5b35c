//! A pass: merge what the cluster has, publish what differs, and write what became of it.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use kube::Client;
use quotagate_kubernetes::{Domains, MergedDocument, ObjectName, Objects, merge};
use serde_json::Value;
use tokio::time::Instant;

use super::documents::{DocumentStore, DocumentWish};
use super::leadership::Leadership;
use super::merged::{MergedDomain, MergedObjects};
use super::metrics::ControllerMetrics;
use super::publishing::{Publisher, StoreContact};
use super::statuses::Statuses;
use super::watched::Watched;
use super::watched_kinds::WatchedKind;

/// Makes passes.
pub(super) struct Reconciler {
    domains: Domains,
    pub(super) watched: Arc<Watched>,
    metrics: Arc<ControllerMetrics>,
    /// What the objects make, and after how many changes.
    merged: Option<(u64, MergedObjects)>,
    publisher: Publisher,
    statuses: Statuses,
}

/// How a pass ended.
#[derive(Debug)]
pub(super) struct PassEnd {
    /// Whether everything is published and written.
    pub(super) is_whole: bool,
    pub(super) contact: StoreContact,
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
        let (of, counts) = (Arc::clone(&watched), Arc::clone(&metrics));
        Self {
            domains,
            watched,
            merged: None,
            publisher: Publisher::new(store, Arc::clone(&metrics)),
            statuses: Statuses::new(client, of, counts, instance),
            metrics,
        }
    }

    /// Forgets what it wrote and what failed, because another controller may have acted meanwhile.
    pub(super) fn begin(&mut self) {
        self.publisher.begin();
        self.statuses.begin();
    }

    /// Publishes and writes as long as it leads.
    pub(super) async fn pass(&mut self, changes: u64, leadership: &Leadership) -> PassEnd {
        let begun = Instant::now();
        let (merged, is_merged) = match self.merged.take() {
            Some((of, merged)) if of == changes => (merged, false),
            _ => (self.merge(), true),
        };
        let Self { domains, publisher, statuses, .. } = self;
        let Some(done) = publisher.publish(domains, &merged.domains, leadership).await else {
            // It leads again soon, or another one does. What it has published is not written yet.
            let now = Instant::now();
            statuses.due = now;
            return PassEnd { is_whole: false, contact: StoreContact::None, due: now };
        };
        let mut is_whole = done.is_whole;
        let is_due = is_merged || done.is_changed || statuses.due <= Instant::now();
        if leadership.acts() && is_due {
            is_whole &= statuses.write(domains, &merged, publisher, leadership).await;
            self.metrics.passes.observe(begun.elapsed().as_secs_f64());
        }
        self.merged = Some((changes, merged));
        if !is_whole {
            self.metrics.faults.inc();
        }
        let (retry, due) = (self.publisher.retries.next(), self.statuses.due);
        let due = retry.map_or(due, |retry| retry.min(due));
        PassEnd { is_whole, contact: done.contact, due }
    }

    /// Waits until the events of its passes are published.
    pub(super) async fn finish(&mut self) {
        self.statuses.events.done().await;
    }

    /// A line for each object that is not accepted, or not in force.
    pub(super) fn refusals(&self) -> Vec<String> {
        let merged = self.merged.iter().flat_map(|(_, merged)| &merged.domains);
        let outcomes = merged.flat_map(|domain| &domain.document.outcomes);
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
        let domains = self.domains.iter().map(|domain| {
            let document = merge(&objects, domain);
            // A wrong name in the configuration is no reason to take what teams have out of force.
            let has_none = document.outcomes.iter().all(|outcome| outcome.policies.is_empty());
            let wish = match domain.lacks(&objects) {
                Some(why) if has_none && objects.names().next().is_some() => {
                    DocumentWish::Faulty(why)
                }
                _ => DocumentWish::of(&document),
            };
            let fingerprints = fingerprints(&document);
            MergedDomain { document, wish, fingerprints }
        });
        MergedObjects { domains: domains.collect(), unreadable }
    }
}

/// Of what a document says of each object: its policies, and the identities that they count by.
fn fingerprints(merged: &MergedDocument) -> BTreeMap<ObjectName, u64> {
    let Ok(document) = &merged.document else { return BTreeMap::new() };
    let policies = document.get("policies").and_then(Value::as_array).into_iter().flatten();
    let policies: BTreeMap<&str, &Value> =
        policies.filter_map(|policy| Some((policy.get("name")?.as_str()?, policy))).collect();
    let of_policy = |name: &str, hasher: &mut DefaultHasher| {
        let policy = policies.get(name).copied();
        policy.map(Value::to_string).hash(hasher);
        let entries = policy.and_then(|policy| policy.get("partition_by")?.as_array());
        for entry in entries.into_iter().flatten().filter_map(Value::as_str) {
            let identity = document.get("identities").and_then(|all| all.get(entry));
            identity.map(Value::to_string).hash(hasher);
        }
    };
    let of_object = |outcome: &quotagate_kubernetes::PolicyOutcome| {
        let mut hasher = DefaultHasher::new();
        for policy in &outcome.policies {
            policy.document_name.hash(&mut hasher);
            of_policy(&policy.document_name, &mut hasher);
        }
        (outcome.object.clone(), hasher.finish())
    };
    merged.outcomes.iter().filter(|outcome| !outcome.policies.is_empty()).map(of_object).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::path::PathBuf;
    use std::sync::Mutex;
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::controller::fake_api::FakeApi;
    use crate::controller::publishing::SLOW;
    use crate::controller::statuses::COMPARISON;
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
        (0..6).for_each(|_| scene.reconciler.statuses.retries.failed(&name("odd")));
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
        scene.reconciler.statuses.due = Instant::now();
        scene.pass().await;
        assert_eq!((*scene.watched.changes().borrow(), scene.patches("good")), (changes, 1));

        written["status"] = json!({"quota": "none"});
        scene.watched.apply(WatchedKind::QuotaPolicy, written).await;
        scene.pass().await;
        assert_eq!(scene.patches("good"), 1, "it compares now and then");
        scene.reconciler.statuses.due = Instant::now();
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
        let wish = |scene: &Scene| scene.reconciler.merge().domains.remove(0).wish;
        assert!(matches!(wish(&scene), DocumentWish::Document { .. }), "of no team");
        scene.apply(policy("good", 2)).await;
        assert!(matches!(wish(&scene), DocumentWish::Faulty(_)));
    }

    /// A route that a Gateway has accepted, with that Gateway.
    async fn accept(scene: &Scene, gateway: &str, route: &str) {
        let group = "gateway.networking.k8s.io";
        let of = json!({"kind": "Gateway", "namespace": "g", "name": gateway});
        let gateway = json!({
            "apiVersion": format!("{group}/v1"), "kind": "Gateway",
            "metadata": {"namespace": "g", "name": gateway},
            "spec": {"gatewayClassName": "any", "listeners": [
                {"name": "http", "port": 80, "protocol": "HTTP"},
            ]},
        });
        let route = json!({
            "apiVersion": format!("{group}/v1"), "kind": "HTTPRoute",
            "metadata": {"namespace": "team-a", "name": route},
            "spec": {"hostnames": ["r.example.com"], "rules": [{}]},
            "status": {"parents": [{
                "parentRef": of,
                "controllerName": "gateway.envoyproxy.io/gatewayclass-controller",
                "conditions": [{"type": "Accepted", "status": "True"}],
            }]},
        });
        scene.watched.apply(WatchedKind::Gateway, gateway).await;
        scene.watched.apply(WatchedKind::HttpRoute, route).await;
    }

    #[tokio::test]
    async fn domain_without_a_list_withdraws_its_document_when_its_objects_have_no_gateway() {
        let mut scene = Scene::new().await;
        accept(&scene, "public", "r").await;
        accept(&scene, "inner", "other").await;
        scene.apply(policy("good", 2)).await;
        let wish = |scene: &Scene| scene.reconciler.merge().domains.remove(0).wish;
        assert!(matches!(wish(&scene), DocumentWish::Document { .. }));
        let gateway = |name: &str| {
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": {"namespace": "g", "name": name},
            })
        };
        scene.watched.delete(WatchedKind::Gateway, gateway("public")).await;
        assert!(matches!(wish(&scene), DocumentWish::Nothing));
        // A domain that lists it keeps its document.
        let listed = json!({"domains": [
            {"domain": "shop", "gateways": ["g/public"], "store": {"cluster": "c"}},
        ]});
        let without_list =
            std::mem::replace(&mut scene.reconciler.domains, Domains::read(&listed).unwrap());
        assert!(matches!(wish(&scene), DocumentWish::Faulty(_)));
        // So does one whose last Gateway is gone.
        scene.reconciler.domains = without_list;
        scene.watched.delete(WatchedKind::Gateway, gateway("inner")).await;
        assert!(matches!(wish(&scene), DocumentWish::Faulty(_)));
    }

    #[tokio::test]
    async fn fingerprint_changes_with_the_policies_and_identities_of_the_object_alone() {
        let mut scene = Scene::new().await;
        accept(&scene, "public", "r").await;
        let domains = |header: &str| {
            let caller = json!([{"header": {"name": header}}]);
            let domain = json!({
                "domain": "shop", "store": {"cluster": "c"}, "identities": {"caller": caller},
            });
            Domains::read(&json!({"domains": [domain]})).unwrap()
        };
        let object = |name: &str, quota: u64, entry: &str, header: &str| {
            let mut object = policy(name, quota);
            object["spec"]["identities"] = json!({name: [{"header": {"name": header}}]});
            object["spec"]["policies"][0]["partitionBy"] = json!([entry]);
            object
        };
        scene.reconciler.domains = domains("x-caller");
        scene.apply(object("a", 1, "a", "x-a")).await;
        scene.apply(object("b", 1, "platform/caller", "x-b")).await;
        scene.apply(object("c", 1, "platform/caller", "x-c")).await;
        let fingerprints = |scene: &Scene| {
            let found = scene.reconciler.merge().domains.remove(0).fingerprints;
            ["a", "b", "c"].map(|of| found[&name(of)])
        };
        // Which of the three change.
        let mut last = fingerprints(&scene);
        let mut changed = |scene: &Scene| {
            let new = fingerprints(scene);
            let old = std::mem::replace(&mut last, new);
            [old[0] != new[0], old[1] != new[1], old[2] != new[2]]
        };
        assert_eq!(changed(&scene), [false, false, false], "nothing has changed");
        scene.apply(object("b", 2, "platform/caller", "x-b")).await;
        assert_eq!(changed(&scene), [false, true, false], "a quota");
        scene.apply(object("a", 1, "a", "x-other")).await;
        assert_eq!(changed(&scene), [true, false, false], "a source of an own identity");
        scene.reconciler.domains = domains("x-other-caller");
        assert_eq!(changed(&scene), [false, true, true], "an identity of the platform");
    }

    #[tokio::test]
    async fn domain_that_takes_too_long_is_tried_again_and_stops_no_status() {
        let mut scene = Scene::new().await;
        // It accepts connections and never answers.
        let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = hangs.local_addr().unwrap().to_string().parse().unwrap();
        scene.reconciler.publisher.store =
            DocumentStore::new(address, None, "test".to_owned(), "cluster 1");
        scene.apply(policy("good", 2)).await;
        let domain = |name: &str, gateways: &[&str]| json!({"domain": name, "gateways": gateways, "store": {"cluster": "c"}});
        let domains = json!({"domains": [domain("shop", &["g/a"]), domain("other", &["g/b"])]});
        scene.reconciler.domains = Domains::read(&domains).unwrap();
        let leadership = Leadership::renewed_after(Duration::from_millis(50));
        let end = scene.reconciler.pass(1, &leadership).await;
        assert!(!end.is_whole);
        // It was not asked for the second one, which has not failed.
        let is_due = |name: &str| scene.reconciler.publisher.retries.is_due(&name.to_owned());
        assert_eq!([is_due("other"), is_due("shop")], [false, true]);
        assert_eq!(scene.patches("good"), 1);
    }

    /// A store that cannot read any domain, and takes so long to say so. Returns its address, and
    /// the domains that it is asked for.
    fn store_that_answers(
        status: &'static str,
        takes: Duration,
    ) -> (AdminAddr, Arc<Mutex<Vec<String>>>) {
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
                let body = r#"{"error":"not now"}"#;
                let answer = format!(
                    "HTTP/1.1 {status}\r\nx-quotagate-store: 1\r\ncontent-length: {}\r\n\
                     connection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes());
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
            let (address, asked) = store_that_answers("503 Service Unavailable", takes);
            scene.reconciler.publisher.store =
                DocumentStore::new(address, None, "test".to_owned(), "cluster 1");
            let domain = |name: &str| json!({"domain": name, "gateways": [format!("g/{name}")], "store": {"cluster": "c"}});
            let domains = json!({"domains": [domain("other"), domain("shop")]});
            scene.reconciler.domains = Domains::read(&domains).unwrap();
            for expected in [first, second] {
                let end = scene.pass().await;
                let asked = std::mem::take(&mut *asked.lock().unwrap());
                assert_eq!(asked, *expected, "{takes:?}");
                let contact = match asked.is_empty() {
                    true => StoreContact::None,
                    false => StoreContact::Unreachable,
                };
                assert_eq!(end.contact, contact, "{takes:?}");
            }
        }
    }

    #[tokio::test]
    async fn store_that_refuses_the_controller_has_answered() {
        let mut scene = Scene::new().await;
        let (address, _asked) = store_that_answers("403 Forbidden", Duration::ZERO);
        scene.reconciler.publisher.store =
            DocumentStore::new(address, None, "test".to_owned(), "cluster 1");
        let end = scene.pass().await;
        assert!(!end.is_whole);
        assert_eq!(end.contact, StoreContact::Answered);
    }

    #[tokio::test]
    async fn store_is_not_asked_with_a_token_that_cannot_be_read() {
        let mut scene = Scene::new().await;
        let (address, asked) = store_that_answers("403 Forbidden", Duration::ZERO);
        let missing = Some(PathBuf::from("/there/is/no/token"));
        scene.reconciler.publisher.store =
            DocumentStore::new(address, missing, "test".to_owned(), "cluster 1");
        let end = scene.pass().await;
        assert!(!end.is_whole && asked.lock().unwrap().is_empty());
        assert_eq!(end.contact, StoreContact::NoToken);
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
}
