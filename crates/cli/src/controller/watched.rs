//! What the API server has, kept up to date by watches.
//!
//! Of each object only what a merge reads is kept. A change of anything else, such as the status
//! that this controller writes, wakes nobody.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use kube::api::{Api, DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use quotagate_kubernetes::{ObjectName, Objects, QuotaPolicyStatus};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::metrics::{ControllerMetrics, KindLabel};
use super::retry::pause;
use super::watched_kinds::{GATEWAY_API, WatchedKind};

/// After so many failures in a row, a kind counts as unknown, and one that the API server does not
/// serve as absent.
const MANY: u32 = 4;
/// How long the API server may take for a part of a list. The limit of the client is longer.
const LIST: Duration = Duration::from_secs(30);
/// A watch without a failure for so long works, also if it has nothing to tell.
const CALM: Duration = Duration::from_secs(300);

/// Objects of one kind.
#[derive(Debug, Default)]
struct KindObjects {
    known: BTreeMap<ObjectName, Value>,
    /// Those of a list that is being read.
    listed: BTreeMap<ObjectName, Value>,
    is_ready: bool,
    /// Whether a list is being read: the first one, or one after a watch that has expired.
    is_listing: bool,
    /// Failures of its watch in a row, how many of them said that there is no such kind, and the
    /// last one.
    failures: u32,
    absences: u32,
    failed: Option<(Instant, String)>,
    /// Whether the API server does not serve it, and need not.
    is_absent: bool,
}

/// How patient watches are.
#[derive(Clone, Copy)]
struct WatchPace {
    /// How long the API server may take for a part of a list.
    list: Duration,
    /// How long a watch rests after so many failures in a row.
    rest: fn(u32) -> Duration,
}

impl WatchPace {
    const USUAL: Self = Self { list: LIST, rest: pause };
}

/// All objects.
pub(super) struct Watched {
    client: Client,
    kinds: BTreeMap<WatchedKind, Mutex<KindObjects>>,
    /// Changes by one with each change that a merge would see.
    changes: watch::Sender<u64>,
    metrics: Arc<ControllerMetrics>,
    pace: WatchPace,
    tasks: Mutex<JoinSet<()>>,
}

impl Watched {
    /// Begins to watch.
    pub(super) fn start(client: Client, metrics: Arc<ControllerMetrics>) -> Arc<Self> {
        let watched = Self::new(client, metrics, WatchPace::USUAL);
        watched.relist();
        watched
    }

    fn new(client: Client, metrics: Arc<ControllerMetrics>, pace: WatchPace) -> Arc<Self> {
        let kinds = WatchedKind::ALL.map(|kind| (kind, Mutex::default())).into();
        let changes = watch::Sender::new(0);
        Arc::new(Self { client, kinds, changes, metrics, pace, tasks: Mutex::default() })
    }

    /// One that watches nothing.
    #[cfg(test)]
    pub(super) fn of(api: &super::fake_api::FakeApi, metrics: Arc<ControllerMetrics>) -> Arc<Self> {
        Self::new(api.client(), metrics, WatchPace::USUAL)
    }

    /// Takes an object as its watch would tell it, once all were listed.
    #[cfg(test)]
    pub(super) async fn apply(&self, kind: WatchedKind, object: Value) {
        self.lock(kind).unwrap().is_ready = true;
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        self.take(kind, Ok(Event::Apply(object))).await;
    }

    /// Takes it that this object was deleted.
    #[cfg(test)]
    pub(super) async fn delete(&self, kind: WatchedKind, object: Value) {
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        self.take(kind, Ok(Event::Delete(object))).await;
    }

    /// Reads everything anew, and watches from there: a watch that hangs does not say that it is
    /// outdated. Until then it is not ready.
    pub(super) fn relist(self: &Arc<Self>) {
        let mut tasks = JoinSet::new();
        for kind in WatchedKind::ALL {
            self.lock(kind).into_iter().for_each(|mut objects| objects.begin());
            let of_kind = Arc::clone(self);
            let (client, resource) = (self.client.clone(), kind.resource());
            let config = watcher::Config::default();
            match kind {
                // Only their labels are read.
                WatchedKind::Service | WatchedKind::Namespace => {
                    let api: Api<PartialObjectMeta<DynamicObject>> =
                        Api::all_with(client, &resource);
                    let begin = move || watcher(api.clone(), config.clone());
                    tasks.spawn(of_kind.follow(kind, begin));
                }
                _ => {
                    let api: Api<DynamicObject> = Api::all_with(client, &resource);
                    let begin = move || watcher(api.clone(), config.clone());
                    tasks.spawn(of_kind.follow(kind, begin));
                }
            }
        }
        // The watches before end here.
        *self.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
    }

