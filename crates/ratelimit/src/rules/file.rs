//! Reads rule files of envoyproxy/ratelimit.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Number, Value};

use super::compile::{MAX_DEPTH, compile};
use super::domain::RuleDomain;
use super::faults::{BoundedFaults, RuleFault, shown};
use super::tree::{DescriptorRule, DomainRules, RateLimitRule};
use super::yaml::{self, Node, Quotes, Tree};
use crate::messages::Unit;

/// The largest file, in bytes.
pub const MAX_FILE: usize = 16 << 20;

/// All fields of the format. One of them in another object than its own is ignored, as the original
/// does; a field of another name is a fault.
const FIELDS: [&str; 16] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

/// A rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFile {
    /// Its name, for faults.
    pub name: String,
    /// What it holds.
    pub text: Vec<u8>,
}

/// What is wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// The name of the file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The field and the remedy.
    pub fault: RuleFault,
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.fault)
    }
}

/// What happens to a domain that several files name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedDomains {
    /// It is a fault.
    #[default]
    Refuse,
    /// Its rules are those of all files, in the order of their names.
    Merge,
}

/// Reads the rules of all domains. The files are read in the order of their names.
///
/// ```
/// use quotagate_ratelimit::rules::{RuleFile, SharedDomains, read_files};
///
/// let text = "
/// domain: shop
/// descriptors:
/// - {key: user, rate_limit: {unit: day, requests_per_unit: 5}}
/// ";
/// let file = RuleFile { name: "shop.yaml".to_owned(), text: text.into() };
/// let domains = read_files(&[file], SharedDomains::Refuse).unwrap();
/// assert_eq!(&*domains["shop"].rules()[0].policy, "user");
/// ```
///
/// # Errors
/// All faults of all files. Then no rule is taken.
pub fn read_files(
    files: &[RuleFile],
    shared: SharedDomains,
) -> Result<BTreeMap<Arc<str>, Arc<RuleDomain>>, Vec<FileFault>> {
    let mut sorted: Vec<&RuleFile> = files.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let mut by_domain: BTreeMap<String, Vec<(&str, Document)>> = BTreeMap::new();
    for file in sorted {
        let document = Document::read(&file.text);
        let domain = document.rules.domain.clone();
        by_domain.entry(domain).or_default().push((&file.name, document));
    }
    let (mut domains, mut faults) = (BTreeMap::new(), Vec::new());
    for (name, mut documents) in by_domain {
        let trees: Vec<&DomainRules> =
            documents.iter().map(|(_, document)| &document.rules).collect();
        let compiled = compile(&trees);
        if shared == SharedDomains::Refuse && !name.is_empty() {
            let (name, first) = (shown(&name), documents.first().map_or("", |(file, _)| *file));
            for (_, document) in documents.iter_mut().skip(1) {
                let text = format!(
                    "the domain {name:?} is also in {first}: give it another name, or set \
                     MERGE_DOMAIN_CONFIG=true (of `quotagate check` and `convert`: --merge-domains) \
                     to merge the two"
                );
                let line = document.line_of("domain");
                document.fault(line, "domain".to_owned(), text);
            }
        }
        match compiled {
            Ok(domain) => {
                domains.insert(Arc::clone(domain.name()), Arc::new(domain));
            }
            Err(found) => {
                for ((_, document), of_tree) in documents.iter_mut().zip(found) {
                    document.add(of_tree);
                }
            }
        }
        faults.extend(documents.into_iter().flat_map(|(file, document)| document.all_faults(file)));
    }
    faults.sort_by(|a: &FileFault, b| a.file.cmp(&b.file));
    if faults.is_empty() { Ok(domains) } else { Err(faults) }
}

/// The rules of these files as they are written, without their faults, in the order of the names.
pub fn read_trees(files: &[RuleFile]) -> Vec<DomainRules> {
    let mut sorted: Vec<&RuleFile> = files.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    sorted.into_iter().map(|file| Document::read(&file.text).rules).collect()
}

/// Whether a file is meant as a rule file, right or wrong: it has `descriptors`, and no field of a
/// policy document.
pub fn is_rule_file(text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else { return false };
    match yaml::read(text) {
        Ok(Some(root)) => root.member("descriptors").is_some() && root.member("policies").is_none(),
        Ok(None) => false,
        Err(_) => text.lines().any(|line| line.starts_with("descriptors:")),
    }
}

