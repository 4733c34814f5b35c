//! The object `response`: the headers of responses, and the answer to refused requests.

use std::time::Duration;

use super::denied::{Denied, DeniedDocument};
use super::time::UpToAMinute;
use crate::document::{Distinct, Node, Type, Words, object, words};

/// What responses carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseConfig {
    /// The families of quota headers. No two of them share a field.
    pub families: Box<[HeaderFamily]>,
    /// How `X-RateLimit-Reset` writes the time.
    pub reset: Reset,
    /// The longest time after which a gRPC client is told to retry.
    pub grpc_pushback: Duration,
    /// The answer to a request whose quota is used up.
    pub denied: Denied,
}

words! {
    /// A family of quota headers.
    pub enum HeaderFamily {
        /// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11, one item
        /// for each policy.
        Ietf = "ietf",
        /// `X-RateLimit-Limit`, `-Used`, `-Remaining` and `-Reset` of the policy with the fewest
        /// remaining units.
        XRateLimit = "x_ratelimit",
        /// `RateLimit: limit=, remaining=, reset=` of version 07 of the draft, of the policy with
        /// the fewest remaining units.
        Draft07 = "draft_07",
        /// `RateLimit-Limit`, `-Remaining` and `-Reset` of version 03 of the draft, of the policy
        /// with the fewest remaining units.
        Draft03 = "draft_03",
        /// `X-Concurrency-Limit` and `-Remaining` of the policy with `in_flight` that has the
        /// fewest remaining slots. Families other than this one and `ietf` leave such policies out,
        /// since their fields name a reset.
        Concurrency = "concurrency",
    }
}

words! {
    /// How `X-RateLimit-Reset` writes the end of the window.
    pub enum Reset {
        /// In seconds since the Unix epoch.
        Epoch = "epoch",
        /// In seconds from now.
        Delta = "delta",
    }
}

object! {
    /// What clients see: the quota headers of counted responses, and the answer to refused
    /// requests.
    Response(ResponseFields<'a>) -> ResponseConfig {
        /// The families of quota headers that counted responses carry. `[]` writes none. `ietf` and
        /// `draft_07` exclude each other, since both write the field `RateLimit`.
        default(["x_ratelimit"]) headers: Families = ["draft_03"],
        /// How `X-RateLimit-Reset` writes the end of the window.
        default("epoch") reset: Reset = "delta",
        /// The longest time that `grpc-retry-pushback-ms` names. If units are granted later, it is
        /// `-1`: do not retry. gRPC libraries wait as long as this header says, even beyond the
        /// deadline of their call.
        default("5s") grpc_pushback: UpToAMinute = "2s",
        /// The answer to a request whose quota is used up.
        default({}) denied: DeniedDocument,
    }
}

impl ResponseFields<'_> {
    fn build(self) -> Option<ResponseConfig> {
        Some(ResponseConfig {
            families: self.headers?.into(),
            reset: self.reset?,
            grpc_pushback: self.grpc_pushback?,
            denied: self.denied?,
        })
    }
}

impl HeaderFamily {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Ietf, Self::XRateLimit, Self::Draft07, Self::Draft03, Self::Concurrency];

    /// Its name in the document.
    fn name(self) -> &'static str {
        Self::WORDS.iter().find(|(_, family)| *family == self).map_or("", |(name, _)| name)
    }

    /// The names of its fields, in lower case.
    pub const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Ietf => &["ratelimit-policy", "ratelimit"],
            Self::XRateLimit => &[
                "x-ratelimit-limit",
                "x-ratelimit-used",
                "x-ratelimit-remaining",
                "x-ratelimit-reset",
            ],
            Self::Draft07 => &["ratelimit"],
            Self::Draft03 => &["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
            Self::Concurrency => &["x-concurrency-limit", "x-concurrency-remaining"],
        }
    }

    /// A field that both have.
    fn shared_field(self, other: Self) -> Option<&'static str> {
        self.fields().iter().copied().find(|field| other.fields().contains(field))
    }
}

/// The families of a document. No two of them share a field.
enum Families {}

type HeaderFamilies = Distinct<HeaderFamily, 0, { HeaderFamily::ALL.len() }>;

impl Type for Families {
    type Out<'a> = Vec<HeaderFamily>;

    fn read(node: &Node<'_>) -> Option<Vec<HeaderFamily>> {
        let families = HeaderFamilies::read(node)?;
        let mut good = true;
        for (i, family) in families.iter().enumerate() {
            for earlier in families.iter().take(i) {
                if let Some(field) = family.shared_field(*earlier) {
                    let (one, other) = (earlier.name(), family.name());
                    node.fault(format!(
                        "{one} and {other} both write the field {field}: keep one of the two"
                    ));
                    good = false;
                }
            }
        }
        good.then_some(families)
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut crate::document::book::Book) -> serde_json::Value {
        let mut schema = HeaderFamilies::schema(book);
        let both = [HeaderFamily::Ietf, HeaderFamily::Draft07]
            .map(|family| serde_json::json!({"contains": {"const": family.name()}}));
        crate::document::book::set(&mut schema, "not", serde_json::json!({"allOf": both}));
        schema
    }
}
