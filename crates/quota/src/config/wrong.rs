//! Documents with faults: what can be read out of one, and what is in force instead.
//!
//! A filter that refuses its configuration takes Envoy's listener with it: the whole update is
//! rejected, or a new proxy does not listen. So the filter accepts such a configuration unless the
//! document says `on_wrong_document: reject`, and goes on with the last good document.

use std::collections::BTreeSet;

use quotagate_protocol::OnFailure;
use quotagate_protocol::dials::{MAX_FAULT, RefusedDocument};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::store::Store;
use super::{Config, Domain, Reach, StoreConfig, envoy};
use crate::document::{Collector, Node, Type, words};

words! {
    /// What happens if a document has faults.
    pub enum OnWrongDocument {
        /// Envoy takes the configuration, and keeps its listener. The filter keeps its last good
        /// document of this domain. If this process has none, `store.on_failure` decides: all
        /// requests pass uncounted, or are answered with 503.
        Keep = "keep",
        /// The filter refuses the configuration. Envoy then rejects the whole listener, or does not
        /// start, and a control plane counts a rejected update.
        Reject = "reject",
    }
}

/// What can be read out of a document that has faults. Each field is read on its own.
#[derive(Clone, Debug)]
pub struct WrongDocument {
    /// What happens to it.
    pub on_wrong_document: OnWrongDocument,
    domain: Option<Box<str>>,
    store: Option<StoreConfig>,
    on_failure: OnFailure,
    /// The names of its policies.
    policies: BTreeSet<Box<str>>,
}

impl WrongDocument {
    /// Reads what can be read. Of a text that cannot be parsed that is nothing.
    pub fn read(text: &[u8]) -> Self {
        // A field that is given twice is a fault, and the rest can be read all the same.
        let parsed = envoy::read(text).or_else(|_| serde_json::from_slice(text));
        let value = parsed.unwrap_or_default();
        let faults = Collector::default();
        let root = Node::root(&value, &faults);
        let (domain, store) = (root.field("domain"), root.field("store"));
        Self {
            on_wrong_document: OnWrongDocument::read(&root.field("on_wrong_document"))
                .unwrap_or(OnWrongDocument::Keep),
            domain: Domain::read(&domain).map(Box::from),
            on_failure: OnFailure::read(&store.field("on_failure")).unwrap_or(OnFailure::Allow),
            store: Store::read(&store),
            policies: names(&value).collect(),
        }
    }

    /// The configuration in force instead of this document, which has these faults: the last good
    /// one, which `last_good` looks for, else one without policies that does what `on_failure`
    /// says. `None`: Envoy shall reject the document.
    pub fn instead(
        self,
        faults: &[String],
        last_good: impl FnOnce(&Self) -> Option<Config>,
    ) -> Option<Config> {
        if self.on_wrong_document == OnWrongDocument::Reject {
            return None;
        }
        let last_good = last_good(&self);
        let keeps_last_good = last_good.is_some();
        let config = match last_good {
            Some(config) => config,
            None => self.without_policies()?,
        };
        Some(Config { refused: Some(refused_document(faults, keeps_last_good, 0)), ..config })
    }

    fn without_policies(self) -> Option<Config> {
        let Self { domain, store, on_failure, .. } = self;
        let is_known = domain.is_some();
        let domain = domain.unwrap_or_else(|| UNKNOWN_DOMAIN.into());
        let empty = json!({"domain": domain, "store": {"cluster": "none"}, "policies": []});
        let mut config = Config { digest: Box::default(), ..Config::of(&empty).ok()? };
        // A client must not bring along the mark of a document that nobody can read.
        config.marks = true;
        config.store = match store {
            Some(store) if is_known => store,
            _ => StoreConfig { reach: Reach::Nowhere, ..config.store },
        };
        config.store.on_failure = on_failure;
        Some(config)
    }
}

