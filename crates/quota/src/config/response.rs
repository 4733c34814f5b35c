//! The section `response`.

use super::denied::{self, Denied};
use super::reader::Node;

/// What responses carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseConfig {
    /// The families of quota headers. No two of them share a field.
    pub families: Box<[Family]>,
    /// How `X-RateLimit-Reset` tells the time.
    pub reset: Reset,
    /// The answer to a request whose quota is used up.
    pub denied: Denied,
}

/// A family of quota headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The lists of draft-ietf-httpapi-ratelimit-headers-11, one item a policy.
    Ietf,
    /// What most services have, of the tightest policy.
    XRateLimit,
    /// The dictionary of draft-ietf-httpapi-ratelimit-headers-07, of the tightest policy.
    Draft07,
    /// The three fields of draft-ietf-httpapi-ratelimit-headers-03, of the tightest policy.
    Draft03,
}

/// How `X-RateLimit-Reset` tells when the window ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// In seconds since the Unix epoch.
    Epoch,
    /// In seconds from now.
    Delta,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ietf, Self::XRateLimit, Self::Draft07, Self::Draft03];
    /// The families of a document that names none.
    const DEFAULT: [Self; 2] = [Self::Ietf, Self::XRateLimit];

    /// Its name in the document.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ietf => "ietf",
            Self::XRateLimit => "x_ratelimit",
            Self::Draft07 => "draft_07",
            Self::Draft03 => "draft_03",
        }
    }

    /// The names of its fields, in lower case.
    pub const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Ietf => &["ratelimit-policy", "ratelimit"],
            Self::XRateLimit => {
                &["x-ratelimit-limit", "x-ratelimit-used", "x-ratelimit-remaining", "x-ratelimit-reset"]
            }
            Self::Draft07 => &["ratelimit"],
            Self::Draft03 => &["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
        }
    }

    /// A field that both have.
    fn shared_field(self, other: Self) -> Option<&'static str> {
        self.fields().iter().copied().find(|field| other.fields().contains(field))
    }
}

impl Default for ResponseConfig {
    fn default() -> Self {
        Self { families: Family::DEFAULT.into(), reset: Reset::Epoch, denied: Denied::default() }
    }
}

pub(super) fn parse(node: &Node<'_>) -> Option<ResponseConfig> {
    let mut object = node.object()?;
    let families = object.optional("headers", families, || Family::DEFAULT.into());
    let reset = object.optional(
        "reset",
        |n| n.choice(&[("epoch", Reset::Epoch), ("delta", Reset::Delta)]),
        || Reset::Epoch,
    );
    let denied = object.optional("denied", denied::parse, Denied::default);
    object.finish();
    Some(ResponseConfig { families: families?.into(), reset: reset?, denied: denied? })
}

fn families(node: &Node<'_>) -> Option<Vec<Family>> {
    let words = Family::ALL.map(|family| (family.name(), family));
    let families = node.distinct(node.each(words.len(), |n| n.choice(&words))?)?;
    let mut good = true;
    for (i, family) in families.iter().enumerate() {
        for earlier in families.iter().take(i) {
            if let Some(field) = family.shared_field(*earlier) {
                let (one, other) = (earlier.name(), family.name());
                node.fault(format!("{one} and {other} both write the field {field}: keep one of the two"));
                good = false;
            }
        }
    }
    good.then_some(families)
}
