//! From rules and the descriptors that Envoy sends to policies.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use quotagate_protocol::{Fixed, MAX_UNITS, Window};
use quotagate_quota::config::Config;
use quotagate_quota::duration;
use quotagate_ratelimit::domain::window;
use quotagate_ratelimit::files::RulesByDomain;
use quotagate_ratelimit::rules::{EntryForm, Rule, RuleCase, RuleDomain, RuleLimit, ValueCase};
use serde_json::{Map, Value, json};

use super::action::{SentEntry, SentValue};
use super::conditions::{ValueSource, ValueTest};
use super::envoy::{SentCost, SentForm, SentRoutes};
use super::message::EnvoyRoute;

/// Most policies of a document.
const MAX_POLICIES: usize = 1024;
/// The fields of a policy in the order in which they are written.
pub(super) const POLICY_FIELDS: [&str; 9] =
    ["name", "match", "partition_by", "on_missing", "quota", "tiers", "window", "cost", "mode"];
/// Names in `partition_by` that are no identities.
const BUILT_IN: [&str; 4] = ["method", "host", "path", "route"];

/// What stands in the list of policies.
#[derive(Debug)]
pub(super) struct PolicyItem {
    /// What a reader should know.
    pub(super) remarks: Vec<String>,
    /// What the document does not say.
    pub(super) gaps: Vec<String>,
    /// `None` if there is no policy.
    pub(super) policy: Option<Map<String, Value>>,
}

/// Makes policies, and the identities that they count by.
pub(super) struct Policies<'r> {
    rules: &'r RulesByDomain,
    /// The domain whose policies keep their names.
    main: Arc<str>,
    /// The routes of Envoy; empty without its configuration.
    routes: &'r [EnvoyRoute<'r>],
    pub(super) items: Vec<PolicyItem>,
    /// The name and the source of each.
    identities: Vec<(String, ValueSource)>,
    names: HashMap<String, usize>,
    policies: usize,
    /// The counters of each rule so far.
    counters: BTreeMap<(Arc<str>, usize), Vec<PolicyCounters>>,
    /// The rules that some descriptor has.
    reached: BTreeSet<(Arc<str>, usize)>,
    /// The routes that policies name, and Envoy does not.
    unnamed: BTreeSet<String>,
}

/// The counters of a policy.
struct PolicyCounters {
    policy: String,
    /// The entries that tell them apart.
    counted: Vec<SentEntry>,
}

/// What a rule makes of a form.
struct Draft {
    fields: Map<String, Value>,
    gaps: Vec<String>,
    counted: Vec<SentEntry>,
}

