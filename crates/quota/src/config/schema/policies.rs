//! The section `policies`.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema};
use serde_json::json;

use super::identities::MEMBER;
use super::{Claim, Duration, HeaderName, Metadata, OnFailure, Peer, ValueType, Verified, whole};
use crate::config::MAX_PARTITION_BY;
use crate::config::policies::NAME;
use crate::protocol::MAX_UNITS;

/// One quota rule: who it counts, how many units, in which window.
#[derive(JsonSchema)]
#[schemars(rename = "Policy", deny_unknown_fields)]
pub struct PolicyDocument {
    /// Its name, unique; part of counters' keys, headers and statistics.
    #[schemars(extend("pattern" = whole(NAME.pattern)))]
    pub name: String,
    /// Which requests it is about: all that is given must hold. Left out, it is every request.
    pub r#match: Option<Match>,
    /// Who is counted: names of identities, and method, host, path, route. An empty list is one counter for everybody.
    #[schemars(length(max = MAX_PARTITION_BY), extend("uniqueItems" = true))]
    pub partition_by: Vec<String>,
    /// What becomes of a request whose identity is not found.
    #[schemars(extend("default" = "skip"))]
    pub on_missing: Option<OnMissing>,
    /// Units a window; 0 is nobody.
    pub quota: Units,
    /// The window: whole seconds from 1s to 366d. Windows follow the store's clock and end for all callers at once,
    /// unless `stagger` is set.
    pub window: Duration,
    /// A verified number that replaces `quota`.
    pub quota_from: Option<QuotaFrom>,
    /// Quotas by a verified value, such as the plan that a caller has paid for.
    pub tiers: Option<Tiers>,
    /// Quotas of single partitions or networks. The first that fits wins, over `quota_from`, `tiers` and `quota`.
    #[schemars(length(max = 1024))]
    pub overrides: Option<Vec<Override>>,
    /// The units that one request takes.
    #[schemars(extend("default" = 1))]
    pub cost: Option<Cost>,
    /// Which requests count.
    #[schemars(extend("default" = "all"))]
    pub count: Option<Count>,
    /// Whether workers may hold units ahead of need.
    #[schemars(extend("default" = "exact"))]
    pub precision: Option<Precision>,
    /// How much is held ahead; only with `precision: lease`.
    pub lease: Option<Lease>,
    /// Whether requests that this policy refuses count too. Not with `precision: lease`.
    #[schemars(extend("default" = false))]
    pub count_denied: Option<bool>,
    /// Whether each partition has a beginning of its own for its windows, so that not all quotas reset at once.
    #[schemars(extend("default" = false))]
    pub stagger: Option<bool>,
    /// Whether it refuses.
    #[schemars(extend("default" = "enforce"))]
    pub mode: Option<Mode>,
    /// What becomes of its requests while the store fails; left out, what `store` says.
    pub on_failure: Option<OnFailure>,
}

/// Conditions that must all hold.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Match {
    /// One of these methods, in upper case.
    #[schemars(length(min = 1, max = 64), inner(regex(pattern = "^[A-Z0-9_-]{1,64}$")))]
    pub methods: Option<Vec<String>>,
    /// The path without the query string.
    pub path: Option<PathCondition>,
    /// One of these hosts, in any case and without port; `*.example.org` is every name below example.org.
    #[schemars(
        length(min = 1, max = 64),
        inner(regex(pattern = r"^((\*\.)?[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])$")),
        extend("examples" = [["api.example.com", "*.example.org"]])
    )]
    pub hosts: Option<Vec<String>>,
    /// All of these headers.
    #[schemars(length(min = 1, max = 64))]
    pub headers: Option<Vec<HeaderCondition>>,
    /// One of these Envoy route names.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 1024)), extend("uniqueItems" = true))]
    pub routes: Option<Vec<String>>,
}

