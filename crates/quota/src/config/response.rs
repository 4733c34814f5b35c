//! The section `response`.

use super::reader::Node;

/// What responses carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseConfig {
    /// `RateLimit-Policy` and `RateLimit`.
    pub ietf: bool,
    /// `X-RateLimit-Limit`, `-Used`, `-Remaining` and `-Reset`.
    pub x_ratelimit: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Ietf,
    XRateLimit,
}

impl Default for ResponseConfig {
    fn default() -> Self {
        Self { ietf: true, x_ratelimit: true }
    }
}

pub(super) fn parse(node: &Node<'_>) -> Option<ResponseConfig> {
    let mut object = node.object()?;
    let config = object.optional("headers", headers, ResponseConfig::default);
    let reset = object.optional("reset", |n| n.choice(&[("epoch", ())], &["delta"]), || ());
    let denied = object.optional("denied", denied, || ());
    object.finish();
    reset.and(denied).and(config)
}

fn headers(node: &Node<'_>) -> Option<ResponseConfig> {
    let families =
        node.each(2, |n| n.choice(&[("ietf", Family::Ietf), ("x_ratelimit", Family::XRateLimit)], &[]))?;
    let families = node.distinct(families)?;
    Some(ResponseConfig {
        ietf: families.contains(&Family::Ietf),
        x_ratelimit: families.contains(&Family::XRateLimit),
    })
}

fn denied(node: &Node<'_>) -> Option<()> {
    let mut object = node.object()?;
    object.later(&["status", "content_type", "body", "headers"]);
    object.finish();
    Some(())
}