/// What a file holds.
#[derive(Default)]
struct Document {
    rules: DomainRules,
    /// What the rules were read from, for the lines of faults.
    root: Option<Node>,
    /// Each with its line.
    faults: BoundedFaults<(usize, RuleFault)>,
    is_unreadable: bool,
}

impl Document {
    fn read(text: &[u8]) -> Self {
        let mut document = Self::default();
        match Self::parse(text) {
            Ok(Some(root)) => {
                document.names(&root, "");
                document.rules.domain = document.text(&root, "", "domain");
                document.rules.descriptors = document.descriptors(&root, "", 1);
                document.root = Some(root);
            }
            Ok(None) => document.unreadable(1, "is empty: write `domain` and `descriptors`"),
            Err((line, text)) => document.unreadable(line, text),
        }
        document
    }

    fn parse(text: &[u8]) -> Result<Option<Node>, (usize, String)> {
        if text.len() > MAX_FILE {
            let text = format!("is larger than {MAX_FILE} bytes: split it into several files");
            return Err((1, text));
        }
        let text = std::str::from_utf8(text).map_err(|error| {
            let before = text.get(..error.valid_up_to()).unwrap_or_default();
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            (line, "is not UTF-8: save it as UTF-8".to_owned())
        })?;
        yaml::read(text).map_err(|error| (error.line, format!("must be YAML: {}", error.text)))
    }

    fn unreadable(&mut self, line: usize, text: impl Into<String>) {
        self.is_unreadable = true;
        self.fault(line, "file".to_owned(), text);
    }

    fn fault(&mut self, line: usize, path: String, text: impl Into<String>) {
        self.faults.add(|| (line, RuleFault { path, text: text.into() }));
    }

    fn line_of(&self, path: &str) -> usize {
        self.root.as_ref().map_or(1, |root| root.line_of(path))
    }

    /// Adds the faults of its rules, unless they are known from what could not be read.
    fn add(&mut self, found: BoundedFaults<RuleFault>) {
        // Beyond the bound, which faults are known is not.
        if self.is_unreadable || self.faults.unnamed > 0 {
            return;
        }
        let known: HashSet<String> =
            self.faults.named.iter().map(|(_, fault)| fault.path.clone()).collect();
        for RuleFault { path, text } in found.named {
            if !known.contains(&path) {
                self.fault(self.line_of(&path), path, text);
            }
        }
        self.faults.unnamed += found.unnamed;
    }

    fn all_faults(self, file: &str) -> Vec<FileFault> {
        let further = self.faults.further().map(|fault| (self.line_of(&fault.path), fault));
        let all = self.faults.named.into_iter().chain(further);
        all.map(|(line, fault)| FileFault { file: file.to_owned(), line, fault }).collect()
    }

