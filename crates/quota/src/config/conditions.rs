//! The section `match` of a policy.

use super::reader::Node;
use crate::request::matching::{self, HostPattern, Matcher, PathPattern};

/// Most entries of one list of conditions.
const MAX_CONDITIONS: usize = 64;
/// Longest expression: they are compiled at every start of a worker.
const MAX_REGEX: usize = 1024;

pub(super) fn parse(node: &Node<'_>) -> Option<Matcher> {
    let mut object = node.object()?;
    let methods = object.optional("methods", |n| n.some(MAX_CONDITIONS, method), Vec::new);
    let path = object.optional("path", |n| path(n).map(Some), || None);
    let hosts = object.optional("hosts", |n| n.some(MAX_CONDITIONS, host), Vec::new);
    object.later(&["headers", "routes"]);
    object.finish();
    Some(Matcher { methods: methods?, path: path?, hosts: hosts? })
}

/// Methods are case-sensitive, and those of HTTP are upper case: anything else is a slip.
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
    let found = object.one_of(&["exact", "prefix", "suffix", "regex"], &[]);
    object.finish();
    match found? {
        ("exact", node) => Some(PathPattern::Exact(absolute(&node)?.into())),
        ("prefix", node) => Some(PathPattern::Prefix(absolute(&node)?.into())),
        ("suffix", node) => Some(PathPattern::Suffix(no_query(&node)?.into())),
        (_, node) => regex(&node),
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

fn no_query<'a>(node: &Node<'a>) -> Option<&'a str> {
    let text = node.text()?;
    if text.contains(['?', '#']) {
        node.fault(format!("must be without ? and #, is {text:?}: the query string is no part of the path"));
        return None;
    }
    Some(text)
}

fn regex(node: &Node<'_>) -> Option<PathPattern> {
    let text = node.text()?;
    if text.len() > MAX_REGEX {
        node.fault(format!("must be at most {MAX_REGEX} bytes long"));
        return None;
    }
    match PathPattern::regex(text) {
        Ok(pattern) => Some(pattern),
        Err(e) => {
            node.fault(format!("must be a regular expression, is {text:?}: {e}"));
            None
        }
    }
}

/// A host, or `*.` and a host; brought into the form that hosts of requests are compared in.
fn host(node: &Node<'_>) -> Option<HostPattern> {
    let text = node.text()?;
    let (below, name) = match text.strip_prefix("*.") {
        Some(name) => (true, name),
        None => (false, text),
    };
    let normal = matching::normalize_host(name.into());
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
