//! How policies of objects are written in a document, and the check of what is written.

use std::collections::BTreeMap;

use quotagate_operate::document::{store_url, unknown_zones};
use quotagate_quota::config::{Config, Fault, Reach};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::objects::ObjectName;
use crate::resource::{
    ExcludedRequests, IdentitySource, IdentitySources, PathChoice, PolicyRule, RequestConditions,
};

/// The most identities of a document.
const MAX_IDENTITIES: usize = quotagate_quota::config::MAX_IDENTITIES;
/// What begins the names of identities that the platform defines.
const PLATFORM: &str = "platform/";
/// Entries of `partitionBy` that are no identities.
const WORDS: [&str; 3] = ["method", "host", "path"];

/// Where a policy of an object applies, and what it is called.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placement {
    /// Its name in the document.
    pub(crate) name: String,
    /// The names of Envoy's routes. `None`: all traffic of the domain.
    pub(crate) routes: Option<Vec<String>>,
    /// Envoy's routes on which it is replaced.
    pub(crate) not_routes: Vec<String>,
}

/// The identities of a document. Equal ones of several objects share a name.
#[derive(Clone, Debug)]
pub(crate) struct DocumentIdentities {
    all: Map<String, Value>,
    /// Those of the platform.
    of_platform: Vec<String>,
}

