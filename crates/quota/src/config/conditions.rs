//! The section `match` of a policy.

use super::facts;
use super::reader::Node;
use crate::request::matching::{
    HeaderCondition, HostPattern, Matcher, PathPattern, ValuePattern, WholeRegex,
};
use crate::request::{host, path, percent};

/// Most entries of one list of conditions.
const MAX_CONDITIONS: usize = 64;
/// Longest text of a condition: expressions are compiled at every start of a worker.
const MAX_PATTERN: usize = 1024;

pub(super) fn parse(node: &Node<'_>) -> Option<Matcher> {
    let mut object = node.object()?;
    let methods = object.optional("methods", |n| n.some(MAX_CONDITIONS, method), Vec::new);
    let path = object.optional("path", |n| path(n).map(Some), || None);
    let hosts = object.optional("hosts", |n| n.some(MAX_CONDITIONS, host), Vec::new);
    let headers = object.optional("headers", |n| n.some(MAX_CONDITIONS, header), Vec::new);
    let routes = object.optional("routes", routes, Vec::new);
    object.finish();
    Some(Matcher { methods: methods?, path: path?, hosts: hosts?, headers: headers?, routes: routes? })
}

/// Methods of requests are compared in upper case: anything else is a slip.
fn method(node: &Node<'_>) -> Option<Box<str>> {
    let method = node.string()?;
    let allowed = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b"-_".contains(&b);
    if (1..=64).contains(&method.len()) && method.bytes().all(allowed) {
        return Some(method.into());
    }
    node.fault(format!("must be a method in upper case such as GET, is {method:?}"));
    None
}

fn path(node: &Node<'_>) -> Option<PathPattern> {
    let mut object = node.object()?;
    let found = object.one_of(&["exact", "prefix", "suffix", "regex"]);
    object.finish();
    match found? {
        ("exact", node) => {
            let text = absolute(&node)?;
            let path = path::normalize(text.as_bytes());
            Some(PathPattern::Exact(path::without_slash(&path).into()))
        }
        ("prefix", node) => Some(PathPattern::Prefix(path::normalize_prefix(absolute(&node)?).into())),
        ("suffix", node) => suffix(&node),
        (_, node) => {
            if node.value().as_str().is_some_and(|text| text.contains(';')) {
                node.warn(
                    "has a semicolon: paths are compared with and without parameters, so clients leave this part out as they like",
                );
            }
            regex(&node).map(PathPattern::Regex)
        }
    }
}

/// The beginning of a path; `*` is the one of `OPTIONS *`.
fn absolute<'a>(node: &Node<'a>) -> Option<&'a str> {
    let text = no_query(node)?;
    if !text.starts_with('/') && text != "*" {
        node.fault(format!("must begin with /, is {text:?}: no path matches otherwise"));
        return None;
    }
    Some(text)
}

fn suffix(node: &Node<'_>) -> Option<PathPattern> {
    let text = no_query(node)?;
    let suffix = path::normalize_suffix(text);
    if suffix.is_none() {
        node.fault(format!(
            "must be without segments . and .., is {text:?}: they are resolved before a path is matched"
        ));
    }
    suffix.map(|suffix| PathPattern::Suffix(suffix.into()))
}

fn no_query<'a>(node: &Node<'a>) -> Option<&'a str> {
    let text = pattern(node)?;
    if text.contains(['?', '#']) {
        node.fault(format!("must be without ? and #, is {text:?}: the query string is no part of the path"));
        return None;
    }
    if percent::decode(text.as_bytes()).contains(&b';') {
        node.fault(format!("must be without ;, is {text:?}: clients can leave out ; and what follows it"));
        return None;
    }
    Some(text)
}

fn regex(node: &Node<'_>) -> Option<WholeRegex> {
    let text = pattern(node)?;
    match WholeRegex::new(text) {
        Ok(regex) => Some(regex),
        Err(e) => {
            node.fault(format!("must be a regular expression, is {text:?}: {e}"));
            None
        }
    }
}

fn pattern<'a>(node: &Node<'a>) -> Option<&'a str> {
    let text = node.text()?;
    if text.len() > MAX_PATTERN {
        node.fault(format!("must be at most {MAX_PATTERN} bytes long"));
        return None;
    }
    Some(text)
}

fn header(node: &Node<'_>) -> Option<HeaderCondition> {
    let mut object = node.object()?;
    let name = object.required("name", facts::header_name);
    let found = object.one_of(&["exact", "prefix", "regex", "present"]);
    object.finish();
    let value = match found? {
        ("exact", node) => trimmed(&node, str::trim_matches).map(|text| ValuePattern::Exact(text.into())),
        ("prefix", node) => {
            trimmed(&node, str::trim_start_matches).map(|text| ValuePattern::Prefix(text.into()))
        }
        ("regex", node) => regex(&node).map(ValuePattern::Regex),
        (_, node) => {
            node.boolean().map(|there| if there { ValuePattern::Present } else { ValuePattern::Absent })
        }
    };
    Some(HeaderCondition { name: name?.into(), value: value? })
}

/// What values of headers are compared with: they come without the spaces and tabs around them.
fn trimmed<'a>(node: &Node<'a>, trim: impl for<'t> Fn(&'t str, [char; 2]) -> &'t str) -> Option<&'a str> {
    let text = pattern(node)?;
    if trim(text, [' ', '\t']).len() < text.len() {
        node.fault(format!("must be without the spaces around it, is {text:?}: values come without them"));
        return None;
    }
    Some(text)
}

fn routes(node: &Node<'_>) -> Option<Vec<Box<str>>> {
    let routes = node.some(MAX_CONDITIONS, pattern)?;
    Some(node.distinct(routes)?.into_iter().map(Box::from).collect())
}

/// A host, or `*.` and a host; brought into the form that hosts of requests are compared in.
fn host(node: &Node<'_>) -> Option<HostPattern> {
    let text = node.text()?;
    let (below, name) = match text.strip_prefix("*.") {
        Some(name) => (true, name),
        None => (false, text),
    };
    let normal = host::normalize(name.into());
    let bytes = |b: &u8| b.is_ascii_alphanumeric() || b"._-".contains(b);
    let bracketed = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
    let address = !below && bracketed.is_some_and(|n| n.parse::<std::net::Ipv6Addr>().is_ok());
    let domain = !normal.is_empty() && !normal.starts_with(b".") && name.bytes().all(|b| bytes(&b));
    match String::from_utf8(normal) {
        Ok(host) if below && domain => Some(HostPattern::Below(format!(".{host}").into())),
        Ok(host) if address || domain => Some(HostPattern::Exact(host.into())),
        _ => {
            node.fault(format!(
                "must be a host without port such as api.example.com or *.example.com, is {text:?}"
            ));
            None
        }
    }
}
