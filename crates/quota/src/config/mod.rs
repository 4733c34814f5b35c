//! The configuration of the filter, read from JSON once and then valid without further checks.
//!
//! The reader finds all faults of a text in one pass, each with its JSON path, and ignores nothing
//! silently. Warnings are about values that are allowed but probably not what was meant. The
//! objects and their fields are declared with the macros of the module `document`, next to
//! the types that they are read into.
//!
//! Envoy first converts the YAML of its own configuration to JSON. So the reader also accepts three
//! forms that Envoy produces: integers above 2^31 - 1 and numbers with a fraction as strings, and a
//! bare `off` as `false`.

mod access_log;
mod continuity;
mod denied;
mod dialed;
mod digest;
mod hosted;
mod identities;
mod inherited;
mod policy;
mod published;
mod reach;
mod response;
mod route;
#[cfg(feature = "schema")]
pub mod schema;
mod store;
mod template;
mod time;
mod warnings;
mod wrong;

pub use crate::request::index::MAX_POLICIES;
pub use access_log::LogField;
pub use continuity::{CounterContinuity, CounterPart};
pub use denied::Denied;
pub use dialed::Dialed;
pub use hosted::HostedPolicy;
pub use inherited::{INHERITED_SLOTS, Inheritance};
pub use policy::measure::{Measure, TokenUsage, Weights};
pub(crate) use policy::settle::{CostSource, MissingCost, Settle};
pub use policy::{Abandoned, Count, CountedResponses, Policy, Precision};
pub(crate) use policy::{integer, push_item, push_slots_item};
pub(crate) use published::MovedPolicies;
pub use published::{LiveDocument, PublishedDocument};
pub use reach::{ClusterStore, DEFAULT_PREFIX, Reach, RedisStore};
pub use response::{HeaderFamily, Reset, ResponseConfig};
pub use route::PerRoute;
pub use store::StoreConfig;
pub use template::{Piece, Template};
pub(crate) use wrong::refused_document;
pub use wrong::{DocumentOwner, GoodDocuments, MAX_GOOD_DOCUMENTS, OnWrongDocument, WrongDocument};

use std::sync::Arc;

use quotagate_protocol::Mode;
use quotagate_protocol::dials::RefusedDocument;

pub use crate::document::fault::{Fault, Faults, element_path, member_path};

use crate::document::names::Names;
use crate::document::{At, Boolean, Collector, Node, NonEmpty, ROOT, Type, envoy, object};
use crate::request::allowance::Cost;
use crate::request::facts::SharedIdentities;
use crate::request::index::Index;
use crate::request::key::Digester;
use access_log::LogFields;
use identities::IdentityMap;
use policy::document::{Context, Policies};
use response::Response;
use serde_json::Value;
use store::Store;

/// A valid configuration. A copy shares the large parts.
///
/// ```
/// use quotagate_quota::config::Config;
///
/// let text = br#"{
///     "domain": "shop",
///     "store": {"cluster": "quota_store"},
///     "policies": [{"name": "everybody", "partition_by": [], "quota": 100, "window": "1m"}]
/// }"#;
/// let config = Config::parse(text)?;
/// assert_eq!(config.policies[0].quota, 100);
///
/// let faults = Config::parse(br#"{"domain": "Shop", "polcies": []}"#).unwrap_err();
/// let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
/// assert_eq!(faults, [
///     r#"domain: must match [a-z0-9._-]{1,64}, is "Shop""#,
///     "store: is required",
///     "policies: is required",
///     r#"polcies: unknown field: did you mean "policies"?"#,
/// ]);
/// # Ok::<(), quotagate_quota::config::Faults>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// The first part of every counter key, `[a-z0-9._-]{1,64}`.
    pub domain: Box<str>,
    /// How the filter reaches the store, and what happens if it cannot.
    pub store: StoreConfig,
    /// All policies, in the order of the document. Those with `mode: off` apply to no request.
    pub policies: Vec<Policy>,
    /// What responses carry.
    pub response: ResponseConfig,
    /// The fields that the filter writes for access logs.
    pub access_log: Box<[LogField]>,
    pub(crate) digester: Digester,
    /// Whether a policy marks requests, by the document or by a dial. If so, no request may bring
    /// the mark along.
    pub marks: bool,
    /// Whether a policy limits how many requests run at once.
    pub(crate) has_slots: bool,
    /// Finds the policies of a request. Matchers never change.
    pub(crate) index: Arc<Index>,
    /// The identities whose values are remembered for the next policy.
    pub(crate) shared_identities: SharedIdentities,
    /// What happens if the document has faults.
    pub on_wrong_document: OnWrongDocument,
    /// Whether published documents replace the embedded one, and which one did.
    pub live: Option<LiveDocument>,
    /// The digest of what the document says, for reports. Empty without a document.
    pub digest: Box<str>,
    /// The process in which it is in force, for reports, as the adapter names it. Empty: unnamed.
    pub process: Box<str>,
    /// The document that was refused, if this configuration is in force in its place.
    pub refused: Option<RefusedDocument>,
    warnings: Box<[Fault]>,
}