/// A condition on the path in one spelling: decoded, without `.`, `..` and `//`. It holds for the path with or without
/// parameters (`;v=1`).
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case", deny_unknown_fields)]
pub enum PathCondition {
    /// It is this path, with or without a slash at the end.
    Exact(#[schemars(regex(pattern = r"^(/[^?#;]*|\*)$"), length(max = 1024))] String),
    /// It begins with this.
    Prefix(#[schemars(regex(pattern = r"^(/[^?#;]*|\*)$"), length(max = 1024))] String),
    /// It ends with this.
    Suffix(#[schemars(regex(pattern = "^[^?#;]+$"), length(max = 1024))] String),
    /// The whole of it matches this regular expression.
    Regex(#[schemars(length(min = 1, max = 1024))] String),
}

/// A condition on a header: exactly one of exact, prefix, regex and present.
#[derive(JsonSchema)]
#[schemars(
    deny_unknown_fields,
    extend("oneOf" = [
        {"required": ["exact"]}, {"required": ["prefix"]}, {"required": ["regex"]}, {"required": ["present"]}
    ])
)]
pub struct HeaderCondition {
    /// Its name.
    pub name: HeaderName,
    /// A value of it is this.
    #[schemars(regex(pattern = r"^[^ \t](.*[^ \t])?$"), length(max = 1024))]
    pub exact: Option<String>,
    /// A value of it begins with this.
    #[schemars(regex(pattern = r"^[^ \t]"), length(max = 1024))]
    pub prefix: Option<String>,
    /// The whole of a value matches this regular expression.
    #[schemars(length(min = 1, max = 1024))]
    pub regex: Option<String>,
    /// Whether the request has it.
    pub present: Option<bool>,
}

/// What becomes of a request whose identity is not found.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum OnMissing {
    /// The policy does not apply to it.
    Skip,
    /// It is answered with 401.
    Deny,
    /// All such requests are one partition.
    Shared,
}

/// A whole number from a verified source that replaces `quota`: exactly one of jwt, metadata and peer.
#[derive(JsonSchema)]
#[schemars(
    deny_unknown_fields,
    extend("oneOf" = [{"required": ["jwt"]}, {"required": ["metadata"]}, {"required": ["peer"]}])
)]
pub struct QuotaFrom {
    /// A claim that Envoy's jwt_authn has verified.
    pub jwt: Option<VerifiedClaim>,
    /// A value of the request's dynamic metadata.
    pub metadata: Option<Metadata>,
    /// A name in the certificate that the client showed.
    pub peer: Option<Peer>,
    /// The largest quota that it can give.
    #[schemars(extend("default" = MAX_UNITS))]
    pub max: Option<Units>,
}

/// A claim of a verified token.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct VerifiedClaim {
    /// The key of the token's payload in jwt_authn's dynamic metadata (its payload_in_metadata).
    #[schemars(regex(pattern = MEMBER), extend("default" = "jwt_payload"))]
    pub payload: Option<String>,
    /// The claim.
    pub claim: Claim,
    /// What the value is: one of another type is taken for missing. A number in quota_from, else a string.
    pub r#type: Option<ValueType>,
}

/// Quotas by a verified value.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Tiers {
    /// Where the value comes from.
    pub source: Verified,
    /// The quota of each value; for others it is `quota`.
    #[schemars(extend(
        "minProperties" = 1,
        "maxProperties" = 256,
        "propertyNames" = {"minLength": 1, "maxLength": 128}
    ))]
    pub quotas: BTreeMap<String, Units>,
}

/// Units a window; 0 is nobody.
#[derive(JsonSchema)]
pub struct Units(#[schemars(range(max = MAX_UNITS))] pub u64);

/// A quota of one partition or network: `value` or `network`, and `quota` or `unlimited`.
#[derive(JsonSchema)]
#[schemars(
    deny_unknown_fields,
    extend("allOf" = [
        {"oneOf": [{"required": ["value"]}, {"required": ["network"]}]},
        {"oneOf": [{"required": ["quota"]}, {"required": ["unlimited"]}]}
    ])
)]
pub struct Override {
    /// The value of the partition; where its identity has several sources, or it has several entries, the encoded
    /// form such as `jwt.sub=alice`.
    #[schemars(length(min = 1))]
    pub value: Option<String>,
    /// The clients of this network (CIDR) or address, where client_ip is what they are counted by.
    #[schemars(regex(pattern = "^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$"), extend("examples" = ["10.0.0.0/8", "2001:db8::/32"]))]
    pub network: Option<String>,
    /// Units a window; 0 is nobody.
    pub quota: Option<Units>,
    /// They are not counted at all.
    #[schemars(extend("const" = true))]
    pub unlimited: Option<bool>,
}

