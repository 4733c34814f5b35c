//! The kinds of objects that a merge reads, and what it reads of each.

use kube::api::ApiResource;
use serde_json::{Map, Value};

pub(super) const GATEWAY_API: &str = "gateway.networking.k8s.io";

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
    pub(super) const ALL: [Self; 6] = [
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
            Self::Gateway => (GATEWAY_API, "v1", "Gateway", "gateways"),
            Self::HttpRoute => (GATEWAY_API, "v1", "HTTPRoute", "httproutes"),
            Self::GrpcRoute => (GATEWAY_API, "v1", "GRPCRoute", "grpcroutes"),
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
    pub(super) fn kept(self, object: &Value) -> Value {
        let resource = self.resource();
        let names = ["name", "namespace", "labels", "creationTimestamp", "generation", "uid"];
        let of = |part: &Value, names: &[&str]| -> Map<String, Value> {
            let found = names.iter().filter_map(|name| Some((*name, part.get(name)?)));
            found.map(|(name, value)| (name.to_owned(), value.clone())).collect()
        };
        let parts: &[&str] = match self {
            Self::Gateway => &["spec"],
            Self::QuotaPolicy | Self::HttpRoute | Self::GrpcRoute => &["spec", "status"],
            Self::Service | Self::Namespace => &[],
        };
        let mut kept = of(object, parts);
        let metadata = object.get("metadata").map_or_else(Map::new, |part| of(part, &names));
        kept.insert("apiVersion".to_owned(), resource.api_version.into());
        kept.insert("kind".to_owned(), resource.kind.into());
        kept.insert("metadata".to_owned(), metadata.into());
        kept.into()
    }

    /// Whether a merge of the two would differ.
    pub(super) fn differ(self, old: Option<&Value>, new: &Value) -> bool {
        let Some(old) = old else { return true };
        match self {
            Self::QuotaPolicy => {
                ["metadata", "spec"].iter().any(|part| old.get(part) != new.get(part))
            }
            _ => old != new,
        }
    }
}