    /// Changes with each change that a merge would see.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether every kind was listed.
    pub(super) fn is_ready(&self) -> bool {
        WatchedKind::ALL.iter().all(|kind| self.lock(*kind).is_some_and(|kind| kind.is_ready))
    }

    /// Waits until every kind was listed.
    pub(super) async fn ready(&self) {
        let mut changes = self.changes();
        // The sender lives as long as `self`.
        let _ = changes.wait_for(|_| self.is_ready()).await;
    }

    /// The kinds that are not known, or not any more, each with the reason.
    pub(super) fn unknown(&self) -> Vec<String> {
        let unknown = |kind: WatchedKind| {
            let objects = self.lock(kind)?;
            let why = objects.failed.as_ref().map_or("not read yet", |(_, why)| why);
            (!objects.is_ready || objects.faults() >= MANY)
                .then(|| format!("{}: {why}", kind.resource().plural))
        };
        WatchedKind::ALL.into_iter().filter_map(unknown).collect()
    }

    /// What tells this cluster from others.
    pub(super) fn cluster(&self) -> String {
        let namespaces = self.objects(WatchedKind::Namespace).into_iter();
        let mut system = namespaces.filter(|(name, _)| name.name == "kube-system");
        let uid = system
            .next()
            .and_then(|(_, object)| Some(object.pointer("/metadata/uid")?.as_str()?.to_owned()));
        format!("cluster {}", uid.unwrap_or_default())
    }

    /// The objects of a kind.
    pub(super) fn objects(&self, kind: WatchedKind) -> Vec<(ObjectName, Value)> {
        let objects = self.lock(kind);
        let known = objects.iter().flat_map(|objects| &objects.known);
        known.map(|(name, object)| (name.clone(), object.clone())).collect()
    }

    /// All objects.
    pub(super) fn all(&self) -> Vec<(WatchedKind, ObjectName, Value)> {
        let of_kind = |kind| self.objects(kind).into_iter().map(move |(name, it)| (kind, name, it));
        WatchedKind::ALL.into_iter().flat_map(of_kind).collect()
    }

    /// Notes a status that was written, before its watch event comes.
    pub(super) fn wrote(&self, name: &ObjectName, status: &QuotaPolicyStatus) {
        let mut objects = self.lock(WatchedKind::QuotaPolicy);
        let known = objects.as_mut().and_then(|objects| objects.known.get_mut(name));
        if let Some(known) = known {
            known["status"] = json!(status);
        }
    }

    fn lock(&self, kind: WatchedKind) -> Option<MutexGuard<'_, KindObjects>> {
        Some(self.kinds.get(&kind)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Follows a watch, and begins it anew if it ends, or if a list hangs. Until the list is there,
    /// what was known before counts.
    async fn follow<K, S>(self: Arc<Self>, kind: WatchedKind, begin: impl Fn() -> S)
    where
        K: ResourceExt + Serialize,
        S: Stream<Item = watcher::Result<Event<K>>>,
    {
        loop {
            let mut stream = pin!(begin());
            loop {
                // A watch may have nothing to tell for long.
                let is_quiet =
                    self.lock(kind).is_some_and(|objects| objects.is_ready && !objects.is_listing);
                let event = match is_quiet {
                    true => Ok(stream.next().await),
                    false => timeout(self.pace.list, stream.next()).await,
                };
                match event {
                    Ok(Some(event)) => sleep(self.take(kind, event).await).await,
                    Ok(None) => break,
                    Err(_) => {
                        let why = "the API server does not answer a list";
                        let failures = self.lock(kind).map(|mut of| of.fail(kind, why, false));
                        sleep((self.pace.rest)(failures.unwrap_or_default())).await;
                        break;
                    }
                }
            }
        }
    }

    /// Takes what a watch says, and says how long the watch should rest. The watch would begin
    /// anew at once, and says `Init` before each list, also before one that fails.
    async fn take<K: ResourceExt + Serialize>(
        &self,
        kind: WatchedKind,
        event: watcher::Result<Event<K>>,
    ) -> Duration {
        let (mut is_changed, failures) =
            self.lock(kind).map_or_else(Default::default, |mut objects| match event {
                Ok(event) => (objects.take(kind, event), 0),
                Err(error) => (false, objects.fail(kind, &error.to_string(), is_absent(&error))),
            });
        if kind == WatchedKind::GrpcRoute && failures > 0 && self.has_no_grpc_routes().await {
            is_changed |= self.lock(kind).is_some_and(|mut objects| objects.are_none(kind));
        }
        let label = KindLabel { kind: kind.resource().plural };
        let faults = self.lock(kind).map_or(0, |objects| objects.faults());
        self.metrics.watch_failures.get_or_create(&label).set(faults.into());
        if is_changed {
            self.changes.send_modify(|changes| *changes += 1);
        }
        (self.pace.rest)(failures)
    }

    /// Whether the API server serves HTTPRoutes, and no GRPCRoutes: not every Gateway API has them.
    /// A server that has just started serves none of both.
    async fn has_no_grpc_routes(&self) -> bool {
        if self.lock(WatchedKind::GrpcRoute).is_none_or(|grpc| grpc.absences < MANY) {
            return false;
        }
        let served = self.client.list_api_group_resources(&format!("{GATEWAY_API}/v1")).await;
        let has = |kind: WatchedKind| {
            let mut all = served.iter().flat_map(|served| &served.resources);
            all.any(|found| found.name == kind.resource().plural)
        };
        has(WatchedKind::HttpRoute) && !has(WatchedKind::GrpcRoute)
    }
}

/// Whether the API server does not know the kind.
fn is_absent(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    }
}

