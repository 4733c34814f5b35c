//! The resource `QuotaPolicy`. The definition that clusters get is generated from these types.
//!
//! A field that is no part of a team's traffic (stores, tokens, domains, hosts, routes) does not
//! exist here. Unions of the document are two fields, because the schema of a resource must be
//! structural.
#[cfg(feature = "schema")]
mod cel;
mod conditions;
#[cfg(feature = "schema")]
mod definition;
mod identity;
mod policy;
mod status;

pub use conditions::*;
#[cfg(feature = "schema")]
pub use definition::definition;
pub use identity::*;
pub use policy::*;
pub use status::*;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The pattern of names of headers and cookies.
#[cfg(feature = "schema")]
const TOKEN: &str = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$";

/// Quotas for the traffic of Gateways, routes or Services of a namespace.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct QuotaPolicy {
    /// Its name, its namespace, and when it was created.
    pub metadata: ObjectMeta,
    /// What it says.
    pub spec: QuotaPolicySpec,
    /// What became of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<QuotaPolicyStatus>,
}

/// What a `QuotaPolicy` says.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = cel::spec())))]
pub struct QuotaPolicySpec {
    /// What the policies apply to: objects of one kind, in the namespace of this object.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "atomic")))]
    pub target_refs: Vec<TargetRef>,
    /// Who is calling: named lists of sources. Of each list the first source that has a value
    /// wins. `platform/NAME` names one that the platform defines.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = 16)))]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = cel::target())))]
pub struct TargetRef {
    /// `gateway.networking.k8s.io`, or empty for a Service.
    #[cfg_attr(feature = "schema", schemars(length(max = 253)))]
    pub group: String,
    /// `Gateway`, `HTTPRoute`, `GRPCRoute` or `Service`.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 63)))]
    pub kind: String,
    /// Its name.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253)))]
    pub name: String,
    /// Not supported. It is here to be refused: unknown fields are dropped without a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 63)))]
    pub namespace: Option<String>,
    /// A listener of a Gateway, or a named rule of an HTTPRoute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253)))]
    pub section_name: Option<String>,
}

/// Quotas of one object. Their names are unique in it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(inline))]
pub struct PolicyRules(
    #[cfg_attr(feature = "schema", schemars(
        length(min = 1, max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    ))]
    pub Vec<PolicyRule>,
);

/// What the routes of a Gateway have unless they say otherwise.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DefaultPolicies {
    /// What replaces a default on a route.
    #[serde(default)]
    pub strategy: DefaultStrategy,
    /// The quotas.
    pub policies: PolicyRules,
}

/// What replaces a default on a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub enum DefaultStrategy {
    /// A policy of the same name in a QuotaPolicy on the route.
    #[default]
    Merge,
    /// Any QuotaPolicy on the route replaces all defaults.
    Atomic,
}

/// What no route of a Gateway can replace.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OverridePolicies {
    /// The quotas.
    pub policies: PolicyRules,
}
