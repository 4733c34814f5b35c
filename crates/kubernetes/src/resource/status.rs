//! The status of a `QuotaPolicy`, as GEP-713 shapes it, and what a merge says of it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::objects::ObjectName;

/// What became of an object.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct QuotaPolicyStatus {
    /// The first quota of the object, and how many others it has, for `kubectl get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 256)))]
    pub quota: Option<String>,
    /// For each Gateway that the object reaches, or target that it does not reach: its conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic")))]
    pub ancestors: Vec<AncestorStatus>,
    /// The published documents that have policies of the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic")))]
    pub documents: Vec<DocumentStatus>,
}

/// The conditions of an object at one ancestor.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AncestorStatus {
    /// The Gateway, or the target.
    pub ancestor_ref: AncestorRef,
    /// Who wrote this.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253)))]
    pub controller_name: String,
    /// `Accepted`, `Programmed` and `Enforced`.
    #[cfg_attr(feature = "schema", schemars(
        length(min = 1, max = 8),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    ))]
    pub conditions: Vec<Condition>,
}

/// An object that a policy reaches, or does not reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AncestorRef {
    /// Its group.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub name: String,
    /// A part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub section_name: Option<String>,
}

/// A published document that has policies of an object.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DocumentStatus {
    /// Its domain.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 64)))]
    pub domain: String,
    /// The number of the published document in which the object last changed. Later documents have
    /// it, too.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub number: i64,
    /// Its digest.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = "^[0-9a-f]{12}$")))]
    pub digest: String,
    /// The proxies that run this document or a later one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxies: Option<ProxyCounts>,
    /// The policies of the object.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["documentName"])
    ))]
    pub policies: Vec<DocumentPolicy>,
}

/// How many proxies run a document, or a later one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProxyCounts {
    /// Those that run it.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub running: i64,
    /// Those that report any document of the domain.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub reporting: i64,
}

/// A policy of an object in a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DocumentPolicy {
    /// What the document, metrics and dials call it: `NAMESPACE/OBJECT/NAME`.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 192)))]
    pub document_name: String,
    /// Whether it applies.
    pub state: DocumentPolicyState,
    /// For a default that is replaced: the objects that replace it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Whether a policy applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub enum DocumentPolicyState {
    /// To all traffic of its target.
    Programmed,
    /// To some of it: routes have replaced the default.
    PartiallyOverridden,
    /// To none of it.
    Overridden,
}

/// What a merge says of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyOutcome {
    /// The object.
    pub object: ObjectName,
    /// Its conditions at each ancestor.
    pub ancestors: Vec<AncestorOutcome>,
    /// Its policies, if it is accepted.
    pub policies: Vec<DocumentPolicy>,
    /// Routes that it does not count although they are below its target, and rules of others that
    /// it counts as well.
    pub notes: Vec<String>,
}

/// What a merge says of one object at one ancestor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AncestorOutcome {
    /// The Gateway, or the target that could not be reached.
    pub ancestor: AncestorRef,
    /// Whether the object is accepted there.
    pub accepted: Verdict,
    /// Whether the document has it. `None` if it is not accepted.
    pub programmed: Option<Verdict>,
}

/// The status of a condition, its reason, and a message for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// `True` or `False`.
    pub holds: bool,
    /// The reason, as GEP-713 names it.
    pub reason: Reason,
    /// What is wrong and what to do, or what there is.
    pub message: String,
}

/// Reasons of conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The object is accepted.
    Accepted,
    /// Another object has the name already.
    Conflicted,
    /// The object has a fault.
    Invalid,
    /// The object reaches no traffic.
    TargetNotFound,
    /// The document has all policies of the object.
    Programmed,
    /// Some routes replace a default of the object.
    PartiallyProgrammed,
    /// All routes replace all defaults of the object.
    Overridden,
    /// The document has a fault.
    Reconciling,
}

impl Reason {
    /// Its name in conditions.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Conflicted => "Conflicted",
            Self::Invalid => "Invalid",
            Self::TargetNotFound => "TargetNotFound",
            Self::Programmed => "Programmed",
            Self::PartiallyProgrammed => "PartiallyProgrammed",
            Self::Overridden => "Overridden",
            Self::Reconciling => "Reconciling",
        }
    }
}