/// The most identities of a configuration.
pub const MAX_IDENTITIES: usize = 64;
const _: () = assert!(MAX_IDENTITIES <= SharedIdentities::MAX, "each has a bit");
/// The most entries of a policy's `partition_by`.
pub const MAX_PARTITION_BY: usize = 16;

object! {
    /// Quotas for Envoy: who is counted, how many units in which window, and what clients see.
    Document(DocumentFields<'a>) -> Config {
        /// The first part of every counter key. Proxies of one domain share their counters.
        required domain: Domain = "shop",
        /// How the filter reaches the store of the counters.
        required store: Store = {"cluster": "quota_store"},
        /// The key of the digests that stand for secret values. Without it the key follows from the
        /// domain, so anyone who knows the domain can try out short or guessable secrets.
        optional digest_key: At<NonEmpty>,
        /// Who is calling: named lists of sources. Of each list the first source that has a value
        /// wins.
        default({}) identities: IdentityMap = {"caller": [{"jwt": {"claim": "sub"}}, {"client_ip": {}}]},
        /// The quota rules. Several may apply to one request, which is admitted only if all of them
        /// grant it.
        required policies: Policies =
            [{"name": "per-caller", "partition_by": ["caller"], "quota": 100, "window": "1m"}],
        /// The fields that the filter writes for access logs. List those that your log format
        /// reads: each one costs every request a call to Envoy.
        default([]) access_log: LogFields = ["decision", "used"],
        /// What clients see.
        default({}) response: Response = {"headers": ["draft_03"]},
        /// What happens if this document has faults. It is read on its own, like `domain` and
        /// `store.on_failure`, even if nothing else can be read.
        default("keep") on_wrong_document: OnWrongDocument = "reject",
        /// Whether the document that operators publish for this domain (`quotagate document
        /// publish`) replaces this one, without an update of the listener. `domain`, `store`,
        /// `digest_key` and `live` stay those of this document, which decides until a published
        /// one has come.
        default(false) live: Boolean = true,
    }
}

impl Config {
    /// Reads a configuration from JSON, or from the serialized `google.protobuf.Struct` that Envoy
    /// passes on.
    ///
    /// # Errors
    /// All faults of the text.
    pub fn parse(text: &[u8]) -> Result<Self, Faults> {
        let value = read(text)?;
        // Published documents replace a live one, and they have no order.
        let is_live = value.get("live") == Some(&Value::Bool(true));
        Self::of(&if is_live { envoy::unordered(value) } else { value })
    }

    /// The same for a host that may have made the JSON of a `google.protobuf.Struct`. Its members
    /// have no order, so the largest quota of a caller's tiers counts.
    ///
    /// # Errors
    /// All faults of the text.
    pub fn parse_unordered(text: &[u8]) -> Result<Self, Faults> {
        Self::of(&envoy::unordered(read(text)?))
    }

    /// Reads a document that is published through a store: a secret in clear is a fault.
    ///
    /// # Errors
    /// All faults of the text.
    pub fn parse_published(text: &[u8]) -> Result<Self, Faults> {
        Self::collected(&read(text)?, Collector::of_published())
    }

    fn of(value: &Value) -> Result<Self, Faults> {
        Self::collected(value, Collector::default())
    }

