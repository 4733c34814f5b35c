//! Which requests count.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use super::{TOKEN, cel};

/// The pattern of conditions on a path.
#[cfg(feature = "schema")]
const PATH: &str = "^/[^?#;]*$";

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1)))]
pub struct RequestConditions {
    /// The condition on the path without the query string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathChoice>,
    /// The method is one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(min = 1, max = 9),
        inner(length(min = 1, max = 16), regex(pattern = "^[A-Z0-9_-]+$")),
        extend("x-kubernetes-list-type" = "set")
    ))]
    pub methods: Vec<String>,
    /// All of these conditions on headers hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "atomic")))]
    pub headers: Vec<HeaderChoice>,
    /// None of these conditions may hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not: Option<ExcludedRequests>,
}

/// At least one condition. None of them may hold.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1)))]
pub struct ExcludedRequests {
    /// The condition on the path without the query string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathChoice>,
    /// The method is one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(min = 1, max = 9),
        inner(length(min = 1, max = 16), regex(pattern = "^[A-Z0-9_-]+$")),
        extend("x-kubernetes-list-type" = "set")
    ))]
    pub methods: Vec<String>,
}

/// A condition on the path: exactly one of these.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = cel::path())))]
pub struct PathChoice {
    /// The whole path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 256), regex(pattern = PATH)))]
    pub exact: Option<String>,
    /// How the path begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 256), regex(pattern = PATH)))]
    pub prefix: Option<String>,
    /// How the path ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 256), regex(pattern = "^[^?#;]+$"))
    )]
    pub suffix: Option<String>,
    /// A regular expression for the whole path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 256)))]
    pub regex: Option<String>,
}

/// A condition on a header: exactly one of `exact`, `prefix`, `regex` and `present`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = cel::header())))]
pub struct HeaderChoice {
    /// The name of the header, in any case.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128), regex(pattern = TOKEN)))]
    pub name: String,
    /// The whole value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 256), regex(pattern = r"^[^ \t](.*[^ \t])?$"))
    )]
    pub exact: Option<String>,
    /// How the value begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 256), regex(pattern = r"^[^ \t]"))
    )]
    pub prefix: Option<String>,
    /// A regular expression for the whole value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 256)))]
    pub regex: Option<String>,
    /// Whether the request has the header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}
