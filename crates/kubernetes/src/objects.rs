//! The objects that a merge reads.
//!
//! Of Gateways, routes, Services and Namespaces only the fields are read that say which traffic
//! there is. What else they have may be of any version.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube_core::{Selector, SelectorExt as _};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::resource::QuotaPolicy;

/// The group of Gateways and routes.
pub(crate) const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// The name of an object in its namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectName {
    /// Its namespace; `default` if the object names none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl ObjectName {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Reads `NAMESPACE/NAME`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        let plain = |part: &str| !part.is_empty() && !part.contains('/');
        (plain(namespace) && plain(name)).then(|| Self::new(namespace, name))
    }

    fn of(metadata: &ObjectMeta) -> Result<Self, String> {
        match metadata.name.as_deref() {
            Some(name) if !name.is_empty() => {
                Ok(Self::new(metadata.namespace.as_deref().unwrap_or("default"), name))
            }
            _ => Err("metadata.name: is required".to_owned()),
        }
    }
}

/// All objects of a merge.
#[derive(Debug, Default)]
pub struct Objects {
    pub(crate) policies: BTreeMap<ObjectName, QuotaPolicy>,
    pub(crate) gateways: BTreeMap<ObjectName, GatewaySpec>,
    pub(crate) routes: BTreeMap<(RouteKind, ObjectName), Route>,
    /// The labels of Services.
    pub(crate) services: BTreeMap<ObjectName, BTreeMap<String, String>>,
    /// The labels of Namespaces.
    pub(crate) namespaces: BTreeMap<String, BTreeMap<String, String>>,
}

/// A kind of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RouteKind {
    Http,
    Grpc,
}

impl RouteKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTPRoute",
            Self::Grpc => "GRPCRoute",
        }
    }

    pub(crate) fn of(kind: &str) -> Option<Self> {
        match kind {
            "HTTPRoute" => Some(Self::Http),
            "GRPCRoute" => Some(Self::Grpc),
            _ => None,
        }
    }
}

/// The listeners of a Gateway.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct GatewaySpec {
    #[serde(default)]
    pub(crate) listeners: Vec<Listener>,
}

/// A listener of a Gateway.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Listener {
    pub(crate) name: String,
    pub(crate) hostname: Option<String>,
    pub(crate) port: Option<u16>,
    #[serde(default)]
    pub(crate) allowed_routes: AllowedRoutes,
}

/// The routes that a listener allows.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct AllowedRoutes {
    #[serde(default)]
    pub(crate) namespaces: AllowedNamespaces,
    /// Left out, all.
    #[serde(default)]
    pub(crate) kinds: Vec<AllowedKind>,
}

/// The namespaces whose routes a listener allows.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct AllowedNamespaces {
    /// `All`, `Same` or `Selector`. API servers write it into every Gateway.
    pub(crate) from: Option<String>,
    pub(crate) selector: Option<LabelSelector>,
}

/// A kind of routes that a listener allows.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct AllowedKind {
    pub(crate) kind: String,
}

impl AllowedRoutes {
    /// Whether a route may attach to a listener of a Gateway in `own`, by the labels of the route's
    /// namespace. What is not known does not keep it away: its Gateway has accepted it.
    pub(crate) fn allow(
        &self,
        own: &str,
        kind: RouteKind,
        of: &str,
        labels: Option<&BTreeMap<String, String>>,
    ) -> bool {
        let of_namespace = self.namespaces.allow(own, of, labels);
        let is_kind = |allowed: &AllowedKind| allowed.kind == kind.name();
        of_namespace && (self.kinds.is_empty() || self.kinds.iter().any(is_kind))
    }
}

impl AllowedNamespaces {
    /// Whether a Gateway in `own` allows a namespace with these labels. What is not known does not
    /// keep it away.
    pub(crate) fn allow(
        &self,
        own: &str,
        of: &str,
        labels: Option<&BTreeMap<String, String>>,
    ) -> bool {
        match (self.from.as_deref(), &self.selector, labels) {
            (Some("Same"), ..) => own == of,
            (Some("Selector"), Some(selector), Some(labels)) => {
                let selector = Selector::try_from(selector.clone());
                selector.is_ok_and(|selector| selector.matches(labels))
            }
            _ => true,
        }
    }
}

/// A route, with where it was accepted.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Route {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: RouteSpec,
    #[serde(default)]
    pub(crate) status: RouteStatus,
}

impl Route {
    /// When it was created, if the cluster says so.
    pub(crate) fn created(&self) -> Option<Timestamp> {
        self.metadata.creation_timestamp.as_ref().map(|created| created.0)
    }
}

/// What a route matches.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct RouteSpec {
    #[serde(default)]
    pub(crate) hostnames: Vec<String>,
    #[serde(default)]
    pub(crate) rules: Vec<RouteRule>,
}

/// A rule of a route.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct RouteRule {
    pub(crate) name: Option<String>,
    #[serde(default)]
    pub(crate) matches: Vec<Value>,
}

/// Where a route was accepted.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct RouteStatus {
    #[serde(default)]
    pub(crate) parents: Vec<RouteParent>,
}

