//! The messages of `envoy.service.ratelimit.v3`, as far as the service reads and writes them.
//!
//! Names and tags are those of `envoy/service/ratelimit/v3/rls.proto` and
//! `envoy/extensions/common/ratelimit/v3/ratelimit.proto`, as of Envoy 1.40. They are written by
//! hand because all of Envoy's API takes half a minute to compile, in each build.

use prost_types::{Duration, Struct};

/// The name of the service.
pub const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// The path of its only method.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Asks whether a request is within its limits, and counts it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitRequest {
    /// Selects the rules.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// What the request is. Each descriptor is counted by itself.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<Descriptor>,
    /// The hits of descriptors that have none of their own; 0 is 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// One description of the request.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Descriptor {
    /// From the outermost level of the rules inwards.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<DescriptorEntry>,
    /// Replaces the limit of the rule.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RequestLimit>,
    /// The hits; 0 looks without counting.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// Whether the hits are refunded.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// A key and a value.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DescriptorEntry {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A limit that the request itself brings.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RequestLimit {
    /// How many hits.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// In which time. The numbers are those of [`Unit`].
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// The answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitResponse {
    /// What becomes of the request.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One for each descriptor, in their order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// For the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// For later filters.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Struct>,
}

/// What the limit of a descriptor says.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DescriptorStatus {
    /// Whether the descriptor is within its limit.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The limit, if there is one.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<CurrentLimit>,
    /// The hits that are left.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// Until the window ends.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// A limit in force.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CurrentLimit {
    /// The name of the rule, if it has one.
    #[prost(string, tag = "3")]
    pub name: String,
    /// How many hits.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// In which time.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// A header.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeaderValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Never sent.
    Unknown = 0,
    /// It is within its limits.
    Ok = 1,
    /// It is not.
    OverLimit = 2,
}

/// The time of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// No time.
    Unknown = 0,
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// A month.
    Month = 5,
    /// A year.
    Year = 6,
    /// A week.
    Week = 7,
}

impl Unit {
    /// All times, the shortest first.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Its name in the protocol, such as `SECOND`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Week => "WEEK",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
        }
    }

    /// The unit of this name, in any case.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }
}