impl KindObjects {
    /// Takes an event, and says whether a merge would see a change.
    fn take<K: ResourceExt + Serialize>(&mut self, kind: WatchedKind, event: Event<K>) -> bool {
        let named = |object: &K| {
            let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
            ObjectName { namespace, name: object.name_any() }
        };
        if !matches!(event, Event::Init | Event::InitApply(_)) {
            self.works();
        }
        match event {
            Event::Init => {
                self.listed.clear();
                self.is_listing = true;
                false
            }
            Event::InitApply(object) => {
                let name = named(&object);
                let new = self.readable(kind, &name, kind.kept(&json!(object)));
                self.listed.insert(name, new);
                false
            }
            Event::InitDone => self.replace(kind),
            Event::Apply(object) => {
                let name = named(&object);
                let new = self.readable(kind, &name, kind.kept(&json!(object)));
                let is_changed = kind.differ(self.known.get(&name), &new);
                self.known.insert(name, new);
                is_changed && self.is_ready
            }
            Event::Delete(object) => self.known.remove(&named(&object)).is_some() && self.is_ready,
        }
    }

    /// The object; or of a Gateway or a route that cannot be read, the last state that could be:
    /// without it, all policies on it would end.
    fn readable(&self, kind: WatchedKind, name: &ObjectName, new: Value) -> Value {
        let old = self.known.get(name).filter(|_| kind != WatchedKind::QuotaPolicy);
        match (old, Objects::default().add(&new)) {
            (Some(old), Err(faults)) => {
                tracing::warn!("{}: its last state counts", faults.join("; "));
                old.clone()
            }
            _ => new,
        }
    }

    /// Begins anew. What was absent for long need not be shown to be absent as long again.
    fn begin(&mut self) {
        self.is_ready = false;
        self.failures = 0;
    }

    fn works(&mut self) {
        (self.failures, self.absences, self.failed, self.is_absent) = (0, 0, None, false);
    }

    /// Notes that the watch failed, and says how often in a row it has.
    fn fail(&mut self, kind: WatchedKind, why: &str, is_absent: bool) -> u32 {
        if self.failed.as_ref().is_some_and(|(at, _)| at.elapsed() > CALM) {
            self.works();
        }
        if self.failed.as_ref().is_none_or(|(_, known)| *known != why) {
            tracing::warn!("watch of {}: {why}", kind.resource().plural);
        }
        self.failures = self.failures.saturating_add(1);
        self.absences = if is_absent { self.absences.saturating_add(1) } else { 0 };
        self.failed = Some((Instant::now(), why.to_owned()));
        self.failures
    }

    /// Failures in a row of a kind that should be there.
    fn faults(&self) -> u32 {
        if self.is_absent { 0 } else { self.failures }
    }

    /// Takes it that there are none.
    fn are_none(&mut self, kind: WatchedKind) -> bool {
        if !std::mem::replace(&mut self.is_absent, true) {
            let plural = kind.resource().plural;
            tracing::info!(
                "the API server serves no {plural}: the controller goes on without them"
            );
        }
        self.listed.clear();
        self.replace(kind)
    }

