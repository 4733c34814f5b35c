//! The resource `QuotaPolicy`. The definition that clusters get is generated from these types.
//!
//! A field that is no part of a team's traffic (stores, tokens, domains, hosts, routes) does not
//! exist here. Unions of the document are two fields, because the schema of a resource must be
//! structural.
#![allow(
    clippy::duplicated_attributes,
    reason = "The lint takes columns with equal fields for one attribute"
)]

mod cel;
mod conditions;
mod definition;
mod identity;
mod policy;
mod status;

pub use conditions::*;
pub use definition::definition;
pub use identity::*;
pub use policy::*;
pub use status::*;

use std::collections::BTreeMap;

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The pattern of names of headers and cookies.
const TOKEN: &str = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$";

/// Quotas for the traffic of Gateways, routes or Services.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "quotagate.io",
    version = "v1alpha1",
    kind = "QuotaPolicy",
    plural = "quotapolicies",
    doc = "Quotas for the traffic of Gateways, routes or Services of a namespace.",
    shortname = "qp",
    category = "gateway-api",
    namespaced,
    status = "QuotaPolicyStatus",
    label("gateway.networking.k8s.io/policy", "inherited"),
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.targetRefs[0].kind"),
    printcolumn(name = "Of", type_ = "string", json_path = ".spec.targetRefs[0].name"),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = ".status.ancestors[0].conditions[?(@.type==\"Accepted\")].status"
    ),
    printcolumn(
        name = "Programmed",
        type_ = "string",
        json_path = ".status.ancestors[0].conditions[?(@.type==\"Programmed\")].status"
    ),
    printcolumn(
        name = "Enforced",
        type_ = "string",
        json_path = ".status.ancestors[0].conditions[?(@.type==\"Enforced\")].status"
    ),
    printcolumn(
        name = "Proxies",
        type_ = "integer",
        json_path = ".status.documents[0].proxies.running"
    ),
    printcolumn(
        name = "Digest",
        type_ = "string",
        json_path = ".status.documents[0].digest",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = cel::spec()))]
pub struct QuotaPolicySpec {
    /// What the policies apply to: objects of one kind, in the namespace of this object.
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub target_refs: Vec<TargetRef>,
    /// Who is calling: named lists of sources. Of each list the first source that has a value
    /// wins. `platform/NAME` names one that the platform defines.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub identities: BTreeMap<String, IdentitySources>,
    /// Quotas that apply beside all others: a request must be granted by each that matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<PolicyRules>,
    /// For Gateways: quotas that its routes have unless their own QuotaPolicy says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defaults: Option<DefaultPolicies>,
    /// For Gateways: quotas that no route can replace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<OverridePolicies>,
}

/// An object whose traffic counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = cel::target()))]
pub struct TargetRef {
    /// `gateway.networking.k8s.io`, or empty for a Service.
    #[schemars(length(max = 253))]
    pub group: String,
    /// `Gateway`, `HTTPRoute`, `GRPCRoute` or `Service`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Not supported. It is here to be refused: unknown fields are dropped without a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub namespace: Option<String>,
    /// A listener of a Gateway, or a named rule of an HTTPRoute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub section_name: Option<String>,
}

/// Quotas of one object. Their names are unique in it.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct PolicyRules(
    #[schemars(
        length(min = 1, max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub Vec<PolicyRule>,
);

/// What the routes of a Gateway have unless they say otherwise.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DefaultPolicies {
    /// What replaces a default on a route.
    #[serde(default)]
    pub strategy: DefaultStrategy,
    /// The quotas.
    pub policies: PolicyRules,
}

/// What replaces a default on a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum DefaultStrategy {
    /// A policy of the same name in a QuotaPolicy on the route.
    #[default]
    Merge,
    /// Any QuotaPolicy on the route replaces all defaults.
    Atomic,
}

/// What no route of a Gateway can replace.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OverridePolicies {
    /// The quotas.
    pub policies: PolicyRules,
}
