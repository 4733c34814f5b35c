//! What happens to counters, dials and runtime overrides when a policy document replaces another.
//!
//! The core says which counters go on: see [`Config::continuity`]. Here are the words for it, and
//! what changes outside of policies. No text shows a value that may be secret.

mod text;

use std::collections::BTreeSet;

use quotagate_protocol::{Mode, Window};
use quotagate_quota::config::{Config, CounterPart, Policy};
use quotagate_quota::request::continuity::Continuity;
use serde::Serialize;
use serde_json::{Map, Value};

/// A policy document.
#[derive(Clone, Debug)]
pub struct DocumentVersion {
    /// What it means.
    pub config: Config,
    /// What it says.
    pub value: Value,
}

/// Two lists of documents, matched by domain.
#[derive(Debug, Default, Serialize)]
pub struct DocumentComparison {
    /// Whether some counters start from zero, or may.
    pub loses_counts: bool,
    /// The documents in both, and what changes.
    pub documents: Vec<DocumentDiff>,
    /// The domains that are only in the new list.
    pub added: Vec<String>,
    /// The domains that are only in the old list.
    pub removed: Vec<String>,
    /// The domains with several documents in a list, so that nothing says which replaces which.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ambiguous: Vec<String>,
}

/// What changes when a document replaces another one.
#[derive(Debug, Serialize)]
pub struct DocumentDiff {
    /// The new domain.
    pub domain: String,
    /// The old domain, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_domain: Option<String>,
    /// All policies, those of the new document first.
    pub policies: Vec<PolicyDiff>,
    /// What changes outside of policies.
    pub settings: Vec<SettingDiff>,
}

/// What changes of a policy.
#[derive(Debug, Serialize)]
pub struct PolicyDiff {
    /// Its name in the new document; in the old one, if it is removed.
    pub policy: String,
    /// Its name in the old document, if it was renamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_name: Option<String>,
    /// What happens to its counts.
    pub change: PolicyChange,
    /// What differs of that which tells counters apart.
    pub differs: Vec<CounterPart>,
    /// The quota, if it changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaPair>,
    /// If old and new counters both grant while both documents run: what each of them grants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts_twice: Option<QuotaPair>,
    /// What operators set that reaches nobody under the new document.
    pub orphans: Vec<Orphan>,
    /// The fields that differ.
    pub fields: Vec<FieldDiff>,
    #[serde(skip)]
    old_units: UnitKind,
    #[serde(skip)]
    new_units: UnitKind,
}

/// What the units of a policy are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnitKind {
    Windowed,
    Slot,
}

/// What happens to the counts of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyChange {
    /// Nothing: the policy is the same.
    Unchanged,
    /// They go on.
    KeepsCount,
    /// Some go on, and others start from zero.
    KeepsPart,
    /// They start from zero.
    StartsFromZero,
    /// The policy is new.
    Added,
    /// The policy is gone.
    Removed,
}

/// The quotas of a policy in both documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QuotaPair {
    /// In the old document.
    pub old: u64,
    /// In the new document.
    pub new: u64,
}

/// What operators set that reaches nobody any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Orphan {
    /// The dial of the policy.
    Dial,
    /// All runtime overrides of the policy.
    Overrides,
    /// The runtime overrides of partitions that the new document writes in another way.
    SomeOverrides,
}

/// A field of a policy that differs.
#[derive(Debug, Serialize)]
pub struct FieldDiff {
    /// Its name.
    pub field: String,
    /// The old value. Absent if the field is, or if one of the values may be secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    /// The new value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
}

/// A difference outside of policies.
#[derive(Debug, Serialize)]
pub struct SettingDiff {
    /// Its path, such as `identities.caller`.
    pub path: String,
    /// What it does to counters, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<&'static str>,
}

const NEW_DIGESTS: &str = "secret values, and values longer than 128 bytes, get new keys: their counters start from zero, and their \
                           runtime overrides reach nobody";
const NEW_STORE: &str = "if this leads to another Redis or prefix, all counters start from zero, and dials and runtime overrides stay \
                         behind";

