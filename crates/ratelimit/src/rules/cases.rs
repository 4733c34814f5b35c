//! Which rules descriptors of a form may have, before there is a request.

use std::collections::HashMap;

use super::domain::{EntryCounts, Level, Pattern, RuleDomain, RuleNode};
use super::wildcard::Wildcard;
use crate::messages::DescriptorEntry;

/// An entry of a descriptor, as far as it is known before there is a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EntryForm {
    /// Its key.
    pub key: String,
    /// Its value; `None` if the request decides it.
    pub value: Option<String>,
}

/// The rules that descriptors of a form may have.
#[derive(Debug, Default)]
pub struct RuleCases<'r> {
    /// In the order of the levels. At most one of them holds for a request.
    pub cases: Vec<RuleCase<'r>>,
    /// Rules that a descriptor may have by a pattern over key and value, as a `*` in a key makes
    /// it. Whether they come before those in `cases` is not known.
    pub under_key_patterns: Vec<usize>,
}

/// A rule that a descriptor has if its values are as `entries` say.
#[derive(Clone, Debug)]
pub struct RuleCase<'r> {
    /// The index of the rule in [`RuleDomain::rules`].
    pub rule: usize,
    /// One for each entry of the form.
    pub entries: Vec<EntryCase<'r>>,
}

/// What one entry of a descriptor must be for a rule.
#[derive(Clone, Debug)]
pub struct EntryCase<'r> {
    /// What its value must be.
    pub value: ValueCase<'r>,
    /// Whether its value tells the counters of the rule apart.
    pub is_counted: bool,
}

/// What a value must be.
#[derive(Clone, Debug)]
pub enum ValueCase<'r> {
    /// The form says it.
    Known,
    /// This text.
    Is(&'r str),
    /// A text that matches this pattern with a `*`, and is none of the others.
    Like(&'r str, OtherValues<'r>),
    /// A text that is none of these.
    Other(OtherValues<'r>),
}

/// The values for which other rules of the same level come first.
#[derive(Clone, Debug)]
pub struct OtherValues<'r> {
    level: &'r Level,
    key: &'r str,
    /// Wildcards at lower indexes come first.
    wildcards: usize,
}

impl RuleDomain {
    /// The rules that descriptors of this form may have.
    ///
    /// ```
    /// use quotagate_ratelimit::rules::{EntryForm, RuleFile, SharedDomains, ValueCase, read_files};
    ///
    /// let text = "
    /// domain: shop
    /// descriptors:
    /// - {key: user, rate_limit: {unit: day, requests_per_unit: 5}}
    /// - {key: user, value: root, rate_limit: {unlimited: true}}
    /// ";
    /// let file = RuleFile { name: "shop.yaml".to_owned(), text: text.into() };
    /// let domains = read_files(&[file], SharedDomains::Refuse).unwrap();
    /// let form = EntryForm { key: "user".to_owned(), value: None };
    /// let cases = domains["shop"].cases(&[form]).cases;
    /// assert!(matches!(cases[0].entries[0].value, ValueCase::Is("root")));
    /// let ValueCase::Other(others) = &cases[1].entries[0].value else { panic!() };
    /// assert_eq!(others.texts(), ["root"]);
    /// ```
    pub fn cases(&self, form: &[EntryForm]) -> RuleCases<'_> {
        let mut found = RuleCases::default();
        self.root.cases(form, &mut Vec::new(), &mut found);
        found
    }
}

impl Level {
    fn cases<'r>(
        &'r self,
        form: &[EntryForm],
        entries: &mut Vec<EntryCase<'r>>,
        found: &mut RuleCases<'r>,
    ) {
        let Some((first, rest)) = form.split_first() else { return };
        for (value, node) in self.nodes(first, rest, found) {
            entries.push(EntryCase { value, is_counted: node.entry.counts == EntryCounts::Value });
            node.cases(rest, entries, found);
            entries.pop();
        }
    }

    /// The nodes that an entry may have, with `rest` behind it.
    fn nodes<'r>(
        &'r self,
        EntryForm { key, value }: &EntryForm,
        rest: &[EntryForm],
        found: &mut RuleCases<'r>,
    ) -> Vec<(ValueCase<'r>, &'r RuleNode)> {
        if let Some(value) = value {
            let entry = DescriptorEntry { key: key.clone(), value: value.clone() };
            return self.node(&entry).map(|node| (ValueCase::Known, node)).into_iter().collect();
        }
        let mut nodes = Vec::new();
        let exact = self.exact.get_key_value(key.as_str());
        for (text, node) in exact.map(|(_, values)| sorted(values)).unwrap_or_default() {
            nodes.push((ValueCase::Is(text), node));
        }
        for (index, (pattern, node)) in self.wildcards.iter().enumerate() {
            match pattern {
                Pattern::Value(own, _) if **own == **key => {
                    let others = OtherValues { level: self, key: own, wildcards: index };
                    let text = node.entry.written.as_deref().unwrap_or_default();
                    nodes.push((ValueCase::Like(text, others), node));
                }
                Pattern::Value(..) => {}
                Pattern::Joined(wildcard) if wildcard.may_begin_with(&format!("{key}_")) => {
                    let mut below = RuleCases::default();
                    node.cases(rest, &mut Vec::new(), &mut below);
                    found.under_key_patterns.extend(below.cases.iter().map(|case| case.rule));
                    found.under_key_patterns.extend(below.under_key_patterns);
                }
                Pattern::Joined(_) => {}
            }
        }
        if let Some((own, node)) = self.any.get_key_value(key.as_str()) {
            let others = OtherValues { level: self, key: own, wildcards: self.wildcards.len() };
            nodes.push((ValueCase::Other(others), node));
        }
        nodes
    }
}

impl RuleNode {
    /// Adds its rule, or with `rest` those below it.
    fn cases<'r>(
        &'r self,
        rest: &[EntryForm],
        entries: &mut Vec<EntryCase<'r>>,
        found: &mut RuleCases<'r>,
    ) {
        match self.rule {
            Some(rule) if rest.is_empty() => {
                found.cases.push(RuleCase { rule, entries: entries.clone() });
            }
            _ => self.next.cases(rest, entries, found),
        }
    }
}

impl<'r> OtherValues<'r> {
    /// A bound on the number of texts and patterns, which costs less than to collect them.
    pub fn most(&self) -> usize {
        self.level.exact.get(self.key).map_or(0, HashMap::len) + self.wildcards
    }

    /// The texts that have a rule of their own, sorted.
    pub fn texts(&self) -> Vec<&'r str> {
        let values = self.level.exact.get(self.key).map(sorted).unwrap_or_default();
        values.into_iter().map(|(text, _)| text).collect()
    }

    /// The patterns that come first.
    pub fn patterns(&self) -> Vec<&'r str> {
        let wildcards = self.level.wildcards.iter().take(self.wildcards);
        let of_key = wildcards.filter_map(|(pattern, node)| match pattern {
            Pattern::Value(own, _) if **own == *self.key => node.entry.written.as_deref(),
            Pattern::Value(..) | Pattern::Joined(_) => None,
        });
        of_key.collect()
    }
}

/// Whether a text matches a pattern, in which a `*` stands for any text.
pub fn is_like(text: &str, pattern: &str) -> bool {
    Wildcard::of(pattern).is_some_and(|pattern| pattern.matches(text))
}

fn sorted(values: &HashMap<Box<str>, RuleNode>) -> Vec<(&str, &RuleNode)> {
    let mut values: Vec<_> = values.iter().map(|(text, node)| (&**text, node)).collect();
    values.sort_by_key(|(text, _)| *text);
    values
}
