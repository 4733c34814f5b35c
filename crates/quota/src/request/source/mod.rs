//! The sources of identities: where a request says who is calling.
//!
//! Each kind of source is one file with everything about it: how the document writes it, what its
//! label in a key is, how its value is looked up, and its documentation. A new kind is one file and
//! one line of [`ALL`].

mod client_ip;
mod cookie;
pub(crate) mod header;
mod jwt;
pub(crate) mod metadata;
mod peer;
mod query;
mod sni;

#[cfg(test)]
pub(crate) use jwt::JWT_AUTHN;

#[cfg(feature = "schema")]
use crate::document::book::{Book, FieldDoc, ObjectDoc, Presence, prose};
#[cfg(feature = "schema")]
use serde_json::Value;

use super::fact::{Fact, ValueType};
use super::key::{self, Secrecy};
use super::percent;
use crate::document::{Group, Node, Object, Type, suggest};

/// All kinds of sources, in the order of messages and of the reference.
pub(crate) static ALL: [&Kind; 8] = [
    &jwt::KIND,
    &metadata::KIND,
    &peer::KIND,
    &client_ip::KIND,
    &header::KIND,
    &cookie::KIND,
    &query::KIND,
    &sni::KIND,
];

/// A kind of sources.
#[derive(Debug)]
pub(crate) struct Kind {
    /// The field of the document that holds such a source.
    pub(crate) name: &'static str,
    /// What it reads.
    #[cfg(feature = "schema")]
    pub(crate) doc: &'static str,
    /// A usual source of this kind, as JSON.
    #[cfg(feature = "schema")]
    pub(crate) example: &'static str,
    /// Whether any client can make up a value, or leave it out.
    pub(crate) is_written_by_client: bool,
    /// Whether its values are often secrets, such as API keys.
    pub(crate) is_often_secret: bool,
    /// Reads a source of this kind.
    pub(crate) read: fn(&Node<'_>) -> Option<IdentitySource>,
    /// The schema of [`read`](Self::read).
    #[cfg(feature = "schema")]
    pub(crate) schema: fn(&mut Book) -> Value,
    /// How to read one value that no client can write. `None` if clients can.
    pub(crate) verified: Option<Verified>,
    /// The labels that such sources write into keys, for people.
    pub(crate) labels: &'static str,
    /// The label that a person typed, encoded as in keys. `None` if no source of this kind writes
    /// it.
    pub(crate) label: fn(&str) -> Option<String>,
    /// A value that a person typed under an encoded label, as requests have it; or what it must be
    /// instead.
    pub(crate) spell: fn(&str, Vec<u8>) -> Result<Vec<u8>, &'static str>,
}

type VerifiedReader = fn(&Node<'_>, ValueType) -> Option<Fact>;

/// How a kind of sources reads one verified value.
#[derive(Debug)]
pub(crate) struct Verified {
    /// Reads it; the type of the value is the given one, unless the document names another.
    pub(crate) read: VerifiedReader,
    /// The schema of [`read`](Self::read).
    #[cfg(feature = "schema")]
    pub(crate) schema: fn(&mut Book) -> Value,
}

/// A source of an identity.
#[derive(Debug)]
pub(crate) struct IdentitySource {
    /// Its kind.
    pub(crate) kind: &'static Kind,
    /// The facts that name a caller together. A request must have all of them. Never empty.
    pub(crate) facts: Vec<Fact>,
}

impl Kind {
    /// A source of one fact.
    fn one(&'static self, fact: Fact) -> IdentitySource {
        IdentitySource { kind: self, facts: vec![fact] }
    }
}

impl IdentitySource {
    /// Whether the document says that its value is secret.
    pub(crate) fn is_secret(&self) -> bool {
        self.facts.iter().any(|fact| fact.secrecy == Secrecy::Secret)
    }

    /// Whether its value is a credential by its name, and the document does not say that it is
    /// secret.
    pub(crate) fn is_plain_credential(&self) -> bool {
        self.kind.is_often_secret
            && self.facts.iter().any(|fact| {
                let name = fact.label.split_once('.').map_or("", |(_, name)| name);
                fact.secrecy == Secrecy::Plain && is_credential(name)
            })
    }

    /// Whether it reads a verified token.
    pub(crate) fn reads_token(&self) -> bool {
        std::ptr::eq(self.kind, &raw const jwt::KIND)
    }
}

/// Whether a header, cookie or parameter of this name holds what lets its client in, such as
/// `X-Api-Key` or `PHPSESSID`, and not only `X-Token-Type`.
pub(crate) fn is_credential(name: &str) -> bool {
    const ENDS: [&str; 11] = [
        "accesskey",
        "apikey",
        "authorization",
        "password",
        "secret",
        "secretkey",
        "sessid",
        "session",
        "sessionid",
        "sessionkey",
        "token",
    ];
    let name = name.to_ascii_lowercase();
    // Without the number of a part, as in `session-token.0`.
    let letters: String = name.chars().filter(char::is_ascii_alphabetic).collect();
    ENDS.iter().any(|end| letters.ends_with(end))
        || letters.starts_with("aspsessionid")
        || name.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == "sid")
        || name == "cookie"
}

/// The kind of sources that writes this label.
pub(crate) fn kind_of_label(label: &str) -> Option<&'static Kind> {
    ALL.iter().copied().find(|kind| (kind.label)(label).is_some())
}

