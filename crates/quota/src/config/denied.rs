//! The object `response.denied`: the answer to a client whose quota is used up.
//!
//! Every field is optional. A body without a `content_type` is `application/json` if it is JSON
//! once its placeholders are filled in, else `text/plain; charset=utf-8`. A `content_type` without
//! a body must be a type of JSON, since the built-in body is JSON.

use quotagate_protocol::MAX_UNITS;
use serde::de::IgnoredAny;

use super::template::Template;
use crate::document::{At, Map, Node, Type, Whole, names, object};
use crate::response::{PUSHBACK, RATE_LIMITED};

/// The longest body, in bytes before placeholders are filled in.
const MAX_BODY: usize = 64 * 1024;
/// The most further headers.
const MAX_HEADERS: usize = 32;
/// The longest value of a header, in bytes before placeholders are filled in.
const MAX_VALUE: usize = 1024;

const PLAIN_TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// The answer to a request whose quota is used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The HTTP status, 400 to 599.
    pub status: u16,
    /// The type of the body. `None` only if `body` is `None` or empty.
    pub content_type: Option<Box<str>>,
    /// The body. `None` is the built-in problem document.
    pub body: Option<Template>,
    /// Further headers by their lower-case names, each once. The filter sets none of these itself.
    pub headers: Vec<(Box<str>, Template)>,
}

object! {
    /// The answer to a request whose quota is used up. The body and the values of headers may hold
    /// the placeholders `{policy}`, `{retry_after}` and `{quota}`.
    DeniedDocument(DeniedFields<'a>) -> Denied {
        /// The HTTP status.
        default(429) status: Whole<400, 599> = 503,
        /// The type of the body. If it is a type of JSON, the body must be JSON once its
        /// placeholders are filled in. Without it, a body that is JSON is `application/json`, any
        /// other `text/plain; charset=utf-8`.
        optional content_type: At<ContentType> = "application/json",
        /// A body in place of the built-in one, which is `application/problem+json`.
        optional body: At<Body> = "slow down",
        /// Further headers. Those that the filter or Envoy sets are refused.
        default({}) headers: Headers = {"x-docs": "https://example.com/limits"},
    }
}

impl DeniedFields<'_> {
    fn build(self) -> Option<Denied> {
        let (content_type, body) = (self.content_type?, self.body?);
        let content_type = match (content_type, &body) {
            (Some((given, _)), Some((body, at))) if is_json(given) && !body.makes_json() => {
                at.fault(format!(
                    "must be JSON once its placeholders are filled in, as content_type is {given}"
                ));
                return None;
            }
            (Some((given, at)), None) if !is_json(given) => {
                at.fault(
                    "must be application/json or end with +json where no body is given: the built-in one is JSON",
                );
                return None;
            }
            (Some((given, _)), _) => Some(given),
            (None, Some((body, _))) if body.pieces().is_empty() => None,
            (None, Some((body, _))) => Some(if body.makes_json() { JSON } else { PLAIN_TEXT }),
            (None, None) => None,
        };
        Some(Denied {
            status: u16::try_from(self.status?).ok()?,
            content_type: content_type.map(Box::from),
            body: body.map(|(body, _)| body),
            headers: self.headers?,
        })
    }
}

/// A media type: `type/subtype`, and perhaps parameters.
enum ContentType {}

impl Type for ContentType {
    type Out<'a> = &'a str;

    fn read<'a>(node: &Node<'a>) -> Option<&'a str> {
        let text = HeaderValue::read(node)?;
        let (kind, subtype) = essence(text).split_once('/').unwrap_or_default();
        if names::is_token(kind) && names::is_token(subtype) {
            return Some(text);
        }
        node.fault(format!(
            "must be a media type such as application/json or text/html; charset=utf-8, is {text:?}"
        ));
        None
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        // Two tokens, and perhaps parameters.
        let pattern =
            "^[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+ *(;([ -~]*[!-~])?)?(?<! )$";
        serde_json::json!({"type": "string", "pattern": pattern, "maxLength": MAX_VALUE})
    }
}