impl DocumentIdentities {
    pub(crate) fn of(base: &Map<String, Value>) -> Self {
        let all = base.get("identities").and_then(Value::as_object).cloned().unwrap_or_default();
        Self { of_platform: all.keys().cloned().collect(), all }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn json(&self) -> Value {
        Value::Object(self.all.clone())
    }

    /// The names in the document for the identities of an object.
    ///
    /// # Errors
    /// When the document would have too many.
    pub(crate) fn add(
        &mut self,
        own: &BTreeMap<String, IdentitySources>,
    ) -> Result<BTreeMap<String, String>, String> {
        let mut names = BTreeMap::new();
        for (wanted, sources) in own {
            let sources: Value = sources.0.iter().map(source).collect();
            let equal = self.all.iter().find(|(_, known)| **known == sources);
            let name = match equal {
                Some((name, _)) => name.clone(),
                None if self.all.len() >= MAX_IDENTITIES => {
                    return Err(format!(
                        "identities: the document has {MAX_IDENTITIES} already, which is the most. \
                         Use platform/NAME for one of the platform, or write the same sources as \
                         another object"
                    ));
                }
                None => {
                    let name = self.free(wanted);
                    self.all.insert(name.clone(), sources);
                    name
                }
            };
            names.insert(wanted.clone(), name);
        }
        Ok(names)
    }

    /// The wanted name, or one with the first number that nobody has.
    fn free(&self, wanted: &str) -> String {
        let numbered = |number: usize| match number {
            1 => wanted.to_owned(),
            _ => {
                let short: String = wanted.chars().take(60).collect();
                format!("{short}-{number}")
            }
        };
        let mut names = (1..).map(numbered);
        names.find(|name| !self.all.contains_key(name)).unwrap_or_default()
    }

    /// The entries of `partition_by` for those of `partitionBy`.
    ///
    /// # Errors
    /// The first entry that is nothing, and what there is.
    fn entries(
        &self,
        partition_by: &[String],
        own: &BTreeMap<String, String>,
    ) -> Result<Vec<String>, String> {
        let entry = |(index, entry): (usize, &String)| {
            let known = match entry.strip_prefix(PLATFORM) {
                Some(name) => self.of_platform.iter().find(|known| *known == name),
                None if WORDS.contains(&entry.as_str()) => Some(entry),
                None => own.get(entry),
            };
            known.cloned().ok_or_else(|| {
                let platform = self.of_platform.iter().map(|name| format!("{PLATFORM}{name}"));
                let words = WORDS.map(str::to_owned);
                let all: Vec<String> = own.keys().cloned().chain(platform).chain(words).collect();
                format!(
                    "partitionBy[{index}]: there is no identity {entry}. Define it in \
                     spec.identities, or use one of {}",
                    all.join(", ")
                )
            })
        };
        partition_by.iter().enumerate().map(entry).collect()
    }
}

/// A policy as the document writes it.
///
/// # Errors
/// What cannot be written, with its path in the policy.
pub(crate) fn policy(
    rule: &PolicyRule,
    placement: &Placement,
    identities: &DocumentIdentities,
    own: &BTreeMap<String, String>,
) -> Result<Value, String> {
    let window = window(rule)?;
    let mut written = json!({
        "name": placement.name,
        "partition_by": identities.entries(&rule.partition_by, own)?,
        "on_missing": word(&rule.on_missing),
        "mode": word(&rule.mode),
    });
    put(&mut written, "quota", rule.quota);
    put(&mut written, "window", window);
    put(&mut written, "in_flight", rule.in_flight);
    put(&mut written, "max_wait", rule.max_wait.as_ref());
    let conditions = conditions(rule.conditions.as_ref(), placement)?;
    put(&mut written, "match", (conditions != json!({})).then_some(conditions));
    put(&mut written, "sliding", rule.sliding);
    if let Some(cost) = &rule.cost {
        let cost = match (cost.fixed, &cost.header) {
            (Some(fixed), None) => json!(fixed),
            (None, Some(header)) => {
                let mut from = json!({"name": header.name, "max": header.max});
                put(&mut from, "default", header.default);
                if header.default.is_some_and(|default| default > header.max) {
                    return Err("cost.header.default: is above max".to_owned());
                }
                json!({"header": from})
            }
            _ => return Err("cost: give exactly one of fixed, header".to_owned()),
        };
        put(&mut written, "cost", Some(cost));
    }
    if let Some(tiers) = &rule.tiers {
        let mut claim = json!({"claim": tiers.claim});
        put(&mut claim, "payload", tiers.payload.as_ref());
        let tiers = json!({"source": {"jwt": claim}, "quotas": tiers.quotas});
        put(&mut written, "tiers", Some(tiers));
    }
    put(&mut written, "overrides", (!rule.overrides.is_empty()).then_some(&rule.overrides));
    if let Some(lease) = &rule.lease {
        put(&mut written, "precision", Some("lease"));
        put(&mut written, "lease", Some(json!({"max": lease.max})));
    }
    Ok(written)
}

/// The window of a policy. `None`: it limits how many requests run at once.
fn window(rule: &PolicyRule) -> Result<Option<Value>, String> {
    if rule.quota.is_some() == rule.in_flight.is_some() {
        return Err("quota: give quota or inFlight, and not both".to_owned());
    }
    let window = match (&rule.window, &rule.calendar) {
        (None, None) if rule.in_flight.is_some() => None,
        (Some(window), None) => Some(json!(window)),
        (None, Some(calendar)) => {
            Some(json!({"calendar": word(&calendar.unit), "time_zone": calendar.time_zone}))
        }
        _ => return Err("window: give window or calendar, and not both".to_owned()),
    };
    let is_slots = rule.in_flight.is_some();
    let wrong = [
        (is_slots && window.is_some(), "inFlight: has no window, so leave window and calendar out"),
        (
            is_slots && rule.sliding == Some(true),
            "sliding: inFlight has no window that could slide",
        ),
        (
            is_slots && rule.lease.is_some(),
            "lease: inFlight takes no lease, because each request holds its own slot",
        ),
        (!is_slots && rule.max_wait.is_some(), "maxWait: needs inFlight"),
    ];
    match wrong.iter().find(|(is_wrong, _)| *is_wrong) {
        Some((_, why)) => Err((*why).to_owned()),
        None => Ok(window),
    }
}

fn conditions(own: Option<&RequestConditions>, placement: &Placement) -> Result<Value, String> {
    let (mut all, mut not) = (json!({}), json!({}));
    if let Some(RequestConditions { path, methods, headers, not: excluded }) = own {
        put(&mut all, "path", path.as_ref().map(|own| choice(own, "match.path")).transpose()?);
        put(&mut all, "methods", (!methods.is_empty()).then_some(methods));
        put(&mut all, "headers", (!headers.is_empty()).then_some(headers));
        if let Some(ExcludedRequests { path, methods }) = excluded {
            let path = path.as_ref().map(|own| choice(own, "match.not.path")).transpose()?;
            put(&mut not, "path", path);
            put(&mut not, "methods", (!methods.is_empty()).then_some(methods));
        }
    }
    put(&mut all, "routes", placement.routes.as_ref());
    let replaced = &placement.not_routes;
    put(&mut not, "routes", (!replaced.is_empty()).then_some(replaced));
    put(&mut all, "not", (not != json!({})).then_some(not));
    Ok(all)
}

fn choice(own: &PathChoice, at: &str) -> Result<Value, String> {
    let given = [&own.exact, &own.prefix, &own.suffix, &own.regex].into_iter().flatten().count();
    if given != 1 {
        return Err(format!("{at}: give exactly one of exact, prefix, suffix, regex"));
    }
    Ok(json!(own))
}

/// A source as the document writes it.
fn source(source: &IdentitySource) -> Value {
    let IdentitySource { jwt, peer, client_ip, header, cookie } = source;
    let mut written = json!({});
    put(&mut written, "jwt", jwt.as_ref());
    put(&mut written, "peer", peer.as_ref());
    if let Some(address) = client_ip {
        let mut bits = json!({});
        put(&mut bits, "ipv4_prefix", address.ipv4_prefix);
        put(&mut bits, "ipv6_prefix", address.ipv6_prefix);
        put(&mut written, "client_ip", Some(bits));
    }
    put(&mut written, "header", header.as_ref());
    put(&mut written, "cookie", cookie.as_ref());
    written
}

/// Sets a field that has a value.
fn put(object: &mut Value, name: &str, value: Option<impl Serialize>) {
    if let (Some(fields), Some(value)) = (object.as_object_mut(), value) {
        fields.insert(name.to_owned(), json!(value));
    }
}

/// A word of an object as the document writes it: `Shadow` is `shadow`.
fn word(word: &impl Serialize) -> Value {
    json!(word).as_str().map(str::to_ascii_lowercase).into()
}

/// All faults of a document, as `quotagate check` finds them, and each secret in clear.
pub(crate) fn check(document: &Map<String, Value>) -> Vec<Fault> {
    let text = Value::Object(document.clone()).to_string();
    match Config::parse_published(text.as_bytes()) {
        Ok(config) => {
            let store = match &config.store.reach {
                Reach::Redis(store) => store_url(store).err(),
                Reach::Cluster(_) | Reach::Nowhere => None,
            };
            store.into_iter().chain(unknown_zones(&config)).collect()
        }
        Err(faults) => faults.iter().cloned().collect(),
    }
}

/// The name of a policy of an object in the document.
pub(crate) fn document_name(object: &ObjectName, policy: &str) -> String {
    format!("{object}/{policy}")
}

/// The path in an object for one in a policy of the document.
pub(crate) fn path_in_object(path: &str) -> String {
    let path = path
        .replace("window.time_zone", "calendar.timeZone")
        .replace("window.calendar", "calendar.unit")
        .replace("tiers.source.jwt", "tiers");
    let mut camel = String::with_capacity(path.len());
    let mut letters = path.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '_' => camel.extend(letters.next().map(|letter| letter.to_ascii_uppercase())),
            _ => camel.push(letter),
        }
    }
    camel.replace("clientIp", "clientIP")
}