/// What a controller says of a route at one parent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RouteParent {
    pub(crate) parent_ref: ParentRef,
    #[serde(default)]
    pub(crate) controller_name: String,
    #[serde(default)]
    pub(crate) conditions: Vec<ParentCondition>,
}

/// A parent of a route.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ParentRef {
    pub(crate) kind: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) section_name: Option<String>,
    pub(crate) port: Option<u16>,
}

/// A condition of a route at one parent.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ParentCondition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
}

impl RouteParent {
    pub(crate) fn is_accepted(&self) -> bool {
        self.conditions.iter().any(|found| found.kind == "Accepted" && found.status == "True")
    }
}

/// The parts that every object has.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ObjectMeta,
}

impl Objects {
    /// Adds an object. One of another kind is left out. A list (`kubectl get -o yaml`) adds its
    /// items.
    ///
    /// # Errors
    /// All faults of objects that cannot be read, each with the object and the path.
    pub fn add(&mut self, object: &Value) -> Result<(), Vec<String>> {
        if object["kind"].as_str().is_some_and(|kind| kind.ends_with("List"))
            && let Some(items) = object["items"].as_array()
        {
            let added = items.iter().map(|item| self.add(item));
            let faults: Vec<String> = added.filter_map(Result::err).flatten().collect();
            return if faults.is_empty() { Ok(()) } else { Err(faults) };
        }
        let head: Head = read(object).map_err(|fault| vec![format!("an object: {fault}")])?;
        let group = head.api_version.split_once('/').map_or("", |(group, _)| group);
        let known = ["QuotaPolicy", "Gateway", "HTTPRoute", "GRPCRoute", "Service", "Namespace"];
        let own = match head.kind.as_str() {
            "QuotaPolicy" => "quotagate.io",
            "Gateway" | "HTTPRoute" | "GRPCRoute" => GATEWAY_API,
            _ => "",
        };
        if group != own || !known.contains(&head.kind.as_str()) {
            return Ok(());
        }
        let at =
            |name: &dyn fmt::Display, fault: String| vec![format!("{} {name}: {fault}", head.kind)];
        let name = ObjectName::of(&head.metadata).map_err(|fault| at(&"without a name", fault))?;
        let is_known = match head.kind.as_str() {
            "QuotaPolicy" => self.policies.contains_key(&name),
            "Gateway" => self.gateways.contains_key(&name),
            "Service" => self.services.contains_key(&name),
            "Namespace" => self.namespaces.contains_key(&name.name),
            kind => RouteKind::of(kind)
                .is_some_and(|kind| self.routes.contains_key(&(kind, name.clone()))),
        };
        if is_known {
            return Err(at(&name, "is given twice: the first one counts. Remove one".to_owned()));
        }
        match head.kind.as_str() {
            "QuotaPolicy" if head.api_version != "quotagate.io/v1alpha1" => {
                let fault =
                    format!("apiVersion: is {}, write quotagate.io/v1alpha1", head.api_version);
                return Err(at(&name, fault));
            }
            "QuotaPolicy" => {
                // A status of another version is no reason to refuse the object.
                let spec =
                    read(&object["spec"]).map_err(|fault| at(&name, format!("spec.{fault}")))?;
                let policy = QuotaPolicy { metadata: head.metadata, spec, status: None };
                self.policies.insert(name, policy);
            }
            "Gateway" => {
                let spec =
                    read(&object["spec"]).map_err(|fault| at(&name, format!("spec.{fault}")))?;
                self.gateways.insert(name, spec);
            }
            "Service" => {
                let labels = head.metadata.labels.clone().unwrap_or_default();
                self.services.insert(name, labels);
            }
            "Namespace" => {
                let labels = head.metadata.labels.clone().unwrap_or_default();
                self.namespaces.insert(name.name, labels);
            }
            kind => {
                let Some(kind) = RouteKind::of(kind) else { return Ok(()) };
                let route = read(object).map_err(|fault| at(&name, fault))?;
                self.routes.insert((kind, name), route);
            }
        }
        Ok(())
    }

    /// The kinds that QuotaPolicies target and that have no object, a sentence each: an export may
    /// lack them.
    pub fn absent_kinds(&self) -> Vec<String> {
        let targets = self.policies.values().flat_map(|policy| &policy.spec.target_refs);
        let kinds: BTreeSet<&str> = targets.map(|target| target.kind.as_str()).collect();
        let is_absent = |kind: &&str| match (*kind, RouteKind::of(kind)) {
            ("Gateway", _) => self.gateways.is_empty(),
            ("Service", _) => self.services.is_empty(),
            (_, Some(route)) => !self.routes.keys().any(|(kind, _)| *kind == route),
            _ => false,
        };
        let absent = kinds.into_iter().filter(is_absent);
        absent.map(|kind| format!("a QuotaPolicy targets a {kind}, and there is none")).collect()
    }

    /// The names of all QuotaPolicies.
    pub fn names(&self) -> impl Iterator<Item = &ObjectName> {
        self.policies.keys()
    }
}

/// Reads a value, or says where it is wrong.
pub(crate) fn read<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value)
        .map_err(|error| format!("{}: {}", error.path(), error.inner()))
}
