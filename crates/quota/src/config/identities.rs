//! The object `identities`: names, and for each its sources in their order.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::MAX_IDENTITIES;
use crate::document::names::Names;
use crate::document::{At, List, Map, Node, Type};
use crate::request::facts::IdentityId;
use crate::request::identity::Identity;
use crate::request::partition::BuiltIn;
use crate::request::source::{AnySource, IdentitySource};

/// The most sources of an identity.
const MAX_SOURCES: usize = 16;

/// The identities by name. `None` means that the identity has a fault.
pub(super) type Identities<'a> = BTreeMap<&'a str, Option<Arc<Identity>>>;

/// The identities of a document.
pub(super) enum IdentityMap {}

/// An identity as it was read.
pub(super) struct NamedIdentity<'a> {
    pub(super) name: &'a str,
    pub(super) node: Node<'a>,
    /// `None` if a source has a fault.
    pub(super) sources: Option<Vec<(IdentitySource, Node<'a>)>>,
}

const NAME: Names = Names {
    most: 64,
    allowed: |b| b.is_ascii_alphanumeric() || b"._-".contains(&b),
    pattern: "[A-Za-z0-9._-]{1,64}",
};

type Sources = List<At<AnySource>, 1, MAX_SOURCES>;

impl Type for IdentityMap {
    type Out<'a> = Vec<NamedIdentity<'a>>;

    fn read<'a>(node: &Node<'a>) -> Option<Vec<NamedIdentity<'a>>> {
        let members = Map::<Sources, MAX_IDENTITIES>::read(node)?.into_iter();
        let named = members.map(|(name, node, sources)| {
            if !NAME.accept(name) {
                node.fault(format!("the name must match {}", NAME.pattern));
            }
            if BuiltIn::ALL.iter().any(|fact| fact.name() == name) {
                node.fault(format!(
                    "{name} is taken: partition_by means the request's own {name} by it"
                ));
            }
            NamedIdentity { name, node, sources }
        });
        Some(named.collect())
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut crate::document::book::Book) -> serde_json::Value {
        let mut schema = Map::<Sources, MAX_IDENTITIES>::schema(book);
        let mut names = NAME.schema();
        crate::document::book::set(
            &mut names,
            "not",
            serde_json::json!({"enum": BuiltIn::ALL.map(BuiltIn::name)}),
        );
        crate::document::book::set(&mut schema, "propertyNames", names);
        schema
    }
}

/// The identities that policies refer to.
pub(super) fn by_name<'a>(named: Vec<NamedIdentity<'a>>) -> Identities<'a> {
    // 0 after the last bit: further identities are not watched.
    let mut bit = 1_u64;
    let mut identity = |index, NamedIdentity { name, sources, .. }: NamedIdentity<'a>| {
        let sources: Vec<IdentitySource> = sources?.into_iter().map(|(source, _)| source).collect();
        let mut token = 0;
        if sources.iter().any(IdentitySource::reads_token) {
            (token, bit) = (bit, bit << 1);
        }
        Some(Arc::new(Identity { id: IdentityId(index), name: name.into(), sources, token }))
    };
    let named = named.into_iter().enumerate();
    named.map(|(index, named)| (named.name, identity(index, named))).collect()
}