/// Exactly one source of any kind.
pub(crate) enum AnySource {}

/// Exactly one source that no client can write: a string, unless the source names another type.
pub(crate) enum VerifiedText {}

/// Exactly one source that no client can write: a number, unless the source names another type. If
/// it names none, the same source as a text comes along.
pub(crate) enum VerifiedNumber {}

impl Group for AnySource {
    type Out<'a> = IdentitySource;

    fn take(object: &mut Object<'_>) -> Option<IdentitySource> {
        let (name, node) = object.exactly_one(&ALL.each_ref().map(|kind| kind.name))?;
        let kind = ALL.iter().copied().find(|kind| kind.name == name)?;
        (kind.read)(&node)
    }

    #[cfg(feature = "schema")]
    fn fields(book: &mut Book) -> Vec<FieldDoc> {
        ALL.map(|kind| kind.field((kind.schema)(book))).into()
    }
}

impl Group for VerifiedText {
    type Out<'a> = Fact;

    fn take(object: &mut Object<'_>) -> Option<Fact> {
        take_verified(object, ValueType::Text)
    }

    #[cfg(feature = "schema")]
    fn fields(book: &mut Book) -> Vec<FieldDoc> {
        verified_fields(book)
    }
}

impl Group for VerifiedNumber {
    type Out<'a> = (Fact, Option<Fact>);

    fn take(object: &mut Object<'_>) -> Option<(Fact, Option<Fact>)> {
        let (read, node) = verified(object)?;
        let number = read(&node, ValueType::Number)?;
        if number.value_type != Some(ValueType::Number) {
            return Some((number, None));
        }
        let text = read(&node, ValueType::Text)?;
        let is_unnamed = text.value_type == Some(ValueType::Text);
        Some((number, is_unnamed.then_some(text)))
    }

    #[cfg(feature = "schema")]
    fn fields(book: &mut Book) -> Vec<FieldDoc> {
        verified_fields(book)
    }
}

impl Type for AnySource {
    type Out<'a> = IdentitySource;

    fn read(node: &Node<'_>) -> Option<IdentitySource> {
        alone(node, Self::take)
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut Book) -> Value {
        only::<Self>(book, "Source", "Where a value may come from that names a caller.")
    }
}

impl Type for VerifiedText {
    type Out<'a> = Fact;

    fn read(node: &Node<'_>) -> Option<Fact> {
        alone(node, Self::take)
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut Book) -> Value {
        only::<Self>(book, "VerifiedSource", "Where a value comes from that no client can write.")
    }
}

/// Reads an object that has nothing but the one field of a group.
fn alone<'a, T>(node: &Node<'a>, take: impl FnOnce(&mut Object<'a>) -> Option<T>) -> Option<T> {
    let mut object = Object::begin(node)?;
    let value = take(&mut object);
    object.finish();
    value
}

fn take_verified(object: &mut Object<'_>, default: ValueType) -> Option<Fact> {
    let (read, node) = verified(object)?;
    read(&node, default)
}