impl<'r> Policies<'r> {
    pub(super) fn new(
        rules: &'r RulesByDomain,
        main: Arc<str>,
        routes: &'r [EnvoyRoute<'r>],
    ) -> Self {
        Self {
            rules,
            main,
            routes,
            items: Vec::new(),
            identities: Vec::new(),
            names: HashMap::new(),
            policies: 0,
            counters: BTreeMap::new(),
            reached: BTreeSet::new(),
            unnamed: BTreeSet::new(),
        }
    }

    /// Adds what no policy can be made of.
    pub(super) fn gap(&mut self, text: String) {
        self.items.push(PolicyItem { remarks: Vec::new(), gaps: vec![text], policy: None });
    }

    /// Adds the policies of a form that Envoy sends.
    pub(super) fn form(&mut self, form: &SentForm, on: &SentRoutes) {
        let Some(domain) = self.rules.get(form.domain.as_str()) else {
            let domain = &form.domain;
            let text = format!(
                "{} has no limit: no rule file has the domain {domain:?}. Give its file, too, if \
                 there is one",
                form.words()
            );
            return self.gap(text);
        };
        let entry = |entry: &SentEntry| EntryForm {
            key: entry.key.clone(),
            value: match &entry.value {
                SentValue::Known(value) => Some(value.clone()),
                SentValue::From(_) => None,
            },
        };
        let entries: Vec<EntryForm> = form.entries.iter().map(entry).collect();
        let found = domain.cases(&entries);
        for rule in found.under_key_patterns {
            // One form is enough to name the rule.
            if !self.reached.insert((Arc::clone(domain.name()), rule)) {
                continue;
            }
            let Some(rule) = domain.rules().get(rule) else { continue };
            let text = format!(
                "{} may have the rule {}, whose key has a `*`: write a policy for each key",
                form.words(),
                rule.path
            );
            self.gap(text);
        }
        if found.cases.is_empty() {
            let text = format!("{} has no limit in the domain {:?}.", form.words(), form.domain);
            self.items.push(PolicyItem { remarks: vec![text], gaps: Vec::new(), policy: None });
        }
        for case in found.cases {
            self.reached.insert((Arc::clone(domain.name()), case.rule));
            self.case(domain, form, on, &case);
        }
    }

    fn case(&mut self, domain: &RuleDomain, form: &SentForm, on: &SentRoutes, case: &RuleCase<'_>) {
        let Some(rule) = domain.rules().get(case.rule) else { return };
        let mut item = PolicyItem { remarks: Vec::new(), gaps: Vec::new(), policy: None };
        item.remarks.push(format!("{}, sent as {}.", title(rule), form.words()));
        if rule.limit == RuleLimit::Unlimited {
            item.remarks.push("It has no limit, so it needs no policy.".to_owned());
            self.items.push(item);
            return;
        }
        let known = self.identities.len();
        match self.draft(domain, rule, form, on, case) {
            Ok(None) => {
                self.identities.truncate(known);
                item.remarks.push("No request has such a value, so it needs no policy.".to_owned());
            }
            Ok(Some(draft)) => {
                item.gaps.extend(draft.gaps);
                match self.fault(&draft.fields) {
                    None => self.keep(domain, case.rule, &mut item, draft.fields, draft.counted),
                    Some(fault) => {
                        self.identities.truncate(known);
                        item.gaps.push(format!("it cannot be a policy: {fault}"));
                    }
                }
            }
            Err(gap) => {
                self.identities.truncate(known);
                item.gaps.push(gap);
            }
        }
        self.items.push(item);
    }

    fn keep(
        &mut self,
        domain: &RuleDomain,
        rule: usize,
        item: &mut PolicyItem,
        mut fields: Map<String, Value>,
        counted: Vec<SentEntry>,
    ) {
        let Some(of) = domain.rules().get(rule) else { return };
        let name = self.name(domain, of);
        let counters = self.counters.entry((Arc::clone(domain.name()), rule)).or_default();
        let shares = |other: &&PolicyCounters| {
            // Two known values that differ tell the counters apart.
            let differ = |(a, b): (&SentEntry, &SentEntry)| {
                let known = |entry: &SentEntry| matches!(entry.value, SentValue::Known(_));
                known(a) && known(b) && a != b
            };
            !other.counted.iter().zip(&counted).any(differ)
        };
        if let Some(other) = counters.iter().find(shares) {
            item.gaps.push(format!(
                "the service counts this together with the policy {}, and here each counts for \
                 itself: merge the two into one policy if you need the sum",
                other.policy
            ));
        }
        counters.push(PolicyCounters { policy: name.clone(), counted });
        if fields.contains_key("tiers") {
            item.remarks.push(format!(
                "A dial precedes tiers: change the numbers in `tiers`, because `quotagate dial set \
                 {name} --quota N` gives the quota N to every value of the metadata."
            ));
        }
        fields.insert("name".to_owned(), name.into());
        item.policy = Some(fields);
        self.policies += 1;
    }

    /// The policy of a rule for a form; `None` if no request can have it.
    fn draft(
        &mut self,
        domain: &RuleDomain,
        rule: &Rule,
        form: &SentForm,
        on: &SentRoutes,
        case: &RuleCase<'_>,
    ) -> Result<Option<Draft>, String> {
        let RuleLimit::Hits(hits, unit) = rule.limit else { return Ok(None) };
        let window = window(unit).ok_or("the rule has no unit")?;
        let mut conditions = form.conditions.clone();
        let (mut partition, mut counted) = (Vec::new(), Vec::new());
        for (entry, of) in form.entries.iter().zip(&case.entries) {
            if of.is_counted {
                counted.push(entry.clone());
            }
            let SentValue::From(source) = &entry.value else { continue };
            if !conditions.add(source, &of.value)? {
                return Ok(None);
            }
            let is_of_metadata = matches!(source, ValueSource::Metadata { .. });
            if is_of_metadata && matches!(of.value, ValueCase::Like(..)) && !of.is_counted {
                // Tiers would need the value in `partition_by`, which gives each its own counter.
                return Err(no_metadata(source));
            }
            // Tiers need the value, too.
            let is_tier = is_of_metadata && matches!(of.value, ValueCase::Is(_));
            if of.is_counted || is_tier {
                let name = self.identity(source);
                if !partition.contains(&name) {
                    partition.push(name);
                }
            }
        }
        let mut fields = Map::new();
        let is_metadata = |of: &ValueSource| matches!(of, ValueSource::Metadata { .. });
        let mut tests = Vec::new();
        for (list, holds) in [(&mut conditions.all, true), (&mut conditions.none, false)] {
            let (of_metadata, others): (Vec<_>, Vec<_>) =
                std::mem::take(list).into_iter().partition(|one| is_metadata(&one.of));
            *list = others;
            tests.extend(of_metadata.into_iter().map(|one| (one, holds)));
        }
        let mut quota = u64::from(hits);
        // `on_missing: skip` already leaves out requests without the metadata.
        tests.retain(|(one, _)| one.test != ValueTest::Present(true));
        if let Some((first, holds)) = tests.first() {
            let mut quotas = Map::new();
            for (test, other) in &tests {
                let ValueTest::Exact(text) = &test.test else {
                    return Err(no_metadata(&test.of));
                };
                if test.of != first.of || other != holds {
                    return Err(no_metadata(&test.of));
                }
                if *holds && test.test != first.test {
                    // No value is two texts at once.
                    return Ok(None);
                }
                let of_tier = if *holds { u64::from(hits) } else { MAX_UNITS };
                quotas.insert(text.clone(), of_tier.into());
            }
            if *holds {
                quota = MAX_UNITS;
            }
            fields.insert(
                "tiers".to_owned(),
                json!({"source": first.of.document(), "quotas": quotas}),
            );
        }
        let mut matches = conditions.document()?;
        let mut gaps = on.gaps.clone();
        if on.routes.len() < self.routes.len() {
            let of_form = on.routes.iter().filter_map(|index| self.routes.get(*index));
            let of_form: Vec<&EnvoyRoute<'_>> = of_form.collect();
            let names: BTreeSet<&str> = of_form.iter().map(|route| route.name.as_str()).collect();
            matches.insert("routes".to_owned(), json!(names));
            let others = self.routes.iter().enumerate();
            let others = others.filter(|(index, _)| !on.routes.contains(index));
            let shared: BTreeSet<&str> = others
                .map(|(_, route)| route.name.as_str())
                .filter(|name| names.contains(name))
                .collect();
            gaps.extend(shared.into_iter().map(|name| {
                format!(
                    "`match.routes` selects by name, and a route for which Envoy does not send this \
                     descriptor is also named {name:?}: give the two routes different names"
                )
            }));
            let unnamed = of_form.iter().filter(|route| !route.is_named);
            self.unnamed.extend(unnamed.map(|route| route.name.clone()));
        }
        if !matches.is_empty() {
            fields.insert("match".to_owned(), matches.into());
        }
        if !partition.is_empty() && partition.iter().any(|name| !BUILT_IN.contains(&name.as_str()))
        {
            fields.insert("on_missing".to_owned(), "skip".into());
        }
        fields.insert("partition_by".to_owned(), partition.into());
        fields.insert("quota".to_owned(), quota.into());
        fields.insert("window".to_owned(), written_window(&window));
        if let Some(cost) = written_cost(&form.cost) {
            fields.insert("cost".to_owned(), cost);
        }
        if rule.shadow_mode {
            fields.insert("mode".to_owned(), "shadow".into());
        }
        gaps.extend(rule_gaps(domain, rule));
        fields.insert("name".to_owned(), "draft".into());
        Ok(Some(Draft { fields, gaps, counted }))
    }

    /// Why a document with this policy would be refused.
    fn fault(&self, policy: &Map<String, Value>) -> Option<String> {
        if self.policies >= MAX_POLICIES {
            return Some(format!(
                "a document has at most {MAX_POLICIES} policies: split it by listener or route"
            ));
        }
        let document = json!({
            "domain": "draft",
            "store": {"cluster": "draft"},
            "identities": Map::from_iter(self.written_identities()),
            "policies": [policy],
        });
        let faults = Config::parse(document.to_string().as_bytes()).err()?;
        faults.iter().next().map(|fault| {
            let path = fault.path.trim_start_matches("policies[0].");
            format!("{path} {}", fault.message)
        })
    }

    /// The members of `identities`.
    pub(super) fn written_identities(&self) -> Vec<(String, Value)> {
        let written = self.identities.iter().map(|(name, source)| {
            let sources: Vec<Value> = source.document().into_iter().collect();
            (name.clone(), sources.into())
        });
        written.collect()
    }

    /// The name of a source in `partition_by`.
    fn identity(&mut self, source: &ValueSource) -> String {
        let name = source.name();
        if source.document().is_none() {
            return name;
        }
        if let Some((name, _)) = self.identities.iter().find(|(_, known)| known == source) {
            return name.clone();
        }
        let kind = match source {
            ValueSource::Query(_) => "query-",
            ValueSource::Metadata { .. } => "metadata-",
            _ => "header-",
        };
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
        let name: String = name.chars().map(plain).take(48).collect();
        let is_taken = |name: &str| {
            name.is_empty()
                || BUILT_IN.contains(&name)
                || self.identities.iter().any(|(known, _)| known == name)
        };
        let numbered = (2..).map(|number| format!("{kind}{name}-{number}"));
        let mut names = [name.clone(), format!("{kind}{name}")].into_iter().chain(numbered);
        let name = names.find(|name| !is_taken(name)).unwrap_or_default();
        self.identities.push((name.clone(), source.clone()));
        name
    }

    /// A name for the policy of a rule.
    fn name(&mut self, domain: &RuleDomain, rule: &Rule) -> String {
        let prefix =
            if *domain.name() == self.main { String::new() } else { format!("{}-", domain.name()) };
        let mut name = String::new();
        for c in format!("{prefix}{}", rule.policy).chars() {
            match c.to_ascii_lowercase() {
                c if c.is_ascii_alphanumeric() => name.push(c),
                _ if name.is_empty() || name.ends_with('-') => {}
                _ => name.push('-'),
            }
        }
        let name = name.get(..56).unwrap_or(&name).trim_end_matches('-');
        let name = if name.is_empty() { "policy" } else { name }.to_owned();
        let mut numbers = (1_usize..).map(|number| match number {
            1 => name.clone(),
            number => format!("{name}-{number}"),
        });
        // The search begins after the last number of this name.
        let used = self.names.get(&name).copied().unwrap_or_default();
        let free = numbers.by_ref().skip(used).find(|name| !self.names.contains_key(name));
        let free = free.unwrap_or_default();
        *self.names.entry(name).or_default() += 1;
        self.names.entry(free.clone()).or_insert(1);
        free
    }

    /// Adds what the forms leave: routes without names, and rules that no descriptor reaches.
    pub(super) fn finish(&mut self) {
        if !self.unnamed.is_empty() {
            let names: Vec<&str> = self.unnamed.iter().map(String::as_str).collect();
            let text = format!(
                "`match.routes` selects by name, and these routes of Envoy have none: give each its \
                 `name`, which is the virtual host and the number of the route: {}",
                names.join(", ")
            );
            self.items
                .insert(0, PolicyItem { remarks: Vec::new(), gaps: vec![text], policy: None });
        }
        let rules = self.rules;
        for domain in rules.values() {
            for (index, rule) in domain.rules().iter().enumerate() {
                let is_reached = self.reached.contains(&(Arc::clone(domain.name()), index));
                if !is_reached && rule.limit != RuleLimit::Unlimited {
                    self.gap(format!(
                        "{}: no `rate_limits` of the configuration sends such a descriptor, so it \
                         has no policy. Give the configuration that does, or remove the rule",
                        title(rule)
                    ));
                }
            }
        }
    }
}

