//! Checks a tree of rules, and makes the rules of its domain.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use quotagate_protocol::{MAX_NAME, is_of_name};
use sha2::{Digest, Sha256};

use super::domain::{
    EntryCounts, EntryKind, Level, Pattern, Rule, RuleDomain, RuleLimit, RuleNode,
};
use super::faults::{BoundedFaults, RuleFault, shown};
use super::tree::{DescriptorRule, DomainRules, RateLimitRule};
use crate::messages::Unit;

/// Most levels of descriptors.
pub const MAX_DEPTH: usize = 64;
/// Most bytes of the paths of all rules of a domain together, as metrics and `/rlconfig` have them.
/// A path repeats the keys and values of all levels above.
const MAX_PATHS: usize = 64 << 20;

/// The rules of a domain that is written in these trees, in this order.
///
/// # Errors
/// The faults of each tree.
pub fn compile(trees: &[&DomainRules]) -> Result<RuleDomain, Vec<BoundedFaults<RuleFault>>> {
    let name = trees.first().map_or("", |tree| tree.domain.as_str());
    let mut compiling = Compiling::default();
    let mut faults = Vec::new();
    let mut root = Level::default();
    for tree in trees {
        if tree.domain.is_empty() {
            compiling.fault("domain", "must not be empty: name the domain of these rules");
        }
        let at = "descriptors";
        let parent = Parent {
            depth: 1,
            at,
            policy: "",
            metric: name,
            partition_by: &[],
            names_values: false,
        };
        compiling.level(&tree.descriptors, &parent, &mut root);
        faults.push(std::mem::take(&mut compiling.faults));
    }
    if faults.iter().all(|of_tree| of_tree.named.is_empty()) {
        Ok(RuleDomain { name: name.into(), rules: compiling.rules, root })
    } else {
        Err(faults)
    }
}

#[derive(Default)]
struct Compiling {
    rules: Vec<Rule>,
    policies: HashSet<Arc<str>>,
    /// The last number of each path that several rules have.
    numbers: HashMap<Box<str>, usize>,
    /// Those of the current tree.
    faults: BoundedFaults<RuleFault>,
    /// The bytes of all paths so far.
    path_bytes: usize,
}

/// What stands above a level.
struct Parent<'p> {
    depth: usize,
    at: &'p str,
    policy: &'p str,
    metric: &'p str,
    partition_by: &'p [Arc<str>],
    names_values: bool,
}

impl Compiling {
    fn fault(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.faults.add(|| RuleFault { path: path.into(), text: text.into() });
    }

    fn level(&mut self, descriptors: &[DescriptorRule], parent: &Parent<'_>, level: &mut Level) {
        let mut seen: HashMap<(&str, &str), usize> = HashMap::new();
        for (index, descriptor) in descriptors.iter().enumerate() {
            let at = format!("{}[{index}]", parent.at);
            let DescriptorRule { key, value, .. } = descriptor;
            if key.is_empty() {
                self.fault(format!("{at}.key"), "must not be empty: name the key of the entry");
                continue;
            }
            let earlier = seen.insert((key, value), index);
            if earlier.is_some() || level.has(key, value) {
                let key = shown(key);
                let what = if value.is_empty() {
                    format!("the key {key:?} without a value")
                } else {
                    format!("the key {key:?} with the value {:?}", shown(value))
                };
                let text =
                    format!("{what} occurs twice at this level: merge the two, or remove one");
                self.fault(at, text);
                continue;
            }
            self.descriptor(descriptor, &at, parent, level);
        }
    }

    fn descriptor(
        &mut self,
        descriptor: &DescriptorRule,
        at: &str,
        parent: &Parent<'_>,
        level: &mut Level,
    ) {
        let DescriptorRule { key, value, share_threshold, .. } = descriptor;
        let pattern = Pattern::of(key, value);
        if *share_threshold && pattern.is_none() {
            let text = "needs a `*` in value, such as `value: files/*`: without one there is only \
                        one value, and nothing to share";
            self.fault(format!("{at}.share_threshold"), text);
        }
        if parent.depth >= MAX_DEPTH && !descriptor.descriptors.is_empty() {
            let text = format!("is nested deeper than {MAX_DEPTH} levels: use fewer entries");
            self.fault(format!("{at}.descriptors"), text);
            return;
        }
        let before = self.path_bytes;
        self.path_bytes += parent.metric.len() + key.len() + value.len() + 2;
        if self.path_bytes > MAX_PATHS {
            if before <= MAX_PATHS {
                let text = format!(
                    "the paths of the rules up to this one have more than {MAX_PATHS} bytes: shorten \
                     keys and values, above all at the outer levels"
                );
                self.fault(at, text);
            }
            return;
        }
        let joined = |separator: &str| match value.as_str() {
            "" => key.clone(),
            value => format!("{key}{separator}{value}"),
        };
        let slash = if parent.policy.is_empty() { "" } else { "/" };
        let policy = format!("{}{slash}{}", parent.policy, escaped(&joined("=")));
        // A long path is a digest of all levels above, so that no two paths share a name.
        let policy = &*shortened(&policy, MAX_NAME);
        let metric = format!("{}.{}", parent.metric, joined("_"));
        let counts = match (&pattern, share_threshold) {
            // Like the original, it shares what is behind the key of the request.
            (Some(Pattern::Joined(_)), true) => EntryCounts::Key,
            (Some(_), true) => EntryCounts::Nothing,
            (None, _) if !value.is_empty() => EntryCounts::Nothing,
            _ => EntryCounts::Value,
        };
        let mut partition_by = parent.partition_by.to_vec();
        if counts != EntryCounts::Nothing {
            partition_by.push(key.as_str().into());
        }
        let inner = format!("{at}.descriptors");
        let below = Parent {
            depth: parent.depth + 1,
            at: &inner,
            policy,
            metric: &metric,
            partition_by: &partition_by,
            names_values: parent.names_values || descriptor.value_to_metric,
        };
        let limit = descriptor.rate_limit.as_ref();
        let rule = limit.and_then(|limit| self.rule(descriptor, limit, at, &below));
        let entry = EntryKind {
            counts,
            value_to_metric: descriptor.value_to_metric && (value.is_empty() || pattern.is_some()),
            written: (!value.is_empty()).then(|| value.as_str().into()),
            shared: *share_threshold,
        };
        let mut node = RuleNode { rule, next: Level::default(), entry };
        self.level(&descriptor.descriptors, &below, &mut node.next);
        level.insert(key, value, pattern, node);
    }

