//! The section `policies`.

use std::rc::Rc;

use serde_json::Value;

use super::identities::Identities;
use super::policy::Policy;
use super::reader::{Names, Node};
use super::store::StoreConfig;
use super::{
    MAX_PARTITION_BY, MAX_POLICIES, conditions, counting, duration, quotas, store, suggest, warnings,
};
use crate::protocol::{MAX_UNITS, Mode};
use crate::request::key::{self, Digester};
use crate::request::matching::Matcher;
use crate::request::partition::{BuiltIn, Entry, OnMissing, Partition};

/// What policies refer to.
#[derive(Clone, Copy)]
pub(super) struct Context<'c, 'a> {
    /// `None` where it is at fault.
    pub(super) domain: Option<&'a str>,
    /// `None` where the section as a whole is at fault.
    pub(super) identities: Option<&'c Identities<'a>>,
    /// `None` where it is at fault.
    pub(super) store: Option<&'c StoreConfig>,
    /// `None` where what it is made of is at fault.
    pub(super) digester: Option<&'c Digester>,
}

pub(super) const NAME: Names = Names {
    allowed: |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-',
    pattern: "[a-z0-9-]{1,64}",
};

const NO_PARTITION: &str =
    "is required: list who is counted, such as [caller]. [] is one counter for everybody";

pub(super) fn parse(node: &Node<'_>, context: Context<'_, '_>) -> Option<Vec<Policy>> {
    let mut names = Vec::new();
    node.each(MAX_POLICIES, |n| policy(n, context, &mut names))
}

fn policy<'a>(node: &Node<'a>, context: Context<'_, '_>, names: &mut Vec<&'a str>) -> Option<Policy> {
    let mut object = node.object()?;
    let name = object.required("name", |n| unique_name(n, names));
    let matcher = object.optional("match", conditions::parse, Matcher::default);
    let entries = object.required_or("partition_by", NO_PARTITION, |n| partition_by(n, context.identities));
    let on_missing = object.optional("on_missing", |n| on_missing(n).map(Some), || None);
    let quota = object.required("quota", |n| n.whole(0..=MAX_UNITS));
    let window = object.required("window", duration::window);
    let mode = object.optional("mode", mode, || Mode::Enforce);
    let on_failure = object.optional("on_failure", |n| store::on_failure(n).map(Some), || None);
    let stagger = object.optional("stagger", Node::boolean, || false);
    let counting = counting::parse(&mut object);
    if let (Some(entries), Some(None)) = (&entries, on_missing) {
        warnings::skipped(&object, entries);
    }
    if let (Some(entries), Some(Some(OnMissing::Deny | OnMissing::Shared))) = (&entries, on_missing) {
        warnings::nobody_missing(&object, entries);
    }
    let partition = partition(name, entries, on_missing, context);
    let quotas = quotas::parse(&mut object, partition.as_ref().zip(context.digester));
    if let (Some(quota), Some(quotas), Some(counting)) = (quota, &quotas, &counting) {
        warnings::quotas(&object, quota, quotas, counting);
    }
    if let (Some(window), Some(counting)) = (window, &counting) {
        warnings::lease(&object, window, counting);
    }
    object.finish();

    let (name, matcher, partition, counting) = (name?, matcher?, partition?, counting?);
    let (quota, window, quotas, mode, stagger) = (quota?, window?, quotas?, mode?, stagger?);
    let on_failure = on_failure?.unwrap_or(context.store?.on_failure);
    Some(Policy {
        name: name.into(),
        quota,
        dialed_quota: None,
        is_overridden: false,
        window,
        stagger,
        mode,
        on_failure,
        count: counting.count,
        count_denied: counting.count_denied,
        precision: counting.precision,
        matcher: Rc::new(matcher),
        partition: Rc::new(partition),
        quotas: Rc::new(quotas),
        cost: Rc::new(counting.cost),
    })
}

fn partition(
    name: Option<&str>,
    entries: Option<Vec<Entry>>,
    on_missing: Option<Option<OnMissing>>,
    context: Context<'_, '_>,
) -> Option<Partition> {
    let on_missing = on_missing?.unwrap_or(OnMissing::Skip);
    Some(Partition::new(key::head(context.domain?, name?), entries?, on_missing))
}

fn on_missing(node: &Node<'_>) -> Option<OnMissing> {
    let words = [("skip", OnMissing::Skip), ("deny", OnMissing::Deny), ("shared", OnMissing::Shared)];
    node.choice(&words)
}

fn unique_name<'a>(node: &Node<'a>, names: &mut Vec<&'a str>) -> Option<&'a str> {
    let name = node.name(NAME)?;
    if names.contains(&name) {
        node.fault(format!("must be unique, another policy is named {name:?} as well"));
        return None;
    }
    names.push(name);
    Some(name)
}

fn partition_by(node: &Node<'_>, identities: Option<&Identities<'_>>) -> Option<Vec<Entry>> {
    let entries = node.each(MAX_PARTITION_BY, |n| {
        let name = n.string()?;
        Some((name, entry(n, name, identities)?))
    })?;
    node.distinct(entries.iter().map(|(name, _)| *name).collect())?;
    Some(entries.into_iter().map(|(_, entry)| entry).collect())
}

fn entry(node: &Node<'_>, name: &str, identities: Option<&Identities<'_>>) -> Option<Entry> {
    if let Some(fact) = BuiltIn::ALL.into_iter().find(|fact| fact.name() == name) {
        return Some(Entry::BuiltIn(fact));
    }
    // Where identities are at fault themselves, that has been said.
    if let Some(identity) = identities?.get(name) {
        return identity.clone().map(Entry::Identity);
    }
    let known: Vec<_> = identities?.keys().copied().chain(BuiltIn::ALL.map(BuiltIn::name)).collect();
    let hint = suggest::hint(name, &known);
    node.fault(format!("no identity is named {name:?}{hint}"));
    None
}

/// `off` is also the `false` that YAML makes of it.
fn mode(node: &Node<'_>) -> Option<Mode> {
    if *node.value() == Value::Bool(false) {
        return Some(Mode::Off);
    }
    node.choice(&[("enforce", Mode::Enforce), ("shadow", Mode::Shadow), ("off", Mode::Off)])
}