/// A rule for people: `shop.user: 5 per day`.
fn title(rule: &Rule) -> String {
    match rule.limit {
        RuleLimit::Unlimited => format!("{}: unlimited", rule.path),
        RuleLimit::Hits(hits, unit) => {
            format!("{}: {hits} per {}", rule.path, unit.name().to_lowercase())
        }
    }
}

fn no_metadata(of: &ValueSource) -> String {
    format!(
        "a document has no such condition on {}: let the filter that writes it set a header, too, \
         and match that",
        of.words()
    )
}

/// What a policy does not say of a rule.
fn rule_gaps(domain: &RuleDomain, rule: &Rule) -> Vec<String> {
    let mut gaps = Vec::new();
    let replaced = |name: &Arc<str>| domain.rules().iter().any(|rule| rule.name == *name);
    let replaces: Vec<&str> =
        rule.replaces.iter().filter(|name| replaced(name)).map(|name| &**name).collect();
    if !replaces.is_empty() {
        gaps.push(format!(
            "the rule replaces {}, and here both count: exclude these requests from the other \
             policy with `match.not`",
            replaces.join(", ")
        ));
    }
    if rule.quota_mode {
        gaps.push(
            "quota_mode refuses a request only if all its quota limits are used up, and this \
             policy refuses by itself: set `mode: mark` on all but the last of them, and let the \
             upstream decide"
                .to_owned(),
        );
    }
    if rule.metadata.is_some() {
        gaps.push(
            "the service answers with the metadata of this rule: let a filter set it by the route"
                .to_owned(),
        );
    }
    gaps
}

/// The window as a document writes it: the same as the service counts in.
fn written_window(window: &Window) -> Value {
    match window {
        Window::Fixed(fixed) => {
            let length = std::time::Duration::from_secs(Fixed::seconds(*fixed).into());
            duration::format(length).into()
        }
        Window::Calendar(calendar) => {
            json!({"calendar": calendar.unit.name(), "time_zone": &*calendar.time_zone})
        }
        // The service has none.
        Window::Sliding(_) | Window::InFlight => Value::Null,
    }
}

fn written_cost(cost: &SentCost) -> Option<Value> {
    Some(match cost {
        // Looks and late hits come in pairs, which have another cost.
        SentCost::Units(1) | SentCost::Look | SentCost::Late(_) => return None,
        SentCost::Units(units) => json!(units),
        SentCost::Header(name) => json!({"header": {"name": name}}),
        SentCost::Settled { filter, path } => json!({
            "reserve": 1,
            "settle": [{"metadata": {"filter": filter, "path": path}}],
            "if_missing": "nothing",
        }),
    })
}
