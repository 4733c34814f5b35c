//! The section `response`.

use super::denied::{self, Denied};
use super::reader::Node;

/// What responses carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseConfig {
    /// `RateLimit-Policy` and `RateLimit`.
    pub ietf: bool,
    /// `X-RateLimit-Limit`, `-Used`, `-Remaining` and `-Reset`.
    pub x_ratelimit: bool,
    /// How `X-RateLimit-Reset` tells the time.
    pub reset: Reset,
    /// The answer to a request whose quota is used up.
    pub denied: Denied,
}

/// How `X-RateLimit-Reset` tells when the window ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// In seconds since the Unix epoch.
    Epoch,
    /// In seconds from now.
    Delta,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Ietf,
    XRateLimit,
}

impl Default for ResponseConfig {
    fn default() -> Self {
        Self { ietf: true, x_ratelimit: true, reset: Reset::Epoch, denied: Denied::default() }
    }
}

pub(super) fn parse(node: &Node<'_>) -> Option<ResponseConfig> {
    let mut object = node.object()?;
    let families = object.optional("headers", families, || vec![Family::Ietf, Family::XRateLimit]);
    let reset = object.optional(
        "reset",
        |n| n.choice(&[("epoch", Reset::Epoch), ("delta", Reset::Delta)]),
        || Reset::Epoch,
    );
    let denied = object.optional("denied", denied::parse, Denied::default);
    object.finish();
    let families = families?;
    Some(ResponseConfig {
        ietf: families.contains(&Family::Ietf),
        x_ratelimit: families.contains(&Family::XRateLimit),
        reset: reset?,
        denied: denied?,
    })
}

fn families(node: &Node<'_>) -> Option<Vec<Family>> {
    let families =
        node.each(2, |n| n.choice(&[("ietf", Family::Ietf), ("x_ratelimit", Family::XRateLimit)]))?;
    node.distinct(families)
}