    fn collected(value: &Value, collector: Collector) -> Result<Self, Faults> {
        let config = Document::read(&Node::root(value, &collector));
        let (config, warnings) = collector.finish(config)?;
        let live = config.live.and_then(|_| LiveDocument::of(value));
        Ok(Self { warnings, live, digest: digest::of(value), ..config })
    }

    /// Warnings about values that are allowed but probably not what was meant.
    pub fn warnings(&self) -> &[Fault] {
        &self.warnings
    }
}

impl Config {
    /// Whether a policy reads the bodies of requests.
    pub fn reads_request_bodies(&self) -> bool {
        self.policies.iter().any(|policy| matches!(*policy.cost, Cost::RequestJson { .. }))
    }

    /// Whether a policy reads the bodies of responses.
    pub fn reads_response_bodies(&self) -> bool {
        let mut settles = self.policies.iter().filter_map(|policy| policy.settle.as_ref());
        settles.any(|settle| settle.reads_body())
    }

    /// The paths of the sources of a real cost that are members of metadata below the first level.
    pub fn nested_metadata_of_responses(&self) -> Vec<String> {
        let settles = self.policies.iter().enumerate();
        let settles = settles.filter_map(|(i, policy)| Some((i, policy.settle.as_ref()?)));
        let paths = settles.flat_map(|(i, settle)| {
            settle
                .nested_metadata()
                .map(move |source| format!("policies[{i}].cost.settle[{source}].metadata.path"))
        });
        paths.collect()
    }
}

/// Reads JSON, or the serialized `google.protobuf.Struct` that Envoy passes on.
fn read(text: &[u8]) -> Result<Value, Faults> {
    envoy::read(text).map_err(|e| Faults::one(ROOT, format!("must be JSON: {e}")))
}

impl DocumentFields<'_> {
    fn build(self) -> Option<Config> {
        if let Some(Some((key, at))) = &self.digest_key {
            warnings::digest_key(at, key);
        }
        let key = self.digest_key.as_ref().map(|given| given.as_ref().map(|(key, _)| *key));
        let digester = self.domain.zip(key).map(|(domain, key)| match key {
            Some(key) => Digester::keyed(key.as_bytes()),
            None => Digester::derived(domain),
        });
        if let Some(named) = &self.identities {
            warnings::identities(named, key != Some(None));
        }
        let nodes: Vec<_> = self
            .identities
            .iter()
            .flatten()
            .map(|named| (named.name, named.node.clone()))
            .collect();
        let identities = self.identities.map(identities::by_name);
        let context = Context {
            domain: self.domain,
            identities: identities.as_ref(),
            store: self.store.as_ref(),
            digester: digester.as_ref(),
        };
        let policies =
            self.policies.and_then(|policies| policy::document::resolve(policies, context));
        if let (Some(identities), Some(policies)) = (&identities, &policies) {
            warnings::unused_identities(&nodes, identities, policies);
            warnings::invented_identities(&nodes, identities, policies);
            warnings::secrets_in_match(&self.node.field("policies"), identities, policies);
        }
        if let (Some(store), Some(policies)) = (&self.store, &policies) {
            warnings::local_share(&self.node.field("store"), store, policies);
        }
        Some(Config {
            domain: self.domain?.into(),
            store: self.store?,
            index: Arc::new(Index::new(policies.iter().flatten().map(|policy| &*policy.matcher))),
            shared_identities: SharedIdentities::of(
                policies.iter().flatten().flat_map(|policy| policy.partition.identities()),
            ),
            marks: policies.iter().flatten().any(|policy| policy.mode == Mode::Mark),
            has_slots: policies.iter().flatten().any(Policy::is_slots),
            policies: policies?,
            response: self.response?,
            access_log: self.access_log?.into(),
            digester: digester?,
            on_wrong_document: self.on_wrong_document?,
            live: self.live?.then(LiveDocument::default),
            digest: Box::default(),
            process: Box::default(),
            refused: None,
            warnings: Box::default(),
        })
    }
}

const DOMAIN: Names = Names {
    most: 64,
    allowed: |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b),
    pattern: "[a-z0-9._-]{1,64}",
};

/// The name of a domain.
enum Domain {}

impl Type for Domain {
    type Out<'a> = &'a str;

    fn read<'a>(node: &Node<'a>) -> Option<&'a str> {
        DOMAIN.read(node)
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        DOMAIN.schema()
    }
}
