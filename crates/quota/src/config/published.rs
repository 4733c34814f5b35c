//! Published documents: what operators publish through the store, and what a filter makes of it.
//!
//! A filter takes published documents up if its embedded document, which Envoy handed over, says
//! `live: true`. How the filter reaches the store is the embedded document's to say, and so is the
//! key of digests, so that no published document holds a secret.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use quotagate_protocol::dials::{DocumentReply, DocumentVersion, MAX_DOCUMENT};
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::{Config, Faults, Policy, ROOT, digest, envoy};
use crate::document::Collector;

/// The members of a policy document that only the embedded one has.
const EMBEDDED: [&str; 3] = ["store", "digest_key", "live"];

/// What a configuration keeps of the embedded document, if that one is live.
#[derive(Clone, Default)]
pub struct LiveDocument {
    /// The number of the published document in force; 0 for the embedded one.
    pub number: u64,
    /// See [`Config::generation`].
    pub(crate) generation: u64,
    /// The members that only the embedded document has.
    embedded: Arc<Map<String, Value>>,
}

impl fmt::Debug for LiveDocument {
    /// Without the members, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LiveDocument({}, {})", self.number, self.generation)
    }
}

impl LiveDocument {
    /// Of an embedded document that says `live: true`.
    pub(super) fn of(document: &Value) -> Option<Self> {
        let members = document.as_object()?.iter();
        let own = members.filter(|(name, _)| EMBEDDED.contains(&name.as_str()));
        let embedded = Arc::new(own.map(|(name, value)| (name.clone(), value.clone())).collect());
        Some(Self { number: 0, generation: 0, embedded })
    }
}

/// A published document as a store sends it: without what only the embedded document says.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedDocument {
    /// Its number.
    pub number: u64,
    /// The digest that the store says it has.
    pub digest: Box<str>,
    /// The reply with it. [`config`](Self::config) parses it, because that takes too long between
    /// two requests. `None`: no document is published any more.
    reply: Option<Box<[u8]>>,
}

impl PublishedDocument {
    /// The last one was withdrawn, as this number.
    pub fn none(number: u64) -> Self {
        Self { number, digest: Box::default(), reply: None }
    }

    /// Its number and its digest.
    pub(crate) fn version(&self) -> DocumentVersion {
        DocumentVersion { number: self.number, digest: self.digest.to_string() }
    }

    /// The document of a [reply](Self::reply), if it has one.
    ///
    /// # Errors
    /// If it is no reply.
    pub fn read(reply: &[u8]) -> serde_json::Result<Option<Self>> {
        let DocumentReply { number, digest, document } =
            serde_json::from_slice::<DocumentReply<IgnoredAny>>(reply)?;
        let digest = digest.into();
        Ok(document.map(|_| Self { number, digest, reply: Some(reply.into()) }))
    }

    #[cfg(test)]
    pub(crate) fn digest_of(document: &Value) -> String {
        digest::of(document).into()
    }

    /// The reply of the store, for [`read`](Self::read); empty if none is published any more.
    pub fn reply(&self) -> &[u8] {
        self.reply.as_deref().unwrap_or_default()
    }

    /// The document without what only the embedded one says, and its digest.
    ///
    /// # Errors
    /// All faults of the document, as a filter would report them, and each secret in clear.
    pub fn check(document: &Value) -> Result<(Value, Config), Faults> {
        let mut own = document.clone();
        if let Value::Object(members) = &mut own {
            members.retain(|name, _| !EMBEDDED.contains(&name.as_str()));
        }
        let bytes = own.to_string().len();
        if bytes > MAX_DOCUMENT {
            let text =
                format!("has {bytes} bytes, and a published document at most {MAX_DOCUMENT}");
            return Err(Faults::one(ROOT, text));
        }
        let mut whole = own.clone();
        if let Value::Object(members) = &mut whole {
            let store = document.get("store").cloned();
            members.insert("store".to_owned(), store.unwrap_or(json!({"cluster": "any"})));
        }
        let published = Collector::of_published();
        Ok((own, Config::collected(&envoy::unordered(whole), published)?))
    }

    /// The configuration that a filter makes of it whose embedded document is `embedded`: that one
    /// if none is published any more.
    ///
    /// # Errors
    /// All faults of the document, or that it is not the one that was published.
    pub fn config(&self, embedded: &Config) -> Result<Config, Faults> {
        let wrong = |path: &str, text: String| Err(Faults::one(path, text));
        let Some(live) = &embedded.live else {
            return wrong("live", "must be true in the embedded document".to_owned());
        };
        let Some(reply) = &self.reply else { return Ok(embedded.clone()) };
        let document = serde_json::from_slice::<DocumentReply<Value>>(reply);
        let document = document.map(|reply| reply.document.unwrap_or_default());
        let document =
            document.map_err(|error| Faults::one(ROOT, format!("is no JSON: {error}")))?;
        let found = digest::of(&document);
        if found != self.digest {
            return wrong(ROOT, format!("has the digest {found}, not {}", self.digest));
        }
        let Value::Object(mut members) = document else {
            return wrong(ROOT, "must be an object".to_owned());
        };
        if let Some(own) = EMBEDDED.iter().find(|name| members.contains_key(**name)) {
            return wrong(own, "must be left out: the embedded document decides it".to_owned());
        }
        if members.get("domain").and_then(Value::as_str) != Some(&embedded.domain) {
            return wrong("domain", format!("must be {}, as embedded", embedded.domain));
        }
        members.extend((*live.embedded).clone());
        // The digest knows no order, so two documents of one digest must mean the same.
        let config = Config::of(&envoy::unordered(Value::Object(members)))?;
        let live = LiveDocument { number: self.number, ..live.clone() };
        // That the embedded document was refused stays true, and reported.
        let (process, refused) = (embedded.process.clone(), embedded.refused.clone());
        Ok(Config { live: Some(live), process, refused, ..config })
    }
}

/// The indexes that the policies of one configuration have in another one. `None`: it has no such
/// policy.
pub(crate) type MovedPolicies = Arc<[Option<usize>]>;

impl Config {
    /// The number of the published document in force; 0 for the embedded one.
    pub fn number(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.number)
    }

    /// Whether the document says `live: true`.
    pub const fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// How often the worker has taken up another document. Policies have the same indexes in all
    /// configurations of one generation.
    pub fn generation(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.generation)
    }

    /// The index here of the policy that has this index in another configuration.
    #[cfg(test)]
    pub(crate) fn index_from(&self, other: &Self, index: usize) -> Option<usize> {
        let name = &other.policies.get(index)?.name;
        self.policies.iter().position(|policy| policy.name == *name)
    }

    /// The indexes here of the policies of another configuration.
    pub(crate) fn indexes_from(&self, other: &Self) -> MovedPolicies {
        let by_name = self.by_name();
        let index = |policy: &Policy| by_name.get(&*policy.name).map(|(index, _)| *index);
        other.policies.iter().map(index).collect()
    }

    /// The policies by name, with their indexes.
    pub(crate) fn by_name(&self) -> HashMap<&str, (usize, &Policy)> {
        let policies = self.policies.iter().enumerate();
        policies.map(|(index, policy)| (&*policy.name, (index, policy))).collect()
    }
}