/// The one source that no client can write, and how to read it.
fn verified<'a>(object: &mut Object<'a>) -> Option<(VerifiedReader, Node<'a>)> {
    let others: Vec<_> =
        ALL.iter().filter(|kind| kind.verified.is_none()).map(|kind| kind.name).collect();
    let verified: Vec<_> =
        ALL.iter().filter(|kind| kind.verified.is_some()).map(|kind| kind.name).collect();
    let why = format!("must be {}: clients can write this one", suggest::alternatives(&verified));
    if object.refuse(&others, &why) {
        return None;
    }
    let (name, node) = object.exactly_one(&verified)?;
    let kind = ALL.iter().copied().find(|kind| kind.name == name)?;
    Some((kind.verified.as_ref()?.read, node))
}

#[cfg(feature = "schema")]
impl Kind {
    fn field(&self, schema: Value) -> FieldDoc {
        let example = serde_json::from_str(self.example).ok();
        FieldDoc {
            name: self.name,
            doc: prose(self.doc),
            schema,
            presence: Presence::Optional,
            example,
        }
    }
}

#[cfg(feature = "schema")]
fn verified_fields(book: &mut Book) -> Vec<FieldDoc> {
    let verified = ALL.iter().filter_map(|kind| Some((kind, kind.verified.as_ref()?)));
    verified.map(|(kind, verified)| kind.field((verified.schema)(book))).collect()
}

/// The schema of an object that has nothing but the fields of a group.
#[cfg(feature = "schema")]
fn only<G: Group>(book: &mut Book, name: &'static str, doc: &str) -> Value {
    book.object(name, doc, |book| {
        let mut object = ObjectDoc::default();
        object.group(G::fields(book));
        object
    })
}

/// The decoded name after `kind.` in a label that a person typed.
fn typed_name(kind: &str, typed: &str) -> Option<String> {
    let name = typed.strip_prefix(kind)?.strip_prefix('.').filter(|name| !name.is_empty())?;
    decoded(name)
}

/// The label `head.name.name`, encoded, of the names that a person typed.
fn path_label(head: &str, typed: &str) -> Option<String> {
    let decode = |name: &str| decoded(name).filter(|name| !name.is_empty());
    let names: Option<Vec<String>> = typed.split('.').map(decode).collect();
    Some(key::path_label(head, names?.iter().map(String::as_str)).into())
}

fn decoded(text: &str) -> Option<String> {
    String::from_utf8(percent::decode(text.as_bytes())).ok()
}

/// The spelling of values that are compared as they are.
#[allow(clippy::unnecessary_wraps, reason = "Other kinds refuse some texts")]
fn as_typed(_: &str, value: Vec<u8>) -> Result<Vec<u8>, &'static str> {
    Ok(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::document::Collector;

    #[test]
    fn verified_value_comes_from_a_token_a_filter_or_a_certificate() {
        for (source, label, value_type) in [
            (json!({"jwt": {"claim": "plan"}}), "jwt.plan", Some(ValueType::Number)),
            (
                json!({"jwt": {"claim": "plan", "type": "string"}}),
                "jwt.plan",
                Some(ValueType::Text),
            ),
            (
                json!({"metadata": {"filter": "f", "path": ["a"], "type": "boolean"}}),
                "metadata.f.a",
                Some(ValueType::Boolean),
            ),
            (json!({"peer": {"san": "dns"}}), "peer.dns", None),
        ] {
            let collector = Collector::default();
            let (fact, _) = alone(&Node::root(&source, &collector), VerifiedNumber::take).unwrap();
            assert_eq!((&*fact.label, fact.value_type), (label, value_type), "{source}");
        }
    }

    #[test]
    fn source_that_clients_can_write_is_not_verified() {
        for source in [
            json!({"header": {"name": "x-plan"}}),
            json!({"cookie": {"name": "plan"}}),
            json!({"query": {"name": "plan"}}),
            json!({"client_ip": {}}),
            json!({"sni": {}}),
            json!({"jwt": {"claim": "plan"}, "header": {"name": "x-plan"}}),
            json!({"jwt": {"claims": ["plan"]}}),
            json!({}),
        ] {
            let collector = Collector::default();
            let fact = VerifiedText::read(&Node::root(&source, &collector));
            assert!(fact.is_none(), "{source}");
        }
    }
}
