//! The messages of xDS, as far as the service reads and writes them.
//!
//! Names and tags are those of `envoy/service/discovery/v3/discovery.proto`,
//! `envoy/config/core/v3/base.proto`, `google/rpc/status.proto` and
//! `ratelimit/config/ratelimit/v3/rls_conf.proto` of go-control-plane.

use prost_types::{Any, Struct};

/// The path of the method. envoyproxy/ratelimit calls the aggregated service, and Envoy Gateway
/// serves no other one.
pub(super) const STREAM: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// The type of the resources.
pub(super) const RULES: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Asks for resources, acknowledges them, or refuses them.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DiscoveryRequest {
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    #[prost(message, optional, tag = "2")]
    pub(super) node: Option<XdsNode>,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    #[prost(string, tag = "5")]
    pub(super) response_nonce: String,
    #[prost(message, optional, tag = "6")]
    pub(super) error_detail: Option<ErrorDetail>,
}

/// Who asks.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct XdsNode {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(message, optional, tag = "3")]
    pub(super) metadata: Option<Struct>,
}

/// Why resources are refused.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct ErrorDetail {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

/// All resources as they are now.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) resources: Vec<Any>,
    #[prost(string, tag = "5")]
    pub(super) nonce: String,
}

/// A resource: the rules of one domain.
#[derive(Clone, PartialEq, prost::Message)]
pub struct XdsRules {
    /// The name of the resource.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The domain.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// The outermost level.
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<XdsDescriptor>,
}

/// One entry of a level.
#[derive(Clone, PartialEq, prost::Message)]
pub struct XdsDescriptor {
    /// The key of the descriptor's entry.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value; empty is any.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The limit, if there is one at this level.
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<XdsLimit>,
    /// The next level.
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<XdsDescriptor>,
    /// Whether the limit only counts.
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    /// Whether metrics name the values of the request.
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    /// Whether a request is refused only if all its quota limits are used up.
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
    /// What the answer to an admitted request carries.
    #[prost(message, optional, tag = "8")]
    pub metadata: Option<Struct>,
}

/// A limit.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct XdsLimit {
    /// The time. The numbers are those of [`Unit`](crate::messages::Unit).
    #[prost(int32, tag = "1")]
    pub unit: i32,
    /// Hits per unit.
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    /// Whether there is no limit.
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    /// A name that other rules can refer to.
    #[prost(string, tag = "4")]
    pub name: String,
    /// The rules that do not count beside this one.
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<XdsReplaced>,
}

/// A rule that does not count.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct XdsReplaced {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
}
