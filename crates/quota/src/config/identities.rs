//! The section `identities`: names, and for each the sources in their order.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::reader::{Names, Node};
use super::{MAX_IDENTITIES, MAX_SOURCES};
use crate::request::identity::{Fact, Identity, Lookup, Source};
use crate::request::key::{self, Secrecy};

/// By name; `None` where one is named, but at fault.
pub(super) type Identities<'a> = BTreeMap<&'a str, Option<Rc<Identity>>>;

/// What partitions consist of besides identities, and therefore no name of one.
pub(super) const BUILT_IN: [&str; 4] = ["method", "host", "path", "route"];

pub(super) const NAME: Names =
    Names { allowed: |b| b.is_ascii_alphanumeric() || b"._-".contains(&b), pattern: "[A-Za-z0-9._-]{1,64}" };

/// Header names are longer than names of ours, but not without end: they are part of keys.
const MAX_HEADER_NAME: usize = 128;
const MAX_CLAIM: usize = 128;
const MAX_CLAIMS: usize = 8;
const DEFAULT_PAYLOAD: &str = "jwt_payload";
const DEFAULT_IPV6_PREFIX: u8 = 64;

pub(super) fn parse<'a>(node: &Node<'a>) -> Option<Identities<'a>> {
    let mut identities = Identities::new();
    for (name, node) in node.members(MAX_IDENTITIES)? {
        if !NAME.accept(name) {
            node.fault(format!("the name must match {}", NAME.pattern));
        }
        if BUILT_IN.contains(&name) {
            node.fault(format!("{name} is taken: partition_by means the request's own {name} by it"));
        }
        let sources = node.some(MAX_SOURCES, source);
        identities.insert(name, sources.map(|sources| Rc::new(Identity { sources })));
    }
    Some(identities)
}

fn source(node: &Node<'_>) -> Option<Source> {
    let mut object = node.object()?;
    let found = object.one_of(&["header", "client_ip", "jwt"], &["cookie", "query", "peer", "metadata"]);
    object.finish();
    match found? {
        ("header", node) => header(&node),
        ("client_ip", node) => client_ip(&node),
        (_, node) => jwt(&node),
    }
}

fn header(node: &Node<'_>) -> Option<Source> {
    let mut object = node.object()?;
    let name = object.required("name", |n| {
        let name = n.string()?;
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if (1..=MAX_HEADER_NAME).contains(&name.len()) && name.bytes().all(token) {
            return Some(name.to_ascii_lowercase());
        }
        n.fault(format!("must be a header name of at most {MAX_HEADER_NAME} bytes, is {name:?}"));
        None
    });
    let secret = object.optional("secret", Node::boolean, || false);
    object.finish();
    let name = name?;
    let fact = Fact { label: key::label(&format!("header.{name}")), lookup: Lookup::Header(name.into()) };
    Some(Source::Header(fact, if secret? { Secrecy::Secret } else { Secrecy::Plain }))
}

fn client_ip(node: &Node<'_>) -> Option<Source> {
    let mut object = node.object()?;
    let prefix =
        object.optional("ipv6_prefix", |n| u8::try_from(n.whole(1..=128)?).ok(), || DEFAULT_IPV6_PREFIX);
    object.finish();
    prefix.map(Source::ClientIp)
}

fn jwt(node: &Node<'_>) -> Option<Source> {
    let mut object = node.object()?;
    let payload = object.optional("payload", Node::text, || DEFAULT_PAYLOAD);
    let claims = match object.one_of(&["claim", "claims"], &[]) {
        Some(("claim", node)) => claim(&node).map(|claim| vec![claim]),
        Some((_, node)) => node.some(MAX_CLAIMS, claim).and_then(|claims| node.distinct(claims)),
        None => None,
    };
    object.finish();
    let payload = payload?;
    let fact = |claim: &str| Fact {
        label: key::label(&format!("jwt.{claim}")),
        lookup: Lookup::Claim { payload: payload.into(), path: claim.split('.').map(Box::from).collect() },
    };
    Some(Source::Jwt(claims?.into_iter().map(fact).collect()))
}

/// The name of a claim; dots lead into nested ones.
fn claim<'a>(node: &Node<'a>) -> Option<&'a str> {
    let claim = node.text()?;
    if claim.len() > MAX_CLAIM {
        node.fault(format!("must be at most {MAX_CLAIM} bytes long"));
        return None;
    }
    if claim.split('.').any(str::is_empty) {
        node.fault(format!("must be a claim, or nested ones with one dot between them, is {claim:?}"));
        return None;
    }
    Some(claim)
}