/// A media type without its parameters.
fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim_end()
}

fn is_json(content_type: &str) -> bool {
    let essence = essence(content_type).to_ascii_lowercase();
    essence == JSON || essence.ends_with("+json")
}

/// A body with placeholders. It may be empty.
enum Body {}

impl Type for Body {
    type Out<'a> = Template;

    fn read(node: &Node<'_>) -> Option<Template> {
        let text = node.string()?;
        node.no_longer_than(text, MAX_BODY)?;
        Some(Template::read(text, node))
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        serde_json::json!({"type": "string", "maxLength": MAX_BODY})
    }
}

/// Further headers by name.
enum Headers {}

type HeaderMap = Map<HeaderValue, MAX_HEADERS>;

impl Type for Headers {
    type Out<'a> = Vec<(Box<str>, Template)>;

    fn read(node: &Node<'_>) -> Option<Vec<(Box<str>, Template)>> {
        let mut headers: Vec<(Box<str>, Template)> = Vec::new();
        let mut good = true;
        for (name, node, value) in HeaderMap::read(node)? {
            let name = header_name(name, &node);
            let value = value.map(|text| Template::read(text, &node));
            match (name, value) {
                (Some(name), Some(value))
                    if headers.iter().all(|(earlier, _)| *earlier != name) =>
                {
                    headers.push((name, value));
                }
                (Some(name), Some(_)) => {
                    node.fault(format!("is given twice: {name} and this are one header"));
                    good = false;
                }
                _ => good = false,
            }
        }
        good.then_some(headers)
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut crate::document::book::Book) -> serde_json::Value {
        let mut schema = HeaderMap::schema(book);
        crate::document::book::set(
            &mut schema,
            "propertyNames",
            serde_json::json!({"pattern": names::TOKEN, "maxLength": names::MAX_NAME}),
        );
        schema
    }
}

fn header_name(name: &str, node: &Node<'_>) -> Option<Box<str>> {
    let lower = name.to_ascii_lowercase();
    let fault = |message: &str| {
        node.fault(message);
        None
    };
    match lower.as_str() {
        _ if name.len() > names::MAX_NAME || !names::is_token(name) => fault(&format!(
            "the name must be one of a header, of at most {} bytes",
            names::MAX_NAME
        )),
        "content-type" => fault("is set by content_type"),
        "connection" | "keep-alive" | "proxy-connection" | "te" | "trailer"
        | "transfer-encoding" | "upgrade" | "content-length" => {
            fault("is Envoy's own to set: it says how the message is carried")
        }
        "retry-after" | "ratelimit" | "grpc-status" | "grpc-message" | PUSHBACK | RATE_LIMITED => {
            fault("is set by the filter itself")
        }
        _ if lower.starts_with("ratelimit-") || lower.starts_with("x-ratelimit-") => {
            fault("is set by the filter itself")
        }
        _ => Some(lower.into()),
    }
}

/// The value of a header: visible ASCII with inner spaces, so that nothing can end the header.
enum HeaderValue {}

impl Type for HeaderValue {
    type Out<'a> = &'a str;

    fn read<'a>(node: &Node<'a>) -> Option<&'a str> {
        let text = node.text()?;
        node.no_longer_than(text, MAX_VALUE)?;
        if text.bytes().all(|b| matches!(b, b' '..=b'~')) && text.trim() == text {
            return Some(text);
        }
        node.fault("must be visible ASCII characters, with spaces only between them");
        None
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        serde_json::json!({"type": "string", "pattern": "^[!-~]([ -~]*[!-~])?$", "maxLength": MAX_VALUE})
    }
}

impl Template {
    /// Whether it is JSON with any values of its placeholders.
    fn makes_json(&self) -> bool {
        // A name is not JSON outside of quotes. For numbers, only the shortest and the longest
        // values make a difference.
        [("a", 1, 0), ("a-1", 31_622_400, MAX_UNITS)].iter().all(|(policy, retry_after, quota)| {
            serde_json::from_str::<IgnoredAny>(&self.fill(policy, *retry_after, *quota)).is_ok()
        })
    }
}
