//! Finds the rule of a descriptor.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::wildcard::Wildcard;
use crate::messages::{DescriptorEntry, Unit};

/// The rules of one domain.
#[derive(Debug, PartialEq)]
pub struct RuleDomain {
    pub(super) name: Arc<str>,
    pub(super) rules: Vec<Rule>,
    pub(super) root: Level,
}

/// A rule with a limit.
#[derive(Debug, PartialEq)]
pub struct Rule {
    /// Its policy's name, unique in the domain: `name`, or the path of its keys, such as
    /// `message_type=marketing/to_number`. Bytes that a policy's name cannot have are `%XX`.
    pub policy: Arc<str>,
    /// Its path in the original's metrics and in `/rlconfig`, such as
    /// `messaging.message_type_marketing.to_number`.
    pub path: Arc<str>,
    /// The keys of the entries whose values tell its counters apart.
    pub partition_by: Vec<Arc<str>>,
    /// The name that it is written with, or empty.
    pub name: Arc<str>,
    /// Its limit.
    pub limit: RuleLimit,
    /// Whether it only counts.
    pub shadow_mode: bool,
    /// Whether a request is refused only if all its quota limits are used up.
    pub quota_mode: bool,
    /// Whether metrics name all values of the request.
    pub detailed_metric: bool,
    /// Whether metrics name some of them.
    pub names_values: bool,
    /// The names of rules that do not count beside this one.
    pub replaces: Box<[Arc<str>]>,
    /// What the answer to an admitted request carries.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// The limit of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleLimit {
    /// None.
    Unlimited,
    /// So many hits in such a time.
    Hits(u32, Unit),
}

/// What one level of the rules distinguishes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Level {
    /// By key and value.
    pub(super) exact: HashMap<Box<str>, HashMap<Box<str>, RuleNode>>,
    /// In the order of the file.
    pub(super) wildcards: Vec<(Pattern, RuleNode)>,
    /// By key alone.
    pub(super) any: HashMap<Box<str>, RuleNode>,
}

/// A pattern over key and value. Like the original, it sees both as `key_value`, if the key has a
/// `*`, too.
#[derive(Debug, PartialEq)]
pub(super) enum Pattern {
    /// The key is plain.
    Value(Box<str>, Wildcard),
    /// The key has a `*`.
    Joined(Wildcard),
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct RuleNode {
    pub(super) rule: Option<usize>,
    pub(super) next: Level,
    /// How the entry counts, and what metrics call it.
    pub(super) entry: EntryKind,
}

/// What an entry of a rule says of the counter.
#[derive(Debug, Default, PartialEq)]
pub(super) struct EntryKind {
    /// What tells counters apart.
    pub(super) counts: EntryCounts,
    /// Whether metrics name the value.
    pub(super) value_to_metric: bool,
    /// What metrics name instead: the value or pattern that is written. `None`: nothing.
    pub(super) written: Option<Box<str>>,
    /// The pattern, if all that match it share a counter.
    pub(super) shared: bool,
}

/// What of an entry tells counters apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EntryCounts {
    /// Nothing: all that match share a counter.
    #[default]
    Nothing,
    /// The key, which has a `*` in the rule. All its values share a counter.
    Key,
    /// The key and the value.
    Value,
}

/// The rule of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleMatch<'d> {
    /// Its index in [`RuleDomain::rules`].
    pub rule: usize,
    /// The keys and values that tell the counters of the rule apart.
    pub partition: Vec<(&'d str, &'d str)>,
}

impl RuleDomain {
    /// The name of the domain.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// All rules, in the order of the file.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule of a descriptor with these entries: each entry walks one level down, and the rule
    /// stands at the last one. At a level, a key with its value goes before wildcards in the order
    /// of the file, and these before the key alone. Once one of them matches, the others are not
    /// tried.
    pub fn find<'d>(&self, entries: &'d [DescriptorEntry]) -> Option<RuleMatch<'d>> {
        let mut level = &self.root;
        let mut partition = Vec::new();
        let (last, outer) = entries.split_last()?;
        for entry in outer {
            let node = level.node(entry)?;
            partition.extend(node.entry.counted(entry));
            level = &node.next;
        }
        let node = level.node(last)?;
        partition.extend(node.entry.counted(last));
        Some(RuleMatch { rule: node.rule?, partition })
    }

    /// What the original's metrics call the requests of a rule with these entries.
    pub fn metric_path(&self, rule: &Rule, entries: &[DescriptorEntry]) -> String {
        let mut path = self.name.to_string();
        let mut level = Some(&self.root);
        let nodes = entries.iter().map(|entry| {
            let node = level.and_then(|level| level.node(entry));
            level = node.map(|node| &node.next);
            (entry, node)
        });
        let nodes: Vec<_> = nodes.collect();
        let is_shared = |node: &Option<&RuleNode>| node.is_some_and(|node| node.entry.shared);
        let names_empty = rule.detailed_metric && !nodes.iter().any(|(_, node)| is_shared(node));
        for (entry, node) in nodes {
            path.push('.');
            path.push_str(&entry.key);
            let kind = node.map(|node| &node.entry);
            let names_value = rule.detailed_metric || kind.is_some_and(|kind| kind.value_to_metric);
            let value = match kind {
                Some(kind) if kind.shared => kind.written.as_deref(),
                _ if names_value => Some(&*entry.value),
                Some(kind) => kind.written.as_deref(),
                None => None,
            };
            if let Some(value) = value.filter(|value| names_empty || !value.is_empty()) {
                path.push('_');
                path.push_str(value);
            }
        }
        path
    }
}

impl EntryKind {
    fn counted<'d>(&self, entry: &'d DescriptorEntry) -> Option<(&'d str, &'d str)> {
        match self.counts {
            EntryCounts::Nothing => None,
            EntryCounts::Key => Some((&entry.key, "*")),
            EntryCounts::Value => Some((&entry.key, &entry.value)),
        }
    }
}

impl Level {
    pub(super) fn node(&self, entry: &DescriptorEntry) -> Option<&RuleNode> {
        let DescriptorEntry { key, value } = entry;
        let exact = self.exact.get(key.as_str()).and_then(|values| values.get(value.as_str()));
        let wildcard = || {
            let mut wildcards = self.wildcards.iter();
            wildcards.find(|(pattern, _)| pattern.matches(key, value)).map(|(_, node)| node)
        };
        exact.or_else(wildcard).or_else(|| self.any.get(key.as_str()))
    }
}

impl Pattern {
    pub(super) fn of(key: &str, value: &str) -> Option<Self> {
        if key.contains('*') {
            let joined = if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") };
            return Wildcard::of(&joined).map(Self::Joined);
        }
        Wildcard::of(value).map(|value| Self::Value(key.into(), value))
    }

    fn matches(&self, key: &str, value: &str) -> bool {
        match self {
            Self::Value(own, wildcard) => **own == *key && wildcard.matches(value),
            Self::Joined(wildcard) => wildcard.matches(&format!("{key}_{value}")),
        }
    }
}

/// Which of these rules, matched in one request, are replaced by others of them.
pub fn replaced(rules: &[Option<&Rule>]) -> Vec<bool> {
    let replaces = rules.iter().flatten().flat_map(|rule| rule.replaces.iter());
    let names: HashSet<&str> = replaces.map(|name| &**name).collect();
    let is_replaced = |rule: &Option<&Rule>| {
        rule.is_some_and(|rule| rule.limit != RuleLimit::Unlimited && names.contains(&*rule.name))
    };
    rules.iter().map(is_replaced).collect()
}