/// What a worker reports of a document with these faults; `number` is that of a published one.
pub(crate) fn refused_document(
    faults: &[String],
    keeps_last_good: bool,
    number: u64,
) -> RefusedDocument {
    let printable = |c: char| if (' '..='~').contains(&c) { c } else { '?' };
    let first = faults.first().map_or("", String::as_str);
    RefusedDocument {
        fault: first.chars().map(printable).take(MAX_FAULT).collect(),
        faults: u32::try_from(faults.len()).unwrap_or(u32::MAX),
        keeps_last_good,
        number,
    }
}

/// The domain in the metrics of a filter whose document names none.
const UNKNOWN_DOMAIN: &str = "unknown";

fn names(document: &Value) -> impl Iterator<Item = Box<str>> + '_ {
    let policies = document.get("policies").and_then(Value::as_array);
    policies.into_iter().flatten().filter_map(|policy| Some(policy.get("name")?.as_str()?.into()))
}

impl Config {
    /// What the filter does with every request, if no document is in force. `None`: its policies
    /// decide.
    pub fn without_document(&self) -> Option<OnFailure> {
        let refused = self.refused.as_ref().filter(|refused| !refused.keeps_last_good);
        refused.map(|_| self.store.on_failure)
    }

    /// What is in force because the document was refused, as a line for the log.
    pub fn in_force_instead(&self) -> String {
        match self.without_document() {
            None => format!("the last good document of the domain {} stays in force", self.domain),
            Some(OnFailure::Deny) => {
                "this process has no good document of this filter: every request is answered with \
                 503, as store.on_failure says"
                    .to_owned()
            }
            Some(OnFailure::Allow | OnFailure::Local) => {
                "this process has no good document of this filter: every request passes uncounted \
                 (store.on_failure: deny would answer 503)"
                    .to_owned()
            }
        }
    }
}

/// The last good documents of a process: at most [`MAX_GOOD_DOCUMENTS`]. Beyond that, the owner
/// with the most documents loses one: the oldest of its domain with the most documents.
///
/// Two filters of Envoy may have different documents of one domain. So a document is known by the
/// name of its filter, by its domain and by the names of its policies.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct GoodDocuments(Vec<GoodDocument>);

/// The most documents that a process keeps.
pub const MAX_GOOD_DOCUMENTS: usize = 64;

/// Whose document it is: Envoy's name of the filter, or of a route's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DocumentOwner {
    /// A filter in a listener.
    Filter(Box<str>),
    /// A route. Several routes may have the same name.
    Route(Box<str>),
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct GoodDocument {
    owner: DocumentOwner,
    domain: Box<str>,
    policies: BTreeSet<Box<str>>,
    /// As JSON. It may hold secrets, so it is never shown.
    text: Box<str>,
}

impl GoodDocument {
    fn has_owner_and_domain_of(&self, other: &Self) -> bool {
        (&self.owner, &self.domain) == (&other.owner, &other.domain)
    }
}

impl GoodDocuments {
    /// No documents yet.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Reads what [`written`](Self::written) wrote.
    pub fn read(written: &[u8]) -> Self {
        serde_json::from_slice(written).unwrap_or_default()
    }

