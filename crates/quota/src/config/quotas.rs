//! The fields of a policy that say who is granted how much.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::facts;
use super::object::Object;
use super::overrides::{self, Whose};
use super::reader::Node;
use crate::protocol::MAX_UNITS;
use crate::request::allowance::{Overrides, QuotaFrom, Quotas, Tiers};
use crate::request::fact::Kind;

/// Most tiers of a policy.
const MAX_TIERS: usize = 256;
/// Longest name of a tier, in bytes.
const MAX_NAME: usize = 128;

/// Reads them from the fields of a policy.
pub(super) fn parse(object: &mut Object<'_>, whose: Whose<'_>) -> Option<Quotas> {
    let from = object.optional("quota_from", |n| quota_from(n).map(Some), || None);
    let tiers = object.optional("tiers", |n| tiers(n).map(Some), || None);
    let overrides = object.optional("overrides", |n| overrides::parse(n, whose), Overrides::default);
    Some(Quotas { overrides: overrides?, from: from?, tiers: tiers? })
}

fn quota_from(node: &Node<'_>) -> Option<QuotaFrom> {
    let mut object = node.object()?;
    let max = object.optional("max", |n| n.whole(0..=MAX_UNITS), || MAX_UNITS);
    let fact = facts::verified_of(&mut object, Kind::Number);
    object.finish();
    let fact = fact?;
    if fact.kind == Kind::Boolean {
        node.fault("must be a number or a string of digits: true and false are no quota");
        return None;
    }
    Some(QuotaFrom { fact, max: max? })
}

fn tiers(node: &Node<'_>) -> Option<Tiers> {
    let mut object = node.object()?;
    let fact = object.required("source", |n| facts::verified(n, Kind::Text));
    let quotas = object.required("quotas", |n| quotas(n, fact.as_ref().map(|fact| fact.kind)));
    object.finish();
    Some(Tiers { fact: fact?, quotas: quotas? })
}

/// Quotas by the names of tiers, which a value of `kind` tells.
fn quotas(node: &Node<'_>, kind: Option<Kind>) -> Option<BTreeMap<Box<[u8]>, u64>> {
    let members = node.members(MAX_TIERS)?;
    if members.is_empty() {
        node.fault("must not be empty");
        return None;
    }
    let read = |(name, node): (&str, Node<'_>)| {
        let quota = node.whole(0..=MAX_UNITS);
        if name.is_empty() || name.len() > MAX_NAME {
            node.fault(format!("the name of a tier must be 1 to {MAX_NAME} bytes long"));
            return None;
        }
        if let Some(why) = kind.and_then(|kind| misnamed(name, kind)) {
            node.fault(format!("no tier can be named so: {why}"));
            return None;
        }
        Some((Box::from(name.as_bytes()), quota?))
    };
    // Every tier is read, also behind one that is at fault.
    let quotas: Vec<_> = members.into_iter().map(read).collect();
    quotas.into_iter().collect()
}

/// Why no value of `kind` is written as `name`, if so.
fn misnamed(name: &str, kind: Kind) -> Option<String> {
    match kind {
        Kind::Text if name.bytes().any(|b| b.is_ascii_control()) => {
            Some("a string with control characters is a missing one".to_owned())
        }
        Kind::Boolean if !["true", "false"].contains(&name) => Some("the source is true or false".to_owned()),
        Kind::Number => match number(name) {
            Some(text) if text == name => None,
            Some(text) => Some(format!("the source is a number, and this one is written {text}")),
            None => Some("the source is a number".to_owned()),
        },
        Kind::Text | Kind::Boolean => None,
    }
}

/// The number that `name` writes, in the spelling of the source.
fn number(name: &str) -> Option<String> {
    let raw = name.parse::<f64>().ok()?.to_le_bytes();
    String::from_utf8(Kind::Number.text(&Rc::from(raw))?.to_vec()).ok()
}
