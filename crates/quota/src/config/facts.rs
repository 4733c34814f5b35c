//! Reads where a value comes from: verified ones (`jwt`, `metadata`, `peer`), and names of headers, cookies and
//! query parameters, which anybody can write.

use super::names::{MAX_HEADER, is_token};
use super::object::Object;
use super::reader::Node;
use crate::request::fact::{Fact, Kind, Lookup};
use crate::request::{JWT_AUTHN, PeerName, key};

/// Longest name of a cookie, parameter, claim or member, in bytes: they are parts of keys, as headers' are.
const MAX_NAME: usize = MAX_HEADER;
/// Deepest member of metadata.
const MAX_DEPTH: usize = 16;
/// Most claims of one identity.
const MAX_CLAIMS: usize = 8;
const DEFAULT_PAYLOAD: &str = "jwt_payload";

/// A value that no client can write: exactly one of `{jwt: ..}`, `{metadata: ..}` and `{peer: ..}`.
pub(super) fn verified(node: &Node<'_>, default: Kind) -> Option<Fact> {
    let mut object = node.object()?;
    let fact = verified_of(&mut object, default);
    object.finish();
    fact
}

/// The same where the object has other fields as well.
pub(super) fn verified_of(object: &mut Object<'_>, default: Kind) -> Option<Fact> {
    let unverified = ["header", "cookie", "query", "client_ip"];
    if object.refuse(&unverified, "must be jwt, metadata or peer: anybody can write this one") {
        return None;
    }
    match object.one_of(&["jwt", "metadata", "peer"])? {
        ("jwt", node) => claim(&node, default),
        ("metadata", node) => metadata(&node, default),
        (_, node) => peer(&node),
    }
}

/// `jwt` with one claim.
fn claim(node: &Node<'_>, default: Kind) -> Option<Fact> {
    let mut object = node.object()?;
    let payload = object.optional("payload", member, || DEFAULT_PAYLOAD);
    let path = object.required("claim", claim_path);
    let kind = object.optional("type", kind, || default);
    object.finish();
    Some(claim_fact(payload?, &path?, kind?))
}

/// `jwt` with one claim or several.
pub(super) fn claims(node: &Node<'_>, default: Kind) -> Option<Vec<Fact>> {
    let mut object = node.object()?;
    let payload = object.optional("payload", member, || DEFAULT_PAYLOAD);
    let paths = match object.one_of(&["claim", "claims"]) {
        Some(("claim", node)) => claim_path(&node).map(|path| vec![path]),
        Some((_, node)) => node.some(MAX_CLAIMS, claim_path).and_then(|paths| node.distinct(paths)),
        None => None,
    };
    let kind = object.optional("type", kind, || default);
    object.finish();
    let (payload, paths, kind) = (payload?, paths?, kind?);
    Some(paths.iter().map(|path| claim_fact(payload, path, kind)).collect())
}

fn claim_fact(payload: &str, path: &[&str], kind: Kind) -> Fact {
    let mut source = "jwt".to_owned();
    if payload != DEFAULT_PAYLOAD {
        source.push('@');
        key::push_name(&mut source, payload);
    }
    Fact {
        label: key::path_label(&source, path.iter().copied()),
        lookup: Lookup::Metadata {
            filter: JWT_AUTHN.into(),
            path: std::iter::once(payload).chain(path.iter().copied()).map(Box::from).collect(),
        },
        kind,
    }
}

pub(super) fn metadata(node: &Node<'_>, default: Kind) -> Option<Fact> {
    let mut object = node.object()?;
    let filter = object.required("filter", member);
    let path = object.required("path", |n| n.some(MAX_DEPTH, member));
    let kind = object.optional("type", kind, || default);
    object.finish();
    let (filter, path) = (filter?, path?);
    Some(Fact {
        label: key::path_label("metadata", std::iter::once(filter).chain(path.iter().copied())),
        lookup: Lookup::Metadata { filter: filter.into(), path: path.into_iter().map(Box::from).collect() },
        kind: kind?,
    })
}

pub(super) fn peer(node: &Node<'_>) -> Option<Fact> {
    let mut object = node.object()?;
    let found = object.one_of(&["san", "subject"]);
    object.finish();
    let (name, label) = match found? {
        ("san", node) => {
            let uri = (PeerName::UriSan, "uri");
            node.choice(&[("uri", uri), ("dns", (PeerName::DnsSan, "dns"))])?
        }
        (_, node) => {
            if !node.boolean()? {
                node.fault("must be true: leave the whole source out instead");
                return None;
            }
            (PeerName::Subject, "subject")
        }
    };
    Some(Fact { label: key::label("peer", label), lookup: Lookup::Peer(name), kind: Kind::Text })
}