/// Compares documents, matched by domain. Two that are left over alone change their domain. A
/// document that a list repeats, such as for two listeners, is one document.
pub fn compare(old: &[DocumentVersion], new: &[DocumentVersion]) -> DocumentComparison {
    let (mut left, new) = (distinct(old), distinct(new));
    let order = new.clone();
    let mut pairs = Vec::new();
    // The same document in both lists is a pair, whatever else has its domain.
    let (same, changed): (Vec<_>, Vec<_>) =
        new.into_iter().partition(|new| left.iter().any(|old| old.value == new.value));
    for new in same {
        let index = left.iter().position(|old| old.value == new.value);
        pairs.extend(index.map(|index| (left.remove(index), new)));
    }
    let mut ambiguous = BTreeSet::new();
    let mut unmatched = Vec::new();
    for new in &changed {
        let is_of = |of: &&&DocumentVersion| of.config.domain == new.config.domain;
        let others = changed.iter().filter(is_of).count();
        let paired = pairs.iter().any(|(_, other)| other.config.domain == new.config.domain);
        match left.iter().filter(is_of).count() {
            0 if !paired => unmatched.push(*new),
            1 if others == 1 => {
                let index = left.iter().position(|old| old.config.domain == new.config.domain);
                pairs.extend(index.map(|index| (left.remove(index), *new)));
            }
            _ => {
                ambiguous.insert(new.config.domain.to_string());
            }
        }
    }
    left.retain(|old| {
        let is_known = pairs.iter().any(|(_, new)| new.config.domain == old.config.domain);
        if is_known {
            ambiguous.insert(old.config.domain.to_string());
        }
        !is_known && !ambiguous.contains(&*old.config.domain)
    });
    if let ([old], [new]) = (left.as_slice(), unmatched.as_slice()) {
        pairs.push((old, new));
        left.clear();
        unmatched.clear();
    }
    pairs.sort_by_key(|(_, new)| order.iter().position(|other| std::ptr::eq(*other, *new)));
    let domains = |documents: Vec<&DocumentVersion>| {
        documents.into_iter().map(|document| document.config.domain.to_string()).collect()
    };
    let documents: Vec<_> =
        pairs.into_iter().map(|(old, new)| DocumentDiff::of(old, new)).collect();
    DocumentComparison {
        loses_counts: !ambiguous.is_empty() || documents.iter().any(DocumentDiff::loses_counts),
        documents,
        added: domains(unmatched),
        removed: domains(left),
        ambiguous: ambiguous.into_iter().collect(),
    }
}

/// The documents without repetitions.
fn distinct(documents: &[DocumentVersion]) -> Vec<&DocumentVersion> {
    let mut distinct: Vec<&DocumentVersion> = Vec::new();
    for document in documents {
        if distinct.iter().all(|known| known.value != document.value) {
            distinct.push(document);
        }
    }
    distinct
}

impl DocumentDiff {
    /// What changes when `new` replaces `old`.
    pub fn of(old: &DocumentVersion, new: &DocumentVersion) -> Self {
        let mut gone: Vec<(&Policy, &Value)> = policies(old).collect();
        let mut policies_of = Vec::new();
        let mut added = Vec::new();
        for (policy, value) in policies(new) {
            match gone.iter().position(|(old, _)| old.name == policy.name) {
                Some(index) => {
                    let before = gone.remove(index);
                    policies_of.push(policy_diff(old, before, new, (policy, value)));
                }
                None => added.push((policy, value)),
            }
        }
        for (policy, value) in added {
            let renamed =
                gone.iter().position(|(_, before)| fields(before, value, "name").is_empty());
            policies_of.push(match renamed {
                Some(index) => policy_diff(old, gone.remove(index), new, (policy, value)),
                None => PolicyDiff::only(policy, PolicyChange::Added),
            });
        }
        policies_of
            .extend(gone.iter().map(|(policy, _)| PolicyDiff::only(policy, PolicyChange::Removed)));
        let (old_domain, domain) = (&old.config.domain, &new.config.domain);
        Self {
            domain: domain.to_string(),
            old_domain: (old_domain != domain).then(|| old_domain.to_string()),
            policies: policies_of,
            settings: settings(old, new),
        }
    }

    /// Whether some counters start from zero, or may.
    pub fn loses_counts(&self) -> bool {
        use PolicyChange::{KeepsPart, StartsFromZero};
        self.policies.iter().any(|policy| matches!(policy.change, KeepsPart | StartsFromZero))
            || self.may_rename()
            || self.settings.iter().any(|setting| setting.effect.is_some())
    }

    /// Whether a policy that is gone may be a new one, with another name and other fields.
    pub(super) fn may_rename(&self) -> bool {
        let has = |change| self.policies.iter().any(|policy| policy.change == change);
        has(PolicyChange::Removed) && has(PolicyChange::Added)
    }
}

impl PolicyDiff {
    /// A policy that is in one document only.
    fn only(policy: &Policy, change: PolicyChange) -> Self {
        let is_removed = change == PolicyChange::Removed;
        Self {
            policy: policy.name.to_string(),
            old_name: None,
            change,
            differs: Vec::new(),
            quota: None,
            counts_twice: None,
            orphans: if is_removed { vec![Orphan::Dial, Orphan::Overrides] } else { Vec::new() },
            fields: Vec::new(),
            old_units: UnitKind::of(policy),
            new_units: UnitKind::of(policy),
        }
    }
}

impl UnitKind {
    fn of(policy: &Policy) -> Self {
        if policy.window == Window::InFlight { Self::Slot } else { Self::Windowed }
    }
}

/// The policies of a document, and what it says of each.
fn policies(document: &DocumentVersion) -> impl Iterator<Item = (&Policy, &Value)> {
    let values = document.value.get("policies").and_then(Value::as_array);
    document.config.policies.iter().zip(values.into_iter().flatten())
}

