//! The section `response.denied`: what a client gets whose quota is used up.
//!
//! Everything of it is optional. A body without a `content_type` is `application/json` where it is JSON once its
//! placeholders are filled in, else `text/plain; charset=utf-8`. A `content_type` without a body must be one of
//! JSON, for the built-in body is.

use serde::de::IgnoredAny;

use super::names;
use super::reader::Node;
use super::template::Template;
use crate::protocol::MAX_UNITS;
use crate::response::{PUSHBACK, RATE_LIMITED};

/// Longest body, in bytes before placeholders are filled in.
const MAX_BODY: usize = 64 * 1024;
/// Most further headers.
const MAX_HEADERS: usize = 32;
/// Longest value of a header, in bytes before placeholders are filled in.
const MAX_VALUE: usize = 1024;

const PLAIN_TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

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

impl Default for Denied {
    fn default() -> Self {
        Self { status: 429, content_type: None, body: None, headers: Vec::new() }
    }
}

pub(super) fn parse(node: &Node<'_>) -> Option<Denied> {
    let mut object = node.object()?;
    let status = object.optional("status", |n| u16::try_from(n.whole(400..=599)?).ok(), || 429);
    let content_type = object.optional("content_type", |n| content_type(n).map(Some), || None);
    let body = object.optional("body", |n| body(n).map(Some), || None);
    let headers = object.optional("headers", headers, Vec::new);
    object.finish();

    let (content_type, body) = (content_type?, body?);
    let content_type = match (content_type, &body) {
        (Some((given, _)), Some((body, at))) if is_json(given) && !body.makes_json() => {
            at.fault(format!("must be JSON once its placeholders are filled in, as content_type is {given}"));
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
        status: status?,
        content_type: content_type.map(Box::from),
        body: body.map(|(body, _)| body),
        headers: headers?,
    })
}

/// `type/subtype`, and perhaps parameters.
fn content_type<'a>(node: &Node<'a>) -> Option<(&'a str, Node<'a>)> {
    let text = header_value(node)?;
    let (kind, subtype) = essence(text).split_once('/').unwrap_or_default();
    if names::is_token(kind) && names::is_token(subtype) {
        return Some((text, node.clone()));
    }
    node.fault(format!(
        "must be a media type such as application/json or text/html; charset=utf-8, is {text:?}"
    ));
    None
}

/// Without the parameters.
fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim_end()
}

fn is_json(content_type: &str) -> bool {
    let essence = essence(content_type).to_ascii_lowercase();
    essence == JSON || essence.ends_with("+json")
}

fn body<'a>(node: &Node<'a>) -> Option<(Template, Node<'a>)> {
    let text = node.string()?;
    node.no_longer_than(text, MAX_BODY)?;
    Some((Template::read(text, node), node.clone()))
}

fn headers(node: &Node<'_>) -> Option<Vec<(Box<str>, Template)>> {
    let mut headers: Vec<(Box<str>, Template)> = Vec::new();
    let mut good = true;
    for (name, node) in node.members(MAX_HEADERS)? {
        let name = header_name(name, &node);
        let value = header_value(&node).map(|text| Template::read(text, &node));
        match (name, value) {
            (Some(name), Some(value)) if headers.iter().all(|(earlier, _)| *earlier != name) => {
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

fn header_name(name: &str, node: &Node<'_>) -> Option<Box<str>> {
    let lower = name.to_ascii_lowercase();
    let fault = |message: &str| {
        node.fault(message);
        None
    };
    match lower.as_str() {
        _ if name.len() > names::MAX_HEADER || !names::is_token(name) => {
            fault(&format!("the name must be one of a header, of at most {} bytes", names::MAX_HEADER))
        }
        "content-type" => fault("is set by content_type"),
        "connection" | "keep-alive" | "proxy-connection" | "te" | "trailer" | "transfer-encoding"
        | "upgrade" | "content-length" => fault("is Envoy's own to set: it says how the message is carried"),
        "retry-after" | "ratelimit" | "grpc-status" | "grpc-message" | PUSHBACK | RATE_LIMITED => {
            fault("is set by the filter itself")
        }
        _ if lower.starts_with("ratelimit-") || lower.starts_with("x-ratelimit-") => {
            fault("is set by the filter itself")
        }
        _ => Some(lower.into()),
    }
}

/// Visible ASCII and inner spaces: nothing that could end the header.
fn header_value<'a>(node: &Node<'a>) -> Option<&'a str> {
    let text = node.text()?;
    node.no_longer_than(text, MAX_VALUE)?;
    if text.bytes().all(|b| matches!(b, b' '..=b'~')) && text.trim() == text {
        return Some(text);
    }
    node.fault("must be visible ASCII characters, with spaces only between them");
    None
}

impl Template {
    /// Whether it is JSON whatever is filled in.
    fn makes_json(&self) -> bool {
        // A name is no JSON outside of quotes. Of numbers, the shortest and the longest make a difference.
        [("a", 1, 0), ("a-1", 31_622_400, MAX_UNITS)].iter().all(|(policy, retry_after, quota)| {
            serde_json::from_str::<IgnoredAny>(&self.fill(policy, *retry_after, *quota)).is_ok()
        })
    }
}