    /// The documents for another thread to read.
    pub fn written(&self) -> Vec<u8> {
        // Writing text into memory cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Keeps the text of this good document. Returns whether anything changed.
    pub fn keep(&mut self, owner: &DocumentOwner, config: &Config, text: &[u8]) -> bool {
        let Ok(value) = envoy::read(text) else { return false };
        let document = GoodDocument {
            owner: owner.clone(),
            domain: config.domain.clone(),
            policies: config.policies.iter().map(|policy| Box::from(&*policy.name)).collect(),
            text: value.to_string().into(),
        };
        if self.0.iter().rev().find(|known| known.has_owner_and_domain_of(&document))
            == Some(&document)
        {
            return false;
        }
        self.0.retain(|known| {
            (&known.owner, &known.domain, &known.policies)
                != (&document.owner, &document.domain, &document.policies)
        });
        if self.0.len() >= MAX_GOOD_DOCUMENTS {
            // Not the only document of a filter that hardly ever changes.
            let count = |one: &GoodDocument| {
                let of_owner = self.0.iter().filter(|other| other.owner == one.owner);
                let of_domain = of_owner.clone().filter(|other| other.domain == one.domain);
                (of_owner.count(), of_domain.count())
            };
            let counts: Vec<_> = self.0.iter().map(count).collect();
            let most = counts.iter().copied().max();
            if let Some(oldest) = counts.iter().position(|count| Some(*count) == most) {
                self.0.remove(oldest);
            }
        }
        self.0.push(document);
        true
    }

    /// The text of the last good document that a wrong one would have replaced, of the documents of
    /// its owner and its domain. Without a readable domain, all documents of the owner must be of
    /// one domain.
    ///
    /// For a filter, this is the latest that has a policy in common with the wrong one, or else the
    /// latest. Routes may share a name. For a route, it is the one with the most policies in
    /// common, and the latest if several have as many. If none has a policy in common, there is
    /// none, because the document of another route would refuse requests that it does not concern.
    pub fn last(&self, owner: &DocumentOwner, wrong: &WrongDocument) -> Option<&str> {
        let of_domain = |known: &&GoodDocument| {
            wrong.domain.as_ref().is_none_or(|domain| known.domain == *domain)
        };
        let of_owner = self.0.iter().filter(|known| known.owner == *owner);
        let found: Vec<&GoodDocument> = of_owner.filter(of_domain).collect();
        if !found.iter().is_sorted_by(|one, next| one.domain == next.domain) {
            return None;
        }
        let common = |known: &GoodDocument| known.policies.intersection(&wrong.policies).count();
        let last = match owner {
            DocumentOwner::Filter(_) => {
                found.iter().rev().find(|known| common(known) > 0).or(found.last())
            }
            DocumentOwner::Route(_) => {
                found.iter().max_by_key(|known| common(known)).filter(|known| common(known) > 0)
            }
        };
        last.map(|known| &*known.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter() -> DocumentOwner {
        DocumentOwner::Filter("quotagate".into())
    }

    fn document(domain: &str, policies: &[&str], quota: u64) -> String {
        let policy =
            |name: &&str| json!({"name": name, "partition_by": [], "quota": quota, "window": "1m"});
        let policies: Vec<Value> = policies.iter().map(policy).collect();
        json!({"domain": domain, "store": {"cluster": "s"}, "policies": policies}).to_string()
    }

    fn keep(documents: &mut GoodDocuments, owner: &DocumentOwner, text: &str) -> bool {
        documents.keep(owner, &Config::parse(text.as_bytes()).unwrap(), text.as_bytes())
    }

    /// The quota of the document that stays in force.
    fn last(documents: &GoodDocuments, owner: &DocumentOwner, wrong: &str) -> Option<u64> {
        let text = documents.last(owner, &WrongDocument::read(wrong.as_bytes()))?;
        Some(Config::parse(text.as_bytes()).unwrap().policies[0].quota)
    }

    #[test]
    fn each_field_is_read_although_all_others_are_wrong() {
        type Read = (OnWrongDocument, Option<&'static str>, OnFailure, bool);
        let nothing: Read = (OnWrongDocument::Keep, None, OnFailure::Allow, false);
        for (text, expected) in [
            ("", nothing),
            ("domain: shop", nothing),
            ("[1]", nothing),
            (r#"{"domain":7,"store":"x","on_wrong_document":null,"policies":{}}"#, nothing),
            (
                r#"{"domain":"shop","policies":[{"quota":-1}]}"#,
                (nothing.0, Some("shop"), nothing.2, false),
            ),
            (
                r#"{"domain":"Shop!","on_wrong_document":"reject"}"#,
                (OnWrongDocument::Reject, None, nothing.2, false),
            ),
            (
                r#"{"store":{"on_failure":"deny","timeouts":"1s"}}"#,
                (nothing.0, None, OnFailure::Deny, false),
            ),
            (
                r#"{"store":{"on_failure":"local","cluster":"s"}}"#,
                (nothing.0, None, OnFailure::Local, true),
            ),
            // One of two.
            (r#"{"domain":"a","domain":"shop"}"#, (nothing.0, Some("shop"), nothing.2, false)),
        ] {
            let read = WrongDocument::read(text.as_bytes());
            let WrongDocument { on_wrong_document, domain, store, on_failure, .. } = &read;
            assert_eq!(
                (*on_wrong_document, domain.as_deref(), *on_failure, store.is_some()),
                expected,
                "{text}"
            );
        }
        let good = Config::parse(document("d", &["p"], 1).as_bytes()).unwrap();
        assert_eq!(good.on_wrong_document, nothing.0, "the defaults are those of a document");
        assert_eq!(good.store.on_failure, nothing.2);
    }

    #[test]
    fn wrong_document_gives_way_to_the_last_good_one_of_its_domain() {
        let mut documents = GoodDocuments::new();
        for (domain, quota) in [("shop", 1), ("ai", 2), ("shop", 3)] {
            assert!(keep(&mut documents, &filter(), &document(domain, &["p"], quota)));
        }
        assert!(!keep(&mut documents, &filter(), &document("shop", &["p"], 3)), "nothing is new");
        assert_eq!(last(&documents, &filter(), r#"{"domain":"shop"}"#), Some(3));
        assert_eq!(last(&documents, &filter(), r#"{"domain":"ai"}"#), Some(2));
        assert_eq!(last(&documents, &filter(), r#"{"domain":"other"}"#), None);
        assert_eq!(last(&documents, &filter(), "no document"), None, "two domains");
        let another = DocumentOwner::Filter("another".into());
        assert_eq!(last(&documents, &another, r#"{"domain":"shop"}"#), None);
        keep(&mut documents, &another, &document("one", &["p"], 4));
        assert_eq!(last(&documents, &another, "no document"), Some(4));
        assert_eq!(documents.0.len(), 3);
        let read = GoodDocuments::read(&documents.written());
        assert_eq!(last(&read, &filter(), r#"{"domain":"shop"}"#), Some(3));
        assert!(GoodDocuments::read(b"no list").0.is_empty());
    }

    /// A document with these policies that has faults.
    fn faulty(policies: &Value) -> String {
        json!({"domain": "shop", "policies": policies}).to_string()
    }

    #[test]
    fn of_several_documents_of_a_filter_the_latest_with_a_common_policy_stays() {
        let mut documents = GoodDocuments::new();
        keep(&mut documents, &filter(), &document("shop", &["a", "b"], 1));
        keep(&mut documents, &filter(), &document("shop", &["b", "c", "d"], 2));
        let last = |policies: Value| last(&documents, &filter(), &faulty(&policies));
        assert_eq!(last(json!([{"name": "a"}, {"name": "x"}, {"name": 7}])), Some(1));
        assert_eq!(last(json!([{"name": "a"}, {"name": "b"}])), Some(2), "the latest");
        assert_eq!(last(json!([{"name": "x"}])), Some(2));
    }

    #[test]
    fn of_several_documents_of_routes_the_one_with_the_most_common_policies_stays() {
        let route = DocumentOwner::Route("quotagate".into());
        let mut documents = GoodDocuments::new();
        keep(&mut documents, &route, &document("shop", &["per-caller", "login"], 1));
        keep(&mut documents, &route, &document("shop", &["per-caller", "export"], 2));
        let last = |policies: Value| last(&documents, &route, &faulty(&policies));
        assert_eq!(last(json!([{"name": "per-caller"}, {"name": "login"}])), Some(1));
        assert_eq!(last(json!([{"name": "per-caller"}, {"name": "export"}])), Some(2));
        assert_eq!(last(json!([{"name": "per-caller"}])), Some(2), "the latest of both");
        assert_eq!(last(json!([{"name": "x"}])), None, "it may be another route's");
    }

    #[test]
    fn oldest_document_makes_room() {
        let mut documents = GoodDocuments::new();
        for quota in 0..=MAX_GOOD_DOCUMENTS as u64 {
            keep(&mut documents, &filter(), &document(&format!("d{quota}"), &["p"], quota));
        }
        assert_eq!(documents.0.len(), MAX_GOOD_DOCUMENTS);
        assert_eq!(last(&documents, &filter(), r#"{"domain":"d0"}"#), None);
        assert_eq!(last(&documents, &filter(), r#"{"domain":"d1"}"#), Some(1));
    }

    #[test]
    fn busy_filter_displaces_no_document_of_a_quiet_one() {
        let quiet = DocumentOwner::Filter("quiet".into());
        for domains in [1, 2 * MAX_GOOD_DOCUMENTS] {
            let mut documents = GoodDocuments::new();
            keep(&mut documents, &quiet, &document("d", &["p"], 7));
            for number in 0..2 * MAX_GOOD_DOCUMENTS {
                // The first domain is that of the quiet filter.
                let domain = match number % domains {
                    0 => "d".to_owned(),
                    other => format!("d{other}"),
                };
                keep(&mut documents, &filter(), &document(&domain, &[&format!("p{number}")], 1));
            }
            assert_eq!(documents.0.len(), MAX_GOOD_DOCUMENTS);
            assert_eq!(last(&documents, &quiet, r#"{"domain":"d"}"#), Some(7), "{domains}");
        }
    }

    #[test]
    fn policies_that_a_later_document_removed_do_not_come_back() {
        let mut documents = GoodDocuments::new();
        keep(&mut documents, &filter(), &document("d", &["a", "b", "c"], 1));
        keep(&mut documents, &filter(), &document("d", &["a"], 2));
        let wrong = r#"{"domain":"d","policies":[{"name":"a"},{"name":"b"},{"name":"c"}]}"#;
        assert_eq!(last(&documents, &filter(), wrong), Some(2));
    }

    #[test]
    fn without_a_good_document_on_failure_decides_and_the_store_is_told() {
        let faults = ["policies[0].quota: must be \u{e4}".to_owned(), "more".to_owned()];
        let instead = |text: &str| WrongDocument::read(text.as_bytes()).instead(&faults, |_| None);
        let config =
            instead(r#"{"domain":"shop","store":{"cluster":"s","token":"0123456789abcdef","on_failure":"deny"}}"#)
                .unwrap();
        assert_eq!((&*config.domain, config.without_document()), ("shop", Some(OnFailure::Deny)));
        let store = config.store.reach.called_by_envoy().unwrap();
        let authorization = store.authorization();
        assert_eq!(
            (&*store.name, authorization.as_deref()),
            ("s", Some("Bearer 0123456789abcdef"))
        );
        let refused = config.refused.unwrap();
        assert_eq!((&*refused.fault, refused.faults), ("policies[0].quota: must be ?", 2));
        for unknown in ["", r#"{"store":{"cluster":"s"}}"#, r#"{"domain":"shop"}"#] {
            let config = instead(unknown).unwrap();
            assert_eq!(config.store.reach, Reach::Nowhere, "{unknown}");
            assert_eq!(config.without_document(), Some(OnFailure::Allow));
        }
        let good = Config::parse(document("d", &["p"], 1).as_bytes()).unwrap();
        let kept = WrongDocument::read(b"").instead(&faults, |_| Some(good)).unwrap();
        assert_eq!((kept.without_document(), kept.policies.len()), (None, 1));
        assert!(kept.refused.is_some_and(|refused| refused.keeps_last_good));
    }

    #[test]
    fn document_that_says_reject_is_rejected_and_no_good_one_is_looked_for() {
        for text in [
            r#"{"on_wrong_document":"reject"}"#,
            r#"{"domain":"shop","on_wrong_document":"reject","store":{"cluster":"s"},"more":1}"#,
        ] {
            let wrong = WrongDocument::read(text.as_bytes());
            assert!(wrong.instead(&["a fault".to_owned()], |_| panic!("looked for")).is_none());
        }
    }
}