/// The units that one request takes.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum Cost {
    /// The same for each.
    Units(#[schemars(range(min = 1, max = MAX_UNITS))] u64),
    /// What a request says of itself.
    FromHeader(CostFromHeader),
}

/// What a request says of itself.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct CostFromHeader {
    /// The header that says so.
    pub header: CostHeader,
}

/// A header that holds a cost.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct CostHeader {
    /// Its name.
    pub name: HeaderName,
    /// The cost of a request whose header is missing or is no whole number of at least 1.
    #[schemars(range(min = 1, max = MAX_UNITS), extend("default" = 1))]
    pub default: Option<u64>,
    /// The largest cost; what is above costs so much, and what is given twice. Without it the larger one counts.
    #[schemars(range(min = 1, max = MAX_UNITS))]
    pub max: Option<u64>,
}

/// Which requests count.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub enum Count {
    /// All that are admitted.
    All(#[schemars(extend("const" = "all"))] String),
    /// Those that are answered so, such as failed log-ins.
    ByAnswer(CountByAnswer),
}

/// Requests by their answer. The units are held while a request runs, and refunded otherwise.
#[derive(JsonSchema)]
#[schemars(
    deny_unknown_fields,
    extend("allOf" = [{"anyOf": [
        {"required": ["status"], "properties": {"status": {"minItems": 1}}},
        {"required": ["grpc_status"], "properties": {"grpc_status": {"minItems": 1}}}
    ]}])
)]
pub struct CountByAnswer {
    /// HTTP statuses that count. An answer of gRPC is judged by them only where grpc_status lists nothing.
    #[schemars(length(max = 500), inner(range(min = 100, max = 599)), extend("uniqueItems" = true))]
    pub status: Option<Vec<u16>>,
    /// gRPC statuses that count, such as 16 (UNAUTHENTICATED).
    #[schemars(length(max = 17), inner(range(min = 0, max = 16)), extend("uniqueItems" = true))]
    pub grpc_status: Option<Vec<u16>>,
    /// What becomes of a request that was admitted, and whose client left before the whole answer.
    #[schemars(extend("default" = "count"))]
    pub abandoned: Option<Abandoned>,
}

/// What becomes of a request without a whole answer.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum Abandoned {
    /// It counts.
    Count,
    /// Its units are refunded.
    Refund,
}

/// Whether workers may hold units ahead of need.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum Precision {
    /// They ask for what waits.
    Exact,
    /// They hold some of their own traffic ahead, and ask less often.
    Lease,
}

/// How much a worker holds ahead.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Lease {
    /// About so much of its own recent traffic, from 1ms to 60s.
    #[schemars(extend("default" = "100ms"))]
    pub ahead: Option<Duration>,
    /// The most units of one counter.
    #[schemars(range(min = 1, max = MAX_UNITS), extend("default" = 1000))]
    pub max: Option<u64>,
}

/// Whether a policy refuses.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case", transform = off_in_yaml)]
pub enum Mode {
    /// It refuses what is over its quota.
    Enforce,
    /// It counts, and never refuses.
    Shadow,
    /// It neither counts nor refuses.
    Off,
}

fn off_in_yaml(schema: &mut Schema) {
    if let Some(choices) = schema.get_mut("oneOf").and_then(serde_json::Value::as_array_mut) {
        choices.push(
            json!({"const": false, "description": "What YAML 1.1 makes of a bare `off`: the same as that."}),
        );
    }
}