    /// Takes the list that was read for what is known.
    fn replace(&mut self, kind: WatchedKind) -> bool {
        let listed = std::mem::take(&mut self.listed);
        let was_ready = std::mem::replace(&mut self.is_ready, true);
        self.is_listing = false;
        let is_same = was_ready
            && listed.len() == self.known.len()
            && listed.iter().all(|(name, new)| !kind.differ(self.known.get(name), new));
        self.known = listed;
        !is_same
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;
    use crate::controller::fake_api::{FakeApi, until};

    fn watched(api: &FakeApi) -> Arc<Watched> {
        Watched::of(api, Arc::new(ControllerMetrics::new()))
    }

    fn object(kind: WatchedKind, name: &str, spec: Value) -> DynamicObject {
        let mut object = DynamicObject::new(name, &kind.resource()).within("team-a");
        object.data = json!({"spec": spec});
        object
    }

    fn fails(code: u16) -> watcher::Result<Event<DynamicObject>> {
        let status = Status { code, ..Status::failure("no", "No") };
        Err(watcher::Error::InitialListFailed(kube::Error::Api(status.boxed())))
    }

    /// Says this to a watch, and how long it rests after each.
    async fn say(
        watched: &Watched,
        kind: WatchedKind,
        events: impl IntoIterator<Item = watcher::Result<Event<DynamicObject>>>,
    ) -> Vec<u64> {
        let mut rests = Vec::new();
        for event in events {
            rests.push(watched.take(kind, event).await.as_secs());
        }
        rests
    }

    async fn list(watched: &Watched, kinds: &[WatchedKind]) {
        for kind in kinds {
            say(watched, *kind, [Ok(Event::Init), Ok(Event::InitDone)]).await;
        }
    }

    const OTHERS: [WatchedKind; 5] = [
        WatchedKind::QuotaPolicy,
        WatchedKind::Gateway,
        WatchedKind::HttpRoute,
        WatchedKind::Service,
        WatchedKind::Namespace,
    ];

    fn served(names: &[&str]) -> Value {
        let resources = names.iter().map(|name| {
            json!({"name": name, "singularName": "", "namespaced": true, "kind": "Any", "verbs": []})
        });
        let resources: Vec<Value> = resources.collect();
        json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources})
    }

    #[tokio::test]
    async fn without_grpc_routes_it_goes_on_once_the_server_says_that_there_are_none() {
        let api = FakeApi::default();
        let watched = watched(&api);
        list(&watched, &OTHERS).await;
        let absent = || (0..MANY).flat_map(|_| [Ok(Event::Init), fails(404)]);
        // A server that has just started, or is away.
        let rests = say(&watched, WatchedKind::GrpcRoute, absent()).await;
        assert_eq!(rests, [0, 1, 0, 2, 0, 4, 0, 8]);
        assert!(!watched.is_ready());
        assert_eq!(watched.unknown().len(), 1, "{:?}", watched.unknown());
        // Its definition is being replaced.
        api.put("/apis/gateway.networking.k8s.io/v1", served(&["httproutes", "grpcroutes"]));
        say(&watched, WatchedKind::GrpcRoute, absent()).await;
        assert!(!watched.is_ready());
        api.put("/apis/gateway.networking.k8s.io/v1", served(&["httproutes"]));
        say(&watched, WatchedKind::GrpcRoute, absent()).await;
        assert!(watched.is_ready() && watched.unknown().is_empty());
        // A new leader reads all anew, and hears that there are none before it hears the rest.
        for kind in WatchedKind::ALL {
            watched.lock(kind).unwrap().begin();
        }
        let rests = say(&watched, WatchedKind::GrpcRoute, [Ok(Event::Init), fails(404)]).await;
        list(&watched, &OTHERS).await;
        assert!(watched.is_ready() && rests == [0, 1], "{rests:?}");
    }

    #[tokio::test]
    async fn failing_watch_rests_ever_longer_and_half_a_list_is_no_list() {
        let watched = watched(&FakeApi::default());
        list(&watched, &OTHERS).await;
        let kind = WatchedKind::Gateway;
        let gateway = |name| object(kind, name, json!({}));
        say(&watched, kind, [Ok(Event::Apply(gateway("a"))), Ok(Event::Apply(gateway("b")))]).await;
        let changes = *watched.changes().borrow();
        let page = || [Ok(Event::Init), Ok(Event::InitApply(gateway("a"))), fails(500)];
        let rests = say(&watched, kind, (0..3).flat_map(|_| page())).await;
        assert_eq!(rests, [0, 0, 1, 0, 0, 2, 0, 0, 4]);
        assert_eq!(watched.objects(kind).len(), 2, "nothing is forgotten");
        assert_eq!(*watched.changes().borrow(), changes);
        say(&watched, kind, [Ok(Event::Apply(gateway("a")))]).await;
        assert_eq!(say(&watched, kind, page()).await, [0, 0, 1], "it begins from one second");
    }

    /// Where this server has a policy of this name.
    fn put_policy(api: &FakeApi, name: &str) {
        let policy = object(WatchedKind::QuotaPolicy, name, json!({"policies": []}));
        let path = format!("/apis/quotagate.io/v1alpha1/namespaces/team-a/quotapolicies/{name}");
        api.put(&path, json!(policy));
    }

    fn names(watched: &Watched) -> Vec<String> {
        watched.objects(WatchedKind::QuotaPolicy).into_iter().map(|(name, _)| name.name).collect()
    }

    /// Watches all kinds of this server, with hardly a rest after failures.
    fn watching(api: &FakeApi) -> Arc<Watched> {
        let plurals = WatchedKind::ALL.map(|kind| kind.resource().plural);
        api.serves(&plurals.each_ref().map(String::as_str));
        let pace =
            WatchPace { list: Duration::from_millis(250), rest: |_| Duration::from_millis(5) };
        let watched = Watched::new(api.client(), Arc::new(ControllerMetrics::new()), pace);
        watched.relist();
        watched
    }

    async fn ready(watched: &Watched) {
        timeout(Duration::from_secs(30), watched.ready()).await.unwrap();
    }

    #[tokio::test]
    async fn first_list_that_hangs_is_begun_anew() {
        let api = FakeApi::default();
        api.hangs("gateways");
        let watched = watching(&api);
        until("a second list", || api.calls("LIST", "gateways") > 1).await;
        assert!(!watched.is_ready());
        api.answers("gateways");
        until("the list", || watched.is_ready()).await;
    }

    #[tokio::test]
    async fn watch_that_has_expired_is_begun_anew_with_a_list() {
        let api = FakeApi::default();
        put_policy(&api, "first");
        let watched = watching(&api);
        ready(&watched).await;
        assert_eq!(names(&watched), ["first"]);
        // No watch tells of it.
        put_policy(&api, "second");
        api.expires("quotapolicies");
        until("the second object", || names(&watched) == ["first", "second"]).await;
        assert!(watched.is_ready() && watched.unknown().is_empty());
        assert!(api.calls("LIST", "quotapolicies") > 1);
    }

    #[tokio::test]
    async fn list_that_hangs_after_an_expired_watch_keeps_what_was_known_and_is_begun_anew() {
        let api = FakeApi::default();
        put_policy(&api, "first");
        let watched = watching(&api);
        ready(&watched).await;
        put_policy(&api, "second");
        api.hangs("quotapolicies");
        api.expires("quotapolicies");
        // The first of them was answered.
        until("lists that are begun anew", || api.calls("LIST", "quotapolicies") > 2).await;
        assert!(watched.is_ready(), "passes go on");
        assert_eq!(names(&watched), ["first"]);
        api.answers("quotapolicies");
        until("the second object", || names(&watched) == ["first", "second"]).await;
    }

    #[tokio::test]
    async fn status_of_a_policy_wakes_nobody_and_an_unreadable_route_keeps_its_last_state() {
        let watched = watched(&FakeApi::default());
        list(&watched, &OTHERS).await;
        let changes = watched.changes();
        let policy = |status: &str| {
            let mut policy = object(WatchedKind::QuotaPolicy, "p", json!({"policies": []}));
            policy.data["status"] = json!({"quota": status});
            policy
        };
        say(&watched, WatchedKind::QuotaPolicy, [Ok(Event::Apply(policy("5/1m")))]).await;
        let before = *changes.borrow();
        say(&watched, WatchedKind::QuotaPolicy, [Ok(Event::Apply(policy("6/1m")))]).await;
        assert_eq!(*changes.borrow(), before);

        let kind = WatchedKind::HttpRoute;
        let route = |rules: Value| object(kind, "r", json!({"rules": rules}));
        say(&watched, kind, [Ok(Event::Apply(route(json!([{"name": "read"}]))))]).await;
        say(&watched, kind, [Ok(Event::Apply(route(json!("odd"))))]).await;
        assert_eq!(watched.objects(kind)[0].1["spec"]["rules"][0]["name"], "read");
    }
}
