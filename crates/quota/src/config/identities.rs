//! The section `identities`: names, and for each the sources in their order.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::reader::{Names, Node};
use super::{MAX_IDENTITIES, MAX_SOURCES, facts};
use crate::request::fact::{Fact, Kind, Lookup};
use crate::request::identity::{Identity, Source};
use crate::request::key::{self, Secrecy};
use crate::request::partition::BuiltIn;

/// By name; `None` where one is named, but at fault.
pub(super) type Identities<'a> = BTreeMap<&'a str, Option<Rc<Identity>>>;

pub(super) const NAME: Names =
    Names { allowed: |b| b.is_ascii_alphanumeric() || b"._-".contains(&b), pattern: "[A-Za-z0-9._-]{1,64}" };

const DEFAULT_IPV6_PREFIX: u8 = 64;

pub(super) fn parse<'a>(node: &Node<'a>) -> Option<Identities<'a>> {
    let mut identities = Identities::new();
    for (name, node) in node.members(MAX_IDENTITIES)? {
        if !NAME.accept(name) {
            node.fault(format!("the name must match {}", NAME.pattern));
        }
        if BuiltIn::ALL.iter().any(|fact| fact.name() == name) {
            node.fault(format!("{name} is taken: partition_by means the request's own {name} by it"));
        }
        let sources = node.some(MAX_SOURCES, source);
        identities.insert(name, sources.map(|sources| Rc::new(Identity { name: name.into(), sources })));
    }
    Some(identities)
}

fn source(node: &Node<'_>) -> Option<Source> {
    let mut object = node.object()?;
    let names = ["jwt", "header", "cookie", "query", "peer", "metadata", "client_ip"];
    let found = object.one_of(&names);
    object.finish();
    let plain = |fact| Source::One(fact, Secrecy::Plain);
    match found? {
        ("jwt", node) => jwt(&node),
        ("header", node) => named(&node, facts::header_name, |name| Fact {
            label: key::label("header", &name),
            lookup: Lookup::Header(name.into()),
            kind: Kind::Text,
        }),
        ("cookie", node) => named(&node, facts::cookie_name, |name| Fact {
            label: key::label("cookie", name),
            lookup: Lookup::Cookie(name.into()),
            kind: Kind::Text,
        }),
        ("query", node) => named(&node, facts::parameter_name, |name| Fact {
            label: key::label("query", name),
            lookup: Lookup::Query(name.into()),
            kind: Kind::Text,
        }),
        ("peer", node) => facts::peer(&node).map(plain),
        ("metadata", node) => facts::metadata(&node, Kind::Text).map(plain),
        (_, node) => client_ip(&node),
    }
}

fn jwt(node: &Node<'_>) -> Option<Source> {
    let mut claims = facts::claims(node, Kind::Text)?;
    match (claims.pop(), claims.is_empty()) {
        (Some(claim), true) => Some(Source::One(claim, Secrecy::Plain)),
        (last, _) => {
            claims.extend(last);
            Some(Source::All(claims))
        }
    }
}

/// A source that has a name and may be secret.
fn named<'a, N>(
    node: &Node<'a>,
    name: impl FnOnce(&Node<'a>) -> Option<N>,
    fact: impl FnOnce(N) -> Fact,
) -> Option<Source> {
    let mut object = node.object()?;
    let name = object.required("name", name);
    let secret = object.optional("secret", Node::boolean, || false);
    object.finish();
    Some(Source::One(fact(name?), if secret? { Secrecy::Secret } else { Secrecy::Plain }))
}

fn client_ip(node: &Node<'_>) -> Option<Source> {
    let mut object = node.object()?;
    let prefix =
        object.optional("ipv6_prefix", |n| u8::try_from(n.whole(1..=128)?).ok(), || DEFAULT_IPV6_PREFIX);
    object.finish();
    prefix.map(Source::ClientIp)
}
