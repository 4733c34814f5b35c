//! The section `response`.

use super::denied;
use super::reader::Node;
use super::template::Template;

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

/// The answer to a request whose quota is used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The HTTP status, 400 to 599.
    pub status: u16,
    /// The type of the body; `None` only where `body` is, or is empty.
    pub content_type: Option<Box<str>>,
    /// The body; `None` is the built-in problem document.
    pub body: Option<Template>,
    /// Further headers by their lower-case names, each once. None of those that the filter sets itself.
    pub headers: Vec<(Box<str>, Template)>,
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

impl Default for Denied {
    fn default() -> Self {
        Self { status: 429, content_type: None, body: None, headers: Vec::new() }
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
