//! The section `identities`: the sources that a caller is known by.

use schemars::JsonSchema;
use serde_json::{Value, json};

use super::whole;
use crate::config::MAX_SOURCES;
use crate::config::identities::NAME;
use crate::config::names::MAX_HEADER;
use crate::request::partition::BuiltIn;

/// A name of HTTP, a token of RFC 9110.
pub(super) const TOKEN: &str = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$";
/// The same, of a header that is no pseudo header and does not stand for one.
const HEADER: &str = "^(?![Hh][Oo][Ss][Tt]$)[!#$%&'*+.^_`|~0-9A-Za-z-]+$";

/// The name of a member of metadata.
pub(super) const MEMBER: &str = r"^[^\u0000-\u001f\u007f]{1,128}$";

/// The names of identities: none that `partition_by` means something else by.
pub(super) fn name() -> Value {
    json!({"pattern": whole(NAME.pattern), "not": {"enum": BuiltIn::ALL.map(BuiltIn::name)}})
}

/// Where a value may come from. The first source that yields one wins.
#[derive(JsonSchema)]
pub struct Sources(#[schemars(length(min = 1, max = MAX_SOURCES))] pub Vec<Source>);

/// Where a value comes from that may name a caller.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// A claim that Envoy's jwt_authn has verified.
    Jwt(Jwt),
    /// The address of the client that Envoy trusts (use_remote_address, xff_num_trusted_hops).
    ClientIp(ClientIp),
    /// A request header. As good as who writes it: a client that can invent values gets a fresh quota with each.
    Header(Header),
    /// A cookie: a client can invent values.
    Cookie(Cookie),
    /// A parameter of the query string: a client can invent values.
    Query(Query),
    /// A name in the certificate that the client showed (mTLS).
    Peer(Peer),
    /// A value of the request's dynamic metadata, where filters before this one leave what they found out.
    Metadata(Metadata),
}

/// One verified source.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case", deny_unknown_fields)]
pub enum Verified {
    /// A claim that Envoy's jwt_authn has verified.
    Jwt(super::VerifiedClaim),
    /// A name in the certificate that the client showed (mTLS).
    Peer(Peer),
    /// A value of the request's dynamic metadata, where filters before this one leave what they found out.
    Metadata(Metadata),
}

/// Claims of a verified token: `claim`, or several `claims`.
#[derive(JsonSchema)]
#[schemars(
    deny_unknown_fields,
    extend("oneOf" = [{"required": ["claim"]}, {"required": ["claims"]}])
)]
pub struct Jwt {
    /// The key of the token's payload in jwt_authn's dynamic metadata (its payload_in_metadata).
    #[schemars(regex(pattern = MEMBER), extend("default" = "jwt_payload"))]
    pub payload: Option<String>,
    /// The claim.
    pub claim: Option<Claim>,
    /// Several claims that name a caller together, such as `[iss, sub]` for more than one issuer.
    #[schemars(length(min = 1, max = 8), extend("uniqueItems" = true))]
    pub claims: Option<Vec<Claim>>,
    /// What the values are: a value of another type is taken for missing.
    #[schemars(extend("default" = "string"))]
    pub r#type: Option<ValueType>,
}

/// A claim: a name, in which dots lead into nested claims; or the list of names, for names that hold dots.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum Claim {
    /// Such as `sub`, or `realm.tenant` for `tenant` within `realm`.
    Dotted(
        #[schemars(
            regex(pattern = r"^[^.\u0000-\u001f\u007f]+(\.[^.\u0000-\u001f\u007f]+)*$"),
            length(max = 128)
        )]
        String,
    ),
    /// Such as `["https://example.com/plan"]`.
    Names(#[schemars(length(min = 1, max = 16), inner(regex(pattern = MEMBER)))] Vec<String>),
}

/// What a value of a claim or of metadata is, for it arrives as bare bytes.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum ValueType {
    /// Text.
    String,
    /// A number, whole or not.
    Number,
    /// `true` or `false`.
    Boolean,
}

/// The client's address.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ClientIp {
    /// So many leading bits of an IPv6 address are counted as one; IPv4 addresses are counted each.
    #[schemars(range(min = 1, max = 128), extend("default" = 64))]
    pub ipv6_prefix: Option<u8>,
}

/// The name of a header, in any case. Method, path and host are no headers here: `match` and `partition_by` have
/// fields for them.
#[derive(JsonSchema)]
pub struct HeaderName(#[schemars(regex(pattern = HEADER), length(max = MAX_HEADER))] pub String);

/// A request header.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Header {
    /// Its name, in any case.
    pub name: HeaderName,
    /// Whether only a keyed digest of the value leaves the filter.
    #[schemars(extend("default" = false))]
    pub secret: Option<bool>,
}

/// A cookie.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Cookie {
    /// Its name.
    #[schemars(regex(pattern = TOKEN), length(max = 128))]
    pub name: String,
    /// Whether only a keyed digest of the value leaves the filter.
    #[schemars(extend("default" = false))]
    pub secret: Option<bool>,
}

/// A parameter of the query string.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Query {
    /// Its name, as it is once decoded.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// Whether only a keyed digest of the value leaves the filter.
    #[schemars(extend("default" = false))]
    pub secret: Option<bool>,
}

/// A name in the client's certificate: `san`, or `subject: true`.
#[derive(JsonSchema)]
#[schemars(
    deny_unknown_fields,
    extend("oneOf" = [{"required": ["san"]}, {"required": ["subject"]}])
)]
pub struct Peer {
    /// The first subject alternative name of this kind.
    pub san: Option<SanKind>,
    /// The subject.
    #[schemars(extend("const" = true))]
    pub subject: Option<bool>,
}

/// A kind of subject alternative names.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum SanKind {
    /// A URI, such as a SPIFFE ID.
    Uri,
    /// A DNS name.
    Dns,
}

/// A value of the request's dynamic metadata.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Metadata {
    /// The namespace, mostly the name of the filter that wrote it.
    #[schemars(regex(pattern = MEMBER))]
    pub filter: String,
    /// The names that lead to the value. A list's elements are named by their places: `groups`, then `0`.
    #[schemars(length(min = 1, max = 16), inner(regex(pattern = MEMBER)))]
    pub path: Vec<String>,
    /// What the value is: one of another type is taken for missing. A number in quota_from, else a string.
    pub r#type: Option<ValueType>,
}