fn policy_diff(
    old: &DocumentVersion,
    (before, before_value): (&Policy, &Value),
    new: &DocumentVersion,
    (policy, value): (&Policy, &Value),
) -> PolicyDiff {
    let continuity = old.config.continuity(before, &new.config, policy);
    let fields = fields(before_value, value, "");
    let change = match continuity.counts {
        Continuity::Nothing => PolicyChange::StartsFromZero,
        Continuity::Part => PolicyChange::KeepsPart,
        Continuity::Whole if fields.is_empty() && continuity.differs.is_empty() => {
            PolicyChange::Unchanged
        }
        Continuity::Whole => PolicyChange::KeepsCount,
    };
    let pair = QuotaPair { old: before.quota, new: policy.quota };
    let both_count = before.mode != Mode::Off && policy.mode != Mode::Off;
    let moved = [CounterPart::Domain, CounterPart::Prefix, CounterPart::Name];
    let is_moved = continuity.differs.iter().any(|part| moved.contains(part));
    let forms = |policy: &Policy| -> Vec<String> {
        policy.counts_by().into_iter().flat_map(|entry| entry.forms).collect()
    };
    let new_forms = forms(policy);
    let overrides = match continuity.keys {
        Continuity::Nothing => Some(Orphan::Overrides),
        Continuity::Part => Some(Orphan::SomeOverrides),
        // A source that is left out took its partitions along.
        Continuity::Whole => forms(before)
            .iter()
            .any(|form| !new_forms.contains(form))
            .then_some(Orphan::SomeOverrides),
    };
    PolicyDiff {
        policy: policy.name.to_string(),
        old_name: (before.name != policy.name).then(|| before.name.to_string()),
        change,
        differs: continuity.differs,
        quota: (pair.old != pair.new).then_some(pair),
        counts_twice: (continuity.counts != Continuity::Whole && both_count).then_some(pair),
        orphans: is_moved.then_some(Orphan::Dial).into_iter().chain(overrides).collect(),
        fields,
        old_units: UnitKind::of(before),
        new_units: UnitKind::of(policy),
    }
}

/// The members that differ, but for the one named `except`.
fn fields(old: &Value, new: &Value, except: &str) -> Vec<FieldDiff> {
    let (old, new) = (members(old), members(new));
    let differing = names(old, new).filter(|name| *name != except && differ(old, new, name));
    let diff = |name: &str| {
        let value = |of: Option<&Map<String, Value>>| of?.get(name).cloned();
        let (old, new) = (value(old), value(new));
        let shown = [&old, &new].into_iter().flatten().all(is_shown);
        let (old, new) = if shown { (old, new) } else { (None, None) };
        FieldDiff { field: name.to_owned(), old, new }
    };
    differing.map(diff).collect()
}

/// What differs outside of policies: members of the document, and of its sections.
fn settings(old: &DocumentVersion, new: &DocumentVersion) -> Vec<SettingDiff> {
    let new_digests = !old.config.same_digests(&new.config);
    // A prefix that is written out may be the one that the other document has by default.
    let moves_keys = old.config.store.reach.moves_keys(&new.config.store.reach);
    let (old, new) = (members(&old.value), members(&new.value));
    let mut paths = Vec::new();
    for name in names(old, new).filter(|name| !["domain", "policies"].contains(name)) {
        let section = |of: Option<&'_ Map<String, Value>>| of?.get(name)?.as_object().cloned();
        match (section(old), section(new)) {
            (Some(old), Some(new)) => {
                let (old, new) = (Some(&old), Some(&new));
                let inner = names(old, new).filter(|inner| differ(old, new, inner));
                paths.extend(inner.map(|inner| format!("{name}.{inner}")));
            }
            _ if differ(old, new, name) => paths.push(name.to_owned()),
            _ => {}
        }
    }
    let effect = |path: &str| match path {
        "digest_key" => new_digests.then_some(NEW_DIGESTS),
        "store.cluster" | "store.redis" => Some(NEW_STORE),
        "store.prefix" => moves_keys.then_some(NEW_STORE),
        _ => None,
    };
    paths.into_iter().map(|path| SettingDiff { effect: effect(&path), path }).collect()
}

fn members(value: &Value) -> Option<&Map<String, Value>> {
    value.as_object()
}

/// The names of all members of both, each once.
fn names<'v>(
    old: Option<&'v Map<String, Value>>,
    new: Option<&'v Map<String, Value>>,
) -> impl Iterator<Item = &'v str> {
    let keys = |of: Option<&'v Map<String, Value>>| of.into_iter().flat_map(Map::keys);
    let added = move |name: &&String| old.is_none_or(|old| !old.contains_key(*name));
    keys(old).chain(keys(new).filter(added)).map(String::as_str)
}

/// Whether a member differs. The order of its own members counts: that of tiers matters.
fn differ(old: Option<&Map<String, Value>>, new: Option<&Map<String, Value>>, name: &str) -> bool {
    let text = |of: Option<&Map<String, Value>>| Some(of?.get(name)?.to_string());
    text(old) != text(new)
}

/// Whether a value of a policy's field can hold no secret: a condition or an override may.
fn is_shown(value: &Value) -> bool {
    let is_scalar = |value: &Value| !value.is_object() && !value.is_array();
    match value {
        Value::Array(elements) => elements.iter().all(is_scalar),
        Value::Object(members) => members.values().all(is_scalar),
        _ => true,
    }
}

#[cfg(test)]
mod tests;
