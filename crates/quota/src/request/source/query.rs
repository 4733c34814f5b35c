//! The source `query`: a parameter of the query string.

use super::{IdentitySource, Kind, as_typed, typed_name};
use crate::document::names::MAX_NAME;
use crate::document::{Boolean, Text, Type, object};
use crate::request::fact::{Fact, Found, LookUp};
use crate::request::facts::Facts;
use crate::request::key::{self, Secrecy};

pub(super) static KIND: Kind = Kind {
    name: "query",
    #[cfg(feature = "schema")]
    doc: "A parameter of the query string. A client that can invent values gets a fresh quota with each of them.",
    #[cfg(feature = "schema")]
    example: r#"{"name": "api_key", "secret": true}"#,
    is_written_by_client: true,
    is_often_secret: true,
    read: Query::read,
    #[cfg(feature = "schema")]
    schema: Query::schema,
    verified: None,
    labels: "query.<name>",
    label: |typed| Some(key::label("query", &typed_name("query", typed)?).into()),
    spell: as_typed,
};

object! {
    /// A parameter of the query string.
    Query(QueryFields<'a>) -> IdentitySource {
        /// The name of the parameter after decoding. Case matters.
        required name: Text<MAX_NAME> = "api_key",
        /// Whether only a keyed digest of the value leaves the filter.
        default(false) secret: Boolean = true,
    }
}

impl QueryFields<'_> {
    fn build(self) -> Option<IdentitySource> {
        let name = self.name?;
        Some(KIND.one(Fact {
            label: key::label("query", name),
            value_type: None,
            secrecy: Secrecy::of(self.secret?),
            lookup: Box::new(ParameterValue(name.into())),
        }))
    }
}

/// The parameter of this name, decoded.
#[derive(Debug)]
struct ParameterValue(Box<str>);

impl LookUp for ParameterValue {
    fn look_up<'c>(&'c self, facts: &Facts<'c>) -> Found<'c> {
        Found::only(facts.parameter(&self.0).iter().cloned())
    }
}