fn kind(node: &Node<'_>) -> Option<Kind> {
    node.choice(&[("string", Kind::Text), ("number", Kind::Number), ("boolean", Kind::Boolean)])
}

/// A claim: nested ones with dots between them, or as a list of names, which may hold dots.
fn claim_path<'a>(node: &Node<'a>) -> Option<Vec<&'a str>> {
    if node.value().is_array() {
        return node.some(MAX_DEPTH, member);
    }
    let claim = member(node)?;
    if claim.split('.').any(str::is_empty) {
        node.fault(format!(
            "must be a claim, or nested ones with one dot between them, is {claim:?}: write a list of names \
             where a name itself holds dots"
        ));
        return None;
    }
    Some(claim.split('.').collect())
}

/// The name of a member of metadata. The host's separator of names is NUL.
fn member<'a>(node: &Node<'a>) -> Option<&'a str> {
    let name = short(node)?;
    if name.bytes().any(|b| b.is_ascii_control()) {
        node.fault(format!("must be without control characters, is {name:?}"));
        return None;
    }
    Some(name)
}

/// The name of a header, in lower case.
pub(super) fn header_name(node: &Node<'_>) -> Option<String> {
    let name = node.string()?.to_ascii_lowercase();
    let instead = match name.as_str() {
        ":path" => "match has path for it, and partition_by the name path",
        ":method" => "match has methods for it, and partition_by the name method",
        ":authority" | "host" => "match has hosts for it, and partition_by the name host",
        name if is_short_token(name) => return Some(name.to_owned()),
        _ => "letters, digits and any of !#$%&'*+-.^_`|~",
    };
    node.fault(format!("must be a header name of at most {MAX_NAME} bytes, is {name:?}: {instead}"));
    None
}

/// The name of a cookie, in which case matters.
pub(super) fn cookie_name<'a>(node: &Node<'a>) -> Option<&'a str> {
    let name = node.string()?;
    if is_short_token(name) {
        return Some(name);
    }
    node.fault(format!(
        "must be a cookie name of at most {MAX_NAME} bytes, is {name:?}: letters, digits and any of \
         !#$%&'*+-.^_`|~"
    ));
    None
}

/// The name of a query parameter, as it is once it is decoded.
pub(super) fn parameter_name<'a>(node: &Node<'a>) -> Option<&'a str> {
    short(node)
}

fn is_short_token(name: &str) -> bool {
    name.len() <= MAX_NAME && is_token(name)
}

fn short<'a>(node: &Node<'a>) -> Option<&'a str> {
    let text = node.text()?;
    if text.len() > MAX_NAME {
        node.fault(format!("must be at most {MAX_NAME} bytes long"));
        return None;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::reader::Collector;
    use super::*;

    fn read(value: &Value, default: Kind) -> Option<Fact> {
        verified(&Node::root(value, &Collector::default()), default)
    }

    #[test]
    fn a_verified_value_comes_from_a_token_a_filter_or_a_certificate() {
        for (source, label, kind) in [
            (json!({"jwt": {"claim": "plan"}}), "jwt.plan", Kind::Number),
            (json!({"jwt": {"claim": "plan", "type": "string"}}), "jwt.plan", Kind::Text),
            (
                json!({"metadata": {"filter": "f", "path": ["a"], "type": "boolean"}}),
                "metadata.f.a",
                Kind::Boolean,
            ),
            (json!({"peer": {"san": "dns"}}), "peer.dns", Kind::Text),
        ] {
            let fact = read(&source, Kind::Number).unwrap();
            assert_eq!((&*fact.label, fact.kind), (label, kind), "{source}");
        }
    }

    #[test]
    fn what_anybody_can_write_is_not_verified() {
        for source in [
            json!({"header": {"name": "x-plan"}}),
            json!({"cookie": {"name": "plan"}}),
            json!({"query": {"name": "plan"}}),
            json!({"client_ip": {}}),
            json!({"jwt": {"claim": "plan"}, "header": {"name": "x-plan"}}),
            json!({"jwt": {"claims": ["plan"]}}),
            json!({}),
        ] {
            assert!(read(&source, Kind::Text).is_none(), "{source}");
        }
        // Beside other fields, these are read by whoever knows them.
        let (source, faults) = (json!({"peer": {"san": "uri"}, "max": 1}), Collector::default());
        let mut object = Node::root(&source, &faults).object().unwrap();
        assert_eq!(&*verified_of(&mut object, Kind::Number).unwrap().label, "peer.uri");
        assert_eq!(object.required("max", |n| n.whole(0..=1)), Some(1));
    }
}
