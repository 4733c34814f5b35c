//! What a client sees of its quotas: the headers of counted responses, and the answers that the
//! filter sends instead of the upstream.
//!
//! Parts of the configuration are borrowed, not copied.

mod answers;
mod headers;
pub mod mark;
#[cfg(test)]
mod tests;
mod upstream;

use std::borrow::Cow;
use std::time::Duration;

use crate::time::Monotonic;

pub use answers::{answer, marked_by_client, missing_identity, unavailable};
pub(crate) use headers::used;
pub use headers::{ResponseHeaders, quota_headers, response_headers, tightest};
pub use upstream::{HeaderWrite, Upstream};

/// When a gRPC client may retry, in milliseconds (gRPC's retry design). A negative number means
/// never.
pub const PUSHBACK: &str = "grpc-retry-pushback-ms";
/// This header tells an Envoy in front that a rate limiter answered, so it does not retry.
pub(crate) const RATE_LIMITED: &str = "x-envoy-ratelimited";

/// A header of a response; its name is in lower case.
pub type Header<'a> = (&'a str, Cow<'a, str>);

/// An answer that the filter sends instead of the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The HTTP status.
    pub status: u16,
    /// The grpc-status for gRPC clients.
    pub grpc_status: i32,
    /// The headers, content type included.
    pub headers: Vec<Header<'a>>,
    /// The body.
    pub body: Cow<'a, str>,
    /// The value of [`PUSHBACK`], for gRPC clients alone.
    pub pushback: Option<i32>,
    /// Why, for access logs (`%RESPONSE_CODE_DETAILS%`).
    pub details: &'static str,
}

/// Now, on both clocks that a response needs.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For what is left of a window.
    pub monotonic: Monotonic,
    /// Since the Unix epoch, for reset times in epoch seconds.
    pub epoch: Duration,
}
