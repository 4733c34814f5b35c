//! What the API server has, kept up to date by watches.
//!
//! Of each object only what a merge reads is kept. A change of anything else, such as the status
//! that this controller writes, wakes nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{Stream, StreamExt as _};
use kube::api::{Api, ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use quotagate_kubernetes::{ObjectName, QuotaPolicyStatus};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

/// After so many answers in a row that there is no such kind, there are no GRPCRoutes: not every
/// Gateway API has them. An API server that has just started says so of every kind, so other kinds
/// are waited for, and none is forgotten.
const ABSENT: u32 = 4;

/// A kind of objects that a merge reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WatchedKind {
    QuotaPolicy,
    Gateway,
    HttpRoute,
    GrpcRoute,
    Service,
    Namespace,
}

impl WatchedKind {
    const ALL: [Self; 6] = [
        Self::QuotaPolicy,
        Self::Gateway,
        Self::HttpRoute,
        Self::GrpcRoute,
        Self::Service,
        Self::Namespace,
    ];

    pub(super) fn resource(self) -> ApiResource {
        let (group, version, kind, plural) = match self {
            Self::QuotaPolicy => ("quotagate.io", "v1alpha1", "QuotaPolicy", "quotapolicies"),
            Self::Gateway => ("gateway.networking.k8s.io", "v1", "Gateway", "gateways"),
            Self::HttpRoute => ("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes"),
            Self::GrpcRoute => ("gateway.networking.k8s.io", "v1", "GRPCRoute", "grpcroutes"),
            Self::Service => ("", "v1", "Service", "services"),
            Self::Namespace => ("", "v1", "Namespace", "namespaces"),
        };
        let api_version =
            if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version,
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        }
    }

    /// What a merge reads of an object.
    fn kept(self, object: &Value) -> Value {
        let resource = self.resource();
        let metadata = &object["metadata"];
        let mut kept = json!({"apiVersion": resource.api_version, "kind": resource.kind});
        for name in ["name", "namespace", "labels", "creationTimestamp", "generation", "uid"] {
            if let Some(value) = metadata.get(name) {
                kept["metadata"][name] = value.clone();
            }
        }
        let parts: &[&str] = match self {
            Self::QuotaPolicy => &["spec", "status"],
            Self::Gateway => &["spec"],
            Self::HttpRoute | Self::GrpcRoute => &["spec", "status"],
            Self::Service | Self::Namespace => &[],
        };
        for part in parts {
            if let Some(value) = object.get(*part) {
                kept[*part] = value.clone();
            }
        }
        kept
    }

    /// Whether a merge of the two would differ.
    fn differ(self, old: Option<&Value>, new: &Value) -> bool {
        let Some(old) = old else { return true };
        match self {
            Self::QuotaPolicy => {
                ["metadata", "spec"].iter().any(|part| old.get(part) != new.get(part))
            }
            _ => old != new,
        }
    }
}

/// Objects of one kind.
#[derive(Debug, Default)]
struct KindObjects {
    known: BTreeMap<ObjectName, Value>,
    /// Those of a list that is being read.
    listed: BTreeMap<ObjectName, Value>,
    is_ready: bool,
}

/// All objects.
#[derive(Debug)]
pub(super) struct Watched {
    kinds: BTreeMap<WatchedKind, Mutex<KindObjects>>,
    /// Changes by one with each change that a merge would see.
    changes: watch::Sender<u64>,
}

impl Watched {
    /// Begins to watch. The watches go on until the runtime ends.
    pub(super) fn start(client: &Client) -> Arc<Self> {
        let kinds = WatchedKind::ALL.map(|kind| (kind, Mutex::default()));
        let watched = Arc::new(Self { kinds: kinds.into(), changes: watch::Sender::new(0) });
        for kind in WatchedKind::ALL {
            let of_kind = Arc::clone(&watched);
            let (client, resource) = (client.clone(), kind.resource());
            let config = watcher::Config::default();
            match kind {
                // Only their labels are read.
                WatchedKind::Service | WatchedKind::Namespace => {
                    let api: Api<PartialObjectMeta<DynamicObject>> =
                        Api::all_with(client, &resource);
                    tokio::spawn(of_kind.follow(kind, watcher(api, config).default_backoff()));
                }
                _ => {
                    let api: Api<DynamicObject> = Api::all_with(client, &resource);
                    tokio::spawn(of_kind.follow(kind, watcher(api, config).default_backoff()));
                }
            }
        }
        watched
    }

    /// Counts changes, and is 0 until all objects are known.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether every kind was listed.
    pub(super) fn is_ready(&self) -> bool {
        WatchedKind::ALL.iter().all(|kind| self.lock(*kind).is_some_and(|kind| kind.is_ready))
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

    async fn follow<K, S>(self: Arc<Self>, kind: WatchedKind, stream: S)
    where
        K: ResourceExt + Serialize,
        S: Stream<Item = watcher::Result<Event<K>>>,
    {
        let mut stream = pin!(stream);
        let (mut logged, mut absent) = (BTreeSet::new(), 0_u32);
        while let Some(event) = stream.next().await {
            let is_changed = match event {
                Ok(event) => {
                    logged.clear();
                    absent = 0;
                    self.lock(kind).is_some_and(|mut objects| objects.take(kind, event))
                }
                Err(error) => {
                    let text = error.to_string();
                    if logged.insert(text.clone()) {
                        tracing::warn!("watch of {}: {text}", kind.resource().plural);
                    }
                    absent = if is_absent(&error) { absent.saturating_add(1) } else { 0 };
                    kind == WatchedKind::GrpcRoute
                        && absent >= ABSENT
                        && self.lock(kind).is_some_and(|mut objects| objects.are_none(kind))
                }
            };
            if is_changed {
                self.changes.send_modify(|changes| *changes += 1);
            }
        }
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
        match event {
            Event::Init => {
                self.listed.clear();
                false
            }
            Event::InitApply(object) => {
                self.listed.insert(named(&object), kind.kept(&json!(object)));
                false
            }
            Event::InitDone => self.replace(kind),
            Event::Apply(object) => {
                let (name, new) = (named(&object), kind.kept(&json!(object)));
                let is_changed = kind.differ(self.known.get(&name), &new);
                self.known.insert(name, new);
                is_changed && self.is_ready
            }
            Event::Delete(object) => self.known.remove(&named(&object)).is_some() && self.is_ready,
        }
    }

    /// Takes it that there are none, if none were ever listed.
    fn are_none(&mut self, kind: WatchedKind) -> bool {
        !self.is_ready && self.replace(kind)
    }

    /// Takes the list that was read for what is known.
    fn replace(&mut self, kind: WatchedKind) -> bool {
        let listed = std::mem::take(&mut self.listed);
        let was_ready = std::mem::replace(&mut self.is_ready, true);
        let is_same = was_ready
            && listed.len() == self.known.len()
            && listed.iter().all(|(name, new)| !kind.differ(self.known.get(name), new));
        self.known = listed;
        !is_same
    }
}
