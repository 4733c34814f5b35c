//! The configuration of the filter: read from JSON once, after which it needs no more checks.
//!
//! All faults of a text are found in one pass, each with its JSON path; nothing is silently ignored. What is
//! allowed and probably not what was meant is a warning.
//!
//! Envoy turns the YAML of its own configuration into JSON first, and three of its habits are allowed for:
//! integers above 2^31 - 1 and numbers with a fraction arrive as strings, and a bare `off` as `false`.

mod conditions;
mod counting;
mod denied;
mod dialed;
mod duration;
mod facts;
mod fault;
mod identities;
mod json;
mod names;
mod object;
mod overrides;
mod policies;
mod policy;
mod quotas;
mod reader;
mod response;
#[cfg(feature = "schema")]
pub mod schema;
mod store;
mod suggest;
mod template;
mod text;
mod warnings;

pub use denied::Denied;
pub use dialed::Turned;
pub use fault::{Fault, Faults, element_path, member_path};
pub use policy::{Abandoned, Answers, Count, Policy, Precision};
pub use response::{Family, Reset, ResponseConfig};
pub use store::StoreConfig;
pub use template::{Piece, Template};

use crate::request::key::Digester;
use policies::Context;
use reader::{Collector, Names, Node};

/// A configuration that can be served. A copy shares what is large.
#[derive(Clone, Debug)]
pub struct Config {
    /// The first part of every counter key, `[a-z0-9._-]{1,64}`.
    pub domain: Box<str>,
    /// How the store is reached, and what happens when it is not.
    pub store: StoreConfig,
    /// All policies, in the order of the text; those with `mode: off` apply to no request.
    pub policies: Vec<Policy>,
    /// What responses carry.
    pub response: ResponseConfig,
    pub(crate) digester: Digester,
    warnings: Box<[Fault]>,
}

/// Most policies of a configuration.
pub const MAX_POLICIES: usize = 64;
/// Most identities of a configuration.
pub const MAX_IDENTITIES: usize = 64;
/// Most sources of an identity.
pub const MAX_SOURCES: usize = 16;
/// Most entries of a policy's `partition_by`.
pub const MAX_PARTITION_BY: usize = 16;

impl Config {
    /// Reads a configuration from JSON, or from the serialized `google.protobuf.Struct` that Envoy passes on.
    ///
    /// # Errors
    /// All faults of the text.
    pub fn parse(text: &[u8]) -> Result<Self, Faults> {
        let value = text::read(text).map_err(|e| Faults::one(reader::ROOT, format!("must be JSON: {e}")))?;
        let collector = Collector::default();
        let config = parse(&Node::root(&value, &collector));
        let (config, warnings) = collector.finish(config)?;
        Ok(Self { warnings, ..config })
    }

    /// What of it is allowed and probably not what was meant.
    pub fn warnings(&self) -> &[Fault] {
        &self.warnings
    }
}

/// `None` only where a fault was recorded.
fn parse(root: &Node<'_>) -> Option<Config> {
    let mut object = root.object()?;
    let domain = object.required("domain", |n| n.name(DOMAIN));
    let store = object.required("store", store::parse);
    let digest_key = object.optional("digest_key", |n| digest_key(n).map(Some), || None);
    let keyed = digest_key != Some(None);
    let identities = object.optional(
        "identities",
        |n| {
            let identities = identities::parse(n)?;
            warnings::identities(n, &identities, keyed);
            Some(identities)
        },
        Default::default,
    );
    let digester = domain.zip(digest_key).map(|(domain, key)| match key {
        Some(key) => Digester::keyed(key.as_bytes()),
        None => Digester::derived(domain),
    });
    let context = Context {
        domain,
        identities: identities.as_ref(),
        store: store.as_ref(),
        digester: digester.as_ref(),
    };
    let policies = object.required("policies", |n| policies::parse(n, context));
    let response = object.optional("response", response::parse, ResponseConfig::default);
    if let (Some(identities), Some(policies)) = (&identities, &policies) {
        warnings::unused_identities(&object.field("identities"), identities, policies);
    }
    if let (Some(store), Some(policies)) = (&store, &policies) {
        warnings::local_share(&object.field("store"), store, policies);
    }
    object.finish();

    Some(Config {
        domain: domain?.into(),
        store: store?,
        policies: policies?,
        response: response?,
        digester: digester?,
        warnings: Box::default(),
    })
}

fn digest_key<'a>(node: &Node<'a>) -> Option<&'a str> {
    let key = node.text()?;
    warnings::digest_key(node, key);
    Some(key)
}

/// Whether a policy could have this name.
pub(crate) fn is_policy_name(text: &str) -> bool {
    policies::NAME.accept(text)
}

const DOMAIN: Names = Names {
    allowed: |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b),
    pattern: "[a-z0-9._-]{1,64}",
};
