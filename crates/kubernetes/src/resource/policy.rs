//! One quota.

use std::collections::BTreeMap;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions::RequestConditions;
#[cfg(feature = "schema")]
use super::{TOKEN, cel};

/// The most units of a quota, `quotagate_protocol::MAX_UNITS`.
#[cfg(feature = "schema")]
const MOST: u64 = 9_007_199_254_740_991;
/// The pattern of names of policies.
#[cfg(feature = "schema")]
const NAME: &str = "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$";
/// The pattern of times to wait, up to 5 seconds.
#[cfg(feature = "schema")]
const WAIT: &str = "^(5s|[0-4]s([0-9]{1,3}ms)?|[1-4][0-9]{3}ms|5000ms|[0-9]{1,3}ms)$";
/// The pattern of windows: each unit once, the largest first.
#[cfg(feature = "schema")]
const WINDOW: &str = "^([0-9]{1,9}w)?([0-9]{1,9}d)?([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?\
                      ([0-9]{1,9}ms)?$";

/// One quota: who it counts, how many units, in which window; or how many at once.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = cel::policy())))]
pub struct PolicyRule {
    /// Unique in the object. Document, metrics and dials call it NAMESPACE/OBJECT/NAME.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 40), regex(pattern = NAME)))]
    pub name: String,
    /// Which requests count, within the traffic of the target. Hosts and routes come from the
    /// target.
    #[serde(rename = "match", default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<RequestConditions>,
    /// Who is counted: identities of this object, `platform/NAME` for those of the platform, and
    /// the words `method`, `host` and `path`. `[]` is one counter for everybody.
    #[cfg_attr(feature = "schema", schemars(
        length(max = 8),
        inner(length(min = 1, max = 73), regex(pattern = "^(platform/)?[A-Za-z0-9._-]{1,64}$")),
        extend("x-kubernetes-list-type" = "set")
    ))]
    pub partition_by: Vec<String>,
    /// What happens to a request that has no value for an entry of `partitionBy`.
    #[serde(default)]
    pub on_missing: MissingValue,
    /// Units in a window. 0 admits nobody. Give this or `inFlight`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = MOST)))]
    pub quota: Option<u64>,
    /// Instead of `quota` and a window: the most units that running requests hold at once, on all
    /// proxies. A request holds its `cost` until its stream ends. 0 admits nobody. `tiers` and
    /// `overrides` replace this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = MOST)))]
    pub in_flight: Option<u64>,
    /// How long a request waits for others to end before it is refused: up to `5s`. Each worker of
    /// a proxy serves its requests in order of arrival. Only with `inFlight`. In the modes
    /// `shadow` and `mark`, no request waits. Left out, none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), regex(pattern = WAIT)))]
    pub max_wait: Option<String>,
    /// The length of a window, such as `1m` or `1h30m`. Give this or `calendar`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(
        length(max = 32),
        regex(pattern = WINDOW),
        extend("x-kubernetes-validations" = cel::window())
    ))]
    pub window: Option<String>,
    /// A window that begins with a unit of the calendar. Give this or `window`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calendar: Option<CalendarUnits>,
    /// Whether the quota holds in every interval of the window's length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliding: Option<bool>,
    /// Whether the policy refuses.
    #[serde(default)]
    pub mode: PolicyMode,
    /// The units that one request takes. Left out, 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<RequestCost>,
    /// Quotas by a claim of a verified token, such as the plan that a caller has paid for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiers: Option<ClaimTiers>,
    /// Quotas of single partitions or networks. The first that fits wins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic")))]
    pub overrides: Vec<PartitionQuota>,
    /// Lets workers hold units ahead of need, and call the store less often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseBound>,
}

/// What happens to a request without a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub enum MissingValue {
    /// The policy does not apply to it.
    #[default]
    Skip,
    /// It is answered with 401.
    Deny,
    /// All such requests share one value.
    Shared,
}

/// Whether a policy refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub enum PolicyMode {
    /// It refuses requests beyond its quota.
    #[default]
    Enforce,
    /// It admits them and marks them for the upstream.
    Mark,
    /// It counts, and never refuses.
    Shadow,
    /// It applies to no request.
    Off,
}

/// A window of the calendar.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CalendarUnits {
    /// The unit that a window lasts for.
    pub unit: CalendarUnit,
    /// The IANA name of the time zone, such as `Europe/Berlin`.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 64), regex(pattern = "^[A-Za-z0-9_+/-]+$"))
    )]
    pub time_zone: String,
}

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub enum CalendarUnit {
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day, from local midnight.
    #[default]
    Day,
    /// A week, from Monday.
    Week,
    /// A month, from its first day.
    Month,
    /// A year, from the first of January.
    Year,
}

/// The units that one request takes: exactly one of these.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = cel::cost())))]
pub struct RequestCost {
    /// The same for each request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MOST)))]
    pub fixed: Option<u64>,
    /// The header of the request that holds the cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderCost>,
}

/// A header that holds a cost.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = cel::header_cost())))]
pub struct HeaderCost {
    /// The name of the header.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128), regex(pattern = TOKEN)))]
    pub name: String,
    /// The largest cost. A larger number costs this much.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MOST)))]
    pub max: u64,
    /// The cost of a request whose header is missing or no such number. Left out, 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MOST)))]
    pub default: Option<u64>,
}

/// Quotas by a claim.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = cel::tiers())))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimTiers {
    /// The claim that names the tier.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128)))]
    pub claim: String,
    /// The key of the token's payload. Left out, it is `jwt_payload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128)))]
    pub payload: Option<String>,
    /// The quota of each value. Callers with another value have `quota` or `inFlight`. If the
    /// claim is a list, the first of its values by the alphabet wins, because maps of objects have
    /// no order.
    #[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1, "maxProperties" = 32)))]
    pub quotas: BTreeMap<String, TierQuota>,
}

/// The quota of a tier.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(inline))]
pub struct TierQuota(#[cfg_attr(feature = "schema", schemars(range(max = MOST)))] pub u64);

/// The quota of one partition or network.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = cel::partition_quota())))]
pub struct PartitionQuota {
    /// The value of the partition, such as `alice` or `jwt.sub=alice`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128)))]
    pub value: Option<String>,
    /// The clients of this network (CIDR) or address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 49)))]
    pub network: Option<String>,
    /// Replaces the policy's `quota` or `inFlight` for them. 0 admits nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = MOST)))]
    pub quota: Option<u64>,
    /// These callers are not counted at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = [true])))]
    pub unlimited: Option<bool>,
}

/// How much a worker holds ahead.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LeaseBound {
    /// The most units of one counter.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MOST)))]
    pub max: u64,
}
