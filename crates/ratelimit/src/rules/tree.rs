//! The rules as they are written, from a file or from xDS.

use crate::messages::Unit;

/// The rules of one domain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DomainRules {
    /// The name of the domain.
    pub domain: String,
    /// The outermost level.
    pub descriptors: Vec<DescriptorRule>,
}

/// One entry of a level.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DescriptorRule {
    /// The key of the descriptor's entry. A `*` stands for any text.
    pub key: String,
    /// Its value; empty is any. A `*` stands for any text.
    pub value: String,
    /// The limit, if there is one at this level.
    pub rate_limit: Option<RateLimitRule>,
    /// Whether the limit only counts.
    pub shadow_mode: bool,
    /// Whether a request is refused only if all its quota limits are used up.
    pub quota_mode: bool,
    /// Whether metrics name the values of the request.
    pub detailed_metric: bool,
    /// Whether metrics name the value of this entry.
    pub value_to_metric: bool,
    /// Whether all values that match the wildcard share one counter.
    pub share_threshold: bool,
    /// What the answer to an admitted request carries.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// The next level.
    pub descriptors: Vec<Self>,
}

/// A limit as it is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateLimitRule {
    /// Hits per unit.
    pub requests_per_unit: u32,
    /// The time; `None` if the field is missing.
    pub unit: Option<Unit>,
    /// Whether there is no limit.
    pub unlimited: bool,
    /// A name that `replaces` of other rules can refer to. Empty: none.
    pub name: String,
    /// The names of rules that do not count beside this one.
    pub replaces: Vec<String>,
}
