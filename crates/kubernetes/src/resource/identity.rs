//! Who is calling.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use super::{TOKEN, cel};

/// Sources of a value that names a caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(inline))]
pub struct IdentitySources(
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "atomic")))]
    pub Vec<IdentitySource>,
);

/// Where a value comes from that names a caller: exactly one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = cel::source())))]
pub struct IdentitySource {
    /// A claim of a token that Envoy has verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtClaim>,
    /// A name in the certificate that the client showed (mTLS).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerName>,
    /// The client's address that Envoy trusts.
    #[serde(rename = "clientIP", default, skip_serializing_if = "Option::is_none")]
    pub client_ip: Option<ClientAddress>,
    /// A request header. A client that can invent values gets a fresh quota with each of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = cel::identity_header())))]
    pub header: Option<ClientValue>,
    /// A cookie. A client that can invent values gets a fresh quota with each of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cookie: Option<ClientValue>,
}

/// A claim of a verified token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JwtClaim {
    /// The claim, with dots between the names of nested objects.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128)))]
    pub claim: String,
    /// The key of the token's payload: the provider of Envoy Gateway, or the payload of Istio.
    /// Left out, it is `jwt_payload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128)))]
    pub payload: Option<String>,
}

/// A name in the client's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PeerName {
    /// The first subject alternative name of this kind.
    pub san: NameKind,
}

/// A kind of subject alternative names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum NameKind {
    /// A URI, such as a SPIFFE ID.
    #[default]
    Uri,
    /// A DNS name.
    Dns,
}

/// The client's address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientAddress {
    /// The leading bits of an IPv4 address that count as one client. Left out, all 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 32)))]
    pub ipv4_prefix: Option<u64>,
    /// The leading bits of an IPv6 address that count as one client. Left out, 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 128)))]
    pub ipv6_prefix: Option<u64>,
}

/// A header or a cookie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientValue {
    /// Its name.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128), regex(pattern = TOKEN)))]
    pub name: String,
    /// Whether only a keyed digest of the value leaves the filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<bool>,
}
