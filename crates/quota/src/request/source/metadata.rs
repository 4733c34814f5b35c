//! The source `metadata`: what other filters left in the request's dynamic metadata.

use super::{Kind, Verified, as_typed, path_label};
use crate::document::names::MAX_NAME;
use crate::document::{List, Node, Text, Type, object};
use crate::request::fact::{self, Fact, FactBytes, Found, LookUp, ValueType};
use crate::request::facts::Facts;
use crate::request::key::{self, Secrecy};

/// The deepest member of metadata.
pub(crate) const MAX_DEPTH: usize = 16;

pub(super) static KIND: Kind = Kind {
    name: "metadata",
    #[cfg(feature = "schema")]
    doc: "A value of the request's dynamic metadata, as far as the filter that wrote it can be trusted.",
    #[cfg(feature = "schema")]
    example: r#"{"filter": "envoy.filters.http.ext_authz", "path": ["user"]}"#,
    is_written_by_client: false,
    is_often_secret: false,
    read: |node| read(node, ValueType::Text).map(|fact| KIND.one(fact)),
    #[cfg(feature = "schema")]
    schema: Metadata::schema,
    verified: Some(Verified {
        read,
        #[cfg(feature = "schema")]
        schema: Metadata::schema,
    }),
    labels: "metadata.<filter>.<path>",
    label: |typed| path_label("metadata", typed.strip_prefix("metadata.")?),
    spell: as_typed,
};

object! {
    /// A value of the request's dynamic metadata.
    Metadata(MetadataFields<'a>) -> (&'a str, Vec<&'a str>, Option<ValueType>) {
        /// The namespace, which is mostly the name of the filter that wrote it.
        required filter: MetadataName = "envoy.filters.http.ext_authz",
        /// The names that lead to the value. An element of a list is named by its index: `groups`,
        /// then `0`.
        required path: List<MetadataName, 1, MAX_DEPTH> = ["user", "id"],
        /// The type of the value. A value of another type counts as missing. Left out, it is
        /// `number` in `quota_from` and `string` elsewhere.
        optional r#type: ValueType = "string",
    }
}

impl<'a> MetadataFields<'a> {
    fn build(self) -> Option<(&'a str, Vec<&'a str>, Option<ValueType>)> {
        Some((self.filter?, self.path?, self.r#type?))
    }
}

fn read(node: &Node<'_>, default: ValueType) -> Option<Fact> {
    let (filter, path, value_type) = Metadata::read(node)?;
    let value_type = value_type.unwrap_or(default);
    Some(Fact {
        label: key::path_label("metadata", std::iter::once(filter).chain(path.iter().copied())),
        value_type: Some(value_type),
        secrecy: Secrecy::Plain,
        lookup: Box::new(MetadataValue {
            filter: filter.into(),
            path: path.into_iter().map(Box::from).collect(),
            value_type,
        }),
    })
}

/// A member of dynamic metadata, such as a verified claim.
#[derive(Debug)]
pub(super) struct MetadataValue {
    /// The name of the filter that wrote it.
    pub(super) filter: Box<str>,
    /// From the outermost member inwards.
    pub(super) path: Box<[Box<str>]>,
    /// The type that the value must have.
    pub(super) value_type: ValueType,
}

impl LookUp for MetadataValue {
    fn look_up<'c>(&'c self, facts: &Facts<'c>) -> Found<'c> {
        let raw = facts.metadata(&self.filter, &self.path);
        let value = raw.and_then(|raw| self.value_type.text(&raw));
        value.map_or(Found::Missing, |value| Found::Value(value.into()))
    }

    fn number<'c>(&'c self, facts: &Facts<'c>) -> Option<f64> {
        facts.metadata(&self.filter, &self.path).and_then(|raw| fact::number(&raw))
    }

    fn look_up_all<'c>(&'c self, facts: &Facts<'c>) -> Vec<FactBytes<'c>> {
        if let Found::Value(value) = self.look_up(facts) {
            return vec![value];
        }
        let elements = facts.elements(&self.filter, &self.path);
        elements.iter().filter_map(|raw| Some(self.value_type.text(raw)?.into())).collect()
    }
}

/// The name of a member of metadata. The host separates names by NUL.
pub(crate) enum MetadataName {}

impl Type for MetadataName {
    type Out<'a> = &'a str;

    fn read<'a>(node: &Node<'a>) -> Option<&'a str> {
        let name = Text::<MAX_NAME>::read(node)?;
        if name.bytes().any(|b| b.is_ascii_control()) {
            node.fault(format!("must be without control characters, is {name:?}"));
            return None;
        }
        Some(name)
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        serde_json::json!({"type": "string", "pattern": r"^[^\u0000-\u001f\u007f]{1,128}$"})
    }
}