    fn rule(
        &mut self,
        descriptor: &DescriptorRule,
        written: &RateLimitRule,
        at: &str,
        path: &Parent<'_>,
    ) -> Option<usize> {
        let Parent { policy, metric, partition_by, names_values, .. } = *path;
        let at = format!("{at}.rate_limit");
        let limit = match (written.unit, written.unlimited) {
            (None | Some(Unit::Unknown), true) => RuleLimit::Unlimited,
            (Some(_), true) => {
                let text = "stands beside `unlimited`: remove one of the two";
                self.fault(format!("{at}.unit"), text);
                return None;
            }
            (None | Some(Unit::Unknown), false) => {
                let text = "is required: second, minute, hour, day, week, month or year, or \
                            `unlimited: true` instead of a limit";
                self.fault(format!("{at}.unit"), text);
                return None;
            }
            (Some(unit), false) => RuleLimit::Hits(written.requests_per_unit, unit),
        };
        for (index, name) in written.replaces.iter().enumerate() {
            let at = format!("{at}.replaces[{index}].name");
            if name.is_empty() {
                self.fault(at, "must not be empty: name the rule that does not count");
            } else if *name == written.name {
                self.fault(at, "names this rule itself: name another one, or remove it");
            }
        }
        let name = if written.name.is_empty() { policy } else { &escaped(&written.name) };
        let policy = self.unique(name, policy);
        self.rules.push(Rule {
            policy,
            path: metric.into(),
            partition_by: partition_by.to_vec(),
            name: written.name.as_str().into(),
            limit,
            shadow_mode: descriptor.shadow_mode,
            quota_mode: descriptor.quota_mode,
            detailed_metric: descriptor.detailed_metric,
            names_values: names_values || descriptor.detailed_metric,
            replaces: written.replaces.iter().map(|name| name.as_str().into()).collect(),
            metadata: descriptor.metadata.clone(),
        });
        Some(self.rules.len() - 1)
    }

    /// The name of a policy. A second rule of a name gets its path, and if that is taken, too, a
    /// number.
    fn unique(&mut self, name: &str, path: &str) -> Arc<str> {
        let base = shortened(path, MAX_NAME - 8);
        // The search goes on after the last number of this path.
        let last = self.numbers.get(&*base).copied().unwrap_or(1);
        let numbered = (last + 1..).map(|number| (format!("{base}~{number}"), number));
        let names = [shortened(name, MAX_NAME), shortened(path, MAX_NAME)];
        let mut names = names.into_iter().map(|name| (name.into_owned(), last)).chain(numbered);
        // The numbers never end.
        let free = names.find(|(name, _)| !self.policies.contains(name.as_str()));
        let (free, number) = free.unwrap_or_default();
        if number > last {
            self.numbers.insert(base.clone().into(), number);
        }
        let name: Arc<str> = free.into();
        self.policies.insert(Arc::clone(&name));
        name
    }
}

impl Level {
    fn has(&self, key: &str, value: &str) -> bool {
        match Pattern::of(key, value) {
            Some(_) => false,
            None if value.is_empty() => self.any.contains_key(key),
            None => self.exact.get(key).is_some_and(|values| values.contains_key(value)),
        }
    }

    fn insert(&mut self, key: &str, value: &str, pattern: Option<Pattern>, node: RuleNode) {
        match pattern {
            Some(pattern) => self.wildcards.push((pattern, node)),
            None if value.is_empty() => {
                self.any.insert(key.into(), node);
            }
            None => {
                self.exact.entry(key.into()).or_default().insert(value.into(), node);
            }
        }
    }
}

/// The name of a domain as counters and commands have it. Bytes that it cannot have are `%XX`, and
/// so is `%`; a long name ends with a digest.
pub fn written_name(domain: &str) -> String {
    shortened(&escaped(domain), MAX_NAME).into_owned()
}

/// A text whose bytes may all occur in the name of a policy.
fn escaped(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    for byte in text.bytes() {
        // `~` stands in names that the service makes.
        if is_of_name(byte) && !b"%~".contains(&byte) {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    name
}

/// A name in ASCII of at most `most` bytes. The end of a longer one is `~` and the first 32
/// hexadecimal digits of its SHA-256, which tell it apart from all others.
fn shortened(name: &str, most: usize) -> Cow<'_, str> {
    if name.len() <= most {
        return name.into();
    }
    let digits: String =
        Sha256::digest(name).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let kept = name.get(..most.saturating_sub(digits.len() + 1)).unwrap_or_default();
    format!("{kept}~{digits}").into()
}
