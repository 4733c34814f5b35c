//! The source `header`: a request header.

use super::{IdentitySource, Kind, typed_name};
use crate::document::names::{MAX_NAME, is_short_token};
use crate::document::{Boolean, Node, Type, object};
use crate::request::fact::{Fact, Found, LookUp};
use crate::request::facts::Facts;
use crate::request::key::{self, Secrecy};
use crate::request::{credentials, spell_header};

pub(super) static KIND: Kind = Kind {
    name: "header",
    #[cfg(feature = "schema")]
    doc: "A request header. A client that can invent values gets a fresh quota with each of them.",
    #[cfg(feature = "schema")]
    example: r#"{"name": "x-api-key", "secret": true}"#,
    is_written_by_client: true,
    is_often_secret: true,
    read: Header::read,
    #[cfg(feature = "schema")]
    schema: Header::schema,
    verified: None,
    labels: "header.<name>",
    label: |typed| {
        Some(key::label("header", &typed_name("header", typed)?.to_ascii_lowercase()).into())
    },
    spell: |label, value| Ok(spelled(label.strip_prefix("header.").unwrap_or_default(), value)),
};

object! {
    /// A request header.
    Header(HeaderFields<'a>) -> IdentitySource {
        /// The name of the header, in any case.
        required name: HeaderName = "x-api-key",
        /// Whether only a keyed digest of the value leaves the filter.
        default(false) secret: Boolean = true,
    }
}

impl HeaderFields<'_> {
    fn build(self) -> Option<IdentitySource> {
        let name = self.name?;
        Some(KIND.one(Fact {
            label: key::label("header", &name),
            value_type: None,
            secrecy: Secrecy::of(self.secret?),
            lookup: Box::new(HeaderSource(name.into())),
        }))
    }
}

/// The header of this lower-case name.
#[derive(Debug)]
struct HeaderSource(Box<str>);

impl LookUp for HeaderSource {
    fn look_up<'c>(&'c self, facts: &Facts<'c>) -> Found<'c> {
        let values = facts.header(&self.0);
        if credentials::are_ambiguous(&self.0, values.as_slice()) {
            return Found::Ambiguous;
        }
        Found::only(values.into_iter())
    }

    fn spell(&self, raw: &[u8]) -> Result<Vec<u8>, &'static str> {
        Ok(spelled(&self.0, raw.to_vec()))
    }
}

/// A value that a person wrote for the header `name`, as requests have it.
fn spelled(name: &str, value: Vec<u8>) -> Vec<u8> {
    let mut value = value.into();
    spell_header(name, &mut value);
    value.into_owned()
}

/// The name of a header, in lower case.
pub(crate) enum HeaderName {}

impl Type for HeaderName {
    type Out<'a> = String;

    fn read(node: &Node<'_>) -> Option<String> {
        let name = node.string()?.to_ascii_lowercase();
        let instead = match name.as_str() {
            ":path" => "match has path for it, and partition_by the name path",
            ":method" => "match has methods for it, and partition_by the name method",
            ":authority" | "host" => "match has hosts for it, and partition_by the name host",
            name if is_short_token(name) => return Some(name.to_owned()),
            _ => "letters, digits and any of !#$%&'*+-.^_`|~",
        };
        node.fault(format!(
            "must be a header name of at most {MAX_NAME} bytes, is {name:?}: {instead}"
        ));
        None
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        let pattern = "^(?![Hh][Oo][Ss][Tt]$)[!#$%&'*+.^_`|~0-9A-Za-z-]+$";
        serde_json::json!({"type": "string", "pattern": pattern, "maxLength": MAX_NAME})
    }
}