    /// Checks the names of all fields.
    fn names(&mut self, node: &Node, path: &str) {
        match &node.tree {
            Tree::Scalar(..) => {}
            Tree::List(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    match &element.tree {
                        Tree::Map(_) => self.names(element, &path),
                        Tree::Scalar(..) | Tree::List(_) => {
                            let text = "must be a mapping, such as `key: user`";
                            self.fault(element.line, path, text);
                        }
                    }
                }
            }
            Tree::Map(members) => {
                for (name, member) in members.iter() {
                    if !FIELDS.contains(&&**name) {
                        self.faults.add(|| {
                            let name = shown(name);
                            let text = format!("unknown field: {}", suggestion(&name, &FIELDS));
                            (member.line, RuleFault { path: joined(path, &name), text })
                        });
                        continue;
                    }
                    let path = joined(path, name);
                    if &**name != "metadata" {
                        self.names(member, &path);
                    }
                }
            }
        }
    }

    fn descriptors(&mut self, node: &Node, path: &str, depth: usize) -> Vec<DescriptorRule> {
        let path = joined(path, "descriptors");
        let Some(list) = node.member("descriptors") else { return Vec::new() };
        let elements = match &list.tree {
            Tree::List(elements) => elements,
            Tree::Scalar(text, Quotes::None) if is_null(text) => return Vec::new(),
            Tree::Scalar(..) | Tree::Map(_) => {
                self.fault(list.line, path, "must be a list: begin each entry with `- key:`");
                return Vec::new();
            }
        };
        if depth > MAX_DEPTH {
            let text = format!("is nested deeper than {MAX_DEPTH} levels: use fewer entries");
            self.fault(list.line, path, text);
            return Vec::new();
        }
        let element =
            |(index, element)| self.descriptor(element, &format!("{path}[{index}]"), depth);
        elements.iter().enumerate().map(element).collect()
    }

    fn descriptor(&mut self, node: &Node, path: &str, depth: usize) -> DescriptorRule {
        DescriptorRule {
            key: self.text(node, path, "key"),
            value: self.text(node, path, "value"),
            rate_limit: self.rate_limit(node, path),
            shadow_mode: self.boolean(node, path, "shadow_mode"),
            quota_mode: self.boolean(node, path, "quota_mode"),
            detailed_metric: self.boolean(node, path, "detailed_metric"),
            value_to_metric: self.boolean(node, path, "value_to_metric"),
            share_threshold: self.boolean(node, path, "share_threshold"),
            metadata: self.metadata(node, path),
            descriptors: self.descriptors(node, path, depth + 1),
        }
    }

    fn rate_limit(&mut self, node: &Node, path: &str) -> Option<RateLimitRule> {
        let path = joined(path, "rate_limit");
        let limit = node.member("rate_limit")?;
        match &limit.tree {
            Tree::Map(_) => {}
            Tree::Scalar(text, Quotes::None) if is_null(text) => return None,
            Tree::Scalar(..) | Tree::List(_) => {
                let text = "must be a mapping with `unit` and `requests_per_unit`";
                self.fault(limit.line, path, text);
                return None;
            }
        }
        let unlimited = self.boolean(limit, &path, "unlimited");
        let requests_per_unit = self.number(limit, &path);
        Some(RateLimitRule {
            requests_per_unit,
            unit: self.unit(limit, &path, unlimited),
            unlimited,
            name: self.text(limit, &path, "name"),
            replaces: self.replaces(limit, &path),
        })
    }

    fn unit(&mut self, node: &Node, path: &str, unlimited: bool) -> Option<Unit> {
        let name = self.text(node, path, "unit");
        if name.is_empty() {
            return None;
        }
        let unit = Unit::of(&name);
        if unit.is_none() && !unlimited {
            let names = Unit::ALL.map(|unit| unit.name().to_lowercase());
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let name = shown(&name);
            let text = format!("{name:?} is no unit: {}", suggestion(&name.to_lowercase(), &names));
            self.fault(node.line_of("unit"), joined(path, "unit"), text);
        }
        unit
    }

    fn number(&mut self, node: &Node, path: &str) -> u32 {
        let path = joined(path, "requests_per_unit");
        let Some(number) = node.member("requests_per_unit") else { return 0 };
        let value = match &number.tree {
            Tree::Scalar(text, Quotes::None) => whole_number(text),
            Tree::Scalar(_, Quotes::Some) | Tree::List(_) | Tree::Map(_) => None,
        };
        value.unwrap_or_else(|| {
            let text = "must be a whole number from 0 to 4294967295, without quotes";
            self.fault(number.line, path, text);
            0
        })
    }

    fn replaces(&mut self, node: &Node, path: &str) -> Vec<String> {
        let path = joined(path, "replaces");
        let Some(list) = node.member("replaces") else { return Vec::new() };
        match &list.tree {
            Tree::List(rules) => {
                let name = |(index, rule)| self.text(rule, &format!("{path}[{index}]"), "name");
                rules.iter().enumerate().map(name).collect()
            }
            Tree::Scalar(text, Quotes::None) if is_null(text) => Vec::new(),
            Tree::Scalar(..) | Tree::Map(_) => {
                self.fault(list.line, path, "must be a list: write `- name: RULE` for each rule");
                Vec::new()
            }
        }
    }

    fn metadata(&mut self, node: &Node, path: &str) -> Option<Map<String, Value>> {
        let path = joined(path, "metadata");
        let metadata = node.member("metadata")?;
        match json(metadata) {
            Value::Object(members) => Some(members),
            Value::Null => None,
            _ => {
                self.fault(metadata.line, path, "must be a mapping");
                None
            }
        }
    }

    fn text(&mut self, node: &Node, path: &str, name: &str) -> String {
        let path = joined(path, name);
        match node.member(name).map(|node| (node.line, &node.tree)) {
            None => String::new(),
            Some((_, Tree::Scalar(text, Quotes::None))) if is_null(text) => String::new(),
            Some((line, Tree::Scalar(text, _))) => {
                if text.contains('\0') {
                    self.fault(line, path, "holds a NUL byte: remove it");
                }
                text.to_string()
            }
            Some((line, Tree::List(_) | Tree::Map(_))) => {
                self.fault(line, path, "must be a text");
                String::new()
            }
        }
    }

    fn boolean(&mut self, node: &Node, path: &str, name: &str) -> bool {
        let path = joined(path, name);
        let Some(value) = node.member(name) else { return false };
        let truth = match &value.tree {
            Tree::Scalar(text, Quotes::None) => truth(text),
            Tree::Scalar(_, Quotes::Some) | Tree::List(_) | Tree::Map(_) => None,
        };
        truth.unwrap_or_else(|| {
            self.fault(value.line, path, "must be true or false, without quotes");
            false
        })
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The most similar of the allowed names, or all of them.
fn suggestion(name: &str, allowed: &[&str]) -> String {
    let similar = allowed.iter().map(|one| (strsim::damerau_levenshtein(name, one), one));
    match similar.min_by_key(|(distance, _)| *distance) {
        Some((distance, one)) if distance <= 2 => format!("did you mean {one:?}?"),
        _ => format!("use one of {}", allowed.join(", ")),
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// A boolean of YAML 1.1; nothing is false.
fn truth(text: &str) -> Option<bool> {
    let yes = ["y", "yes", "true", "on"];
    let no = ["n", "no", "false", "off"];
    // Lower case, upper case, or with a capital.
    let mut rest = text.chars().skip(1);
    let is_cased = rest.clone().all(|c| c.is_ascii_lowercase())
        || text.starts_with(|c: char| c.is_ascii_uppercase())
            && rest.all(|c| c.is_ascii_uppercase());
    let lower = text.to_ascii_lowercase();
    if is_null(text) || is_cased && no.contains(&&*lower) {
        Some(false)
    } else {
        (is_cased && yes.contains(&&*lower)).then_some(true)
    }
}

/// A whole number of YAML 1.1. A number with a fraction of zero is one, too.
fn whole_number(text: &str) -> Option<u32> {
    let plain = text.replace('_', "");
    let digits = plain.strip_prefix('+').unwrap_or(&plain);
    let radix = |prefix: &str, radix| {
        let digits = digits.strip_prefix(prefix)?;
        u32::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'))
    };
    let octal = || (digits.len() > 1).then(|| radix("0", 8)).flatten();
    let decimal = || {
        let number = digits.parse::<f64>().ok()?;
        let is_decimal = digits.starts_with(|c: char| c.is_ascii_digit());
        (is_decimal && number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number))
            .then_some(number as u32)
    };
    radix("0x", 16)
        .or_else(|| radix("0b", 2))
        .or_else(|| radix("0o", 8))
        .or_else(octal)
        .or_else(decimal)
}

fn json(node: &Node) -> Value {
    match &node.tree {
        Tree::Scalar(text, Quotes::Some) => Value::String(text.to_string()),
        Tree::Scalar(text, Quotes::None) => {
            let number = || text.parse::<f64>().ok().filter(|number| number.is_finite());
            if is_null(text) {
                Value::Null
            } else if let Some(truth) = truth(text) {
                Value::Bool(truth)
            } else if let Some(number) = number().and_then(Number::from_f64) {
                Value::Number(number)
            } else {
                Value::String(text.to_string())
            }
        }
        Tree::List(elements) => elements.iter().map(json).collect(),
        Tree::Map(members) => {
            members.iter().map(|(name, member)| (name.to_string(), json(member))).collect()
        }
    }
}
