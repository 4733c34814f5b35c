//! The source `cookie`: a cookie.

use super::{IdentitySource, Kind, as_typed, typed_name};
use crate::document::names::{MAX_NAME, is_short_token};
use crate::document::{Boolean, Node, Type, object};
use crate::request::fact::{Fact, Found, LookUp};
use crate::request::facts::Facts;
use crate::request::key::{self, Secrecy};
use crate::request::pairs;

pub(super) static KIND: Kind = Kind {
    name: "cookie",
    #[cfg(feature = "schema")]
    doc: "A cookie. A client that can invent values gets a fresh quota with each of them.",
    #[cfg(feature = "schema")]
    example: r#"{"name": "session", "secret": true}"#,
    is_written_by_client: true,
    is_often_secret: true,
    read: Cookie::read,
    #[cfg(feature = "schema")]
    schema: Cookie::schema,
    verified: None,
    labels: "cookie.<name>",
    label: |typed| Some(key::label("cookie", &typed_name("cookie", typed)?).into()),
    spell: as_typed,
};

object! {
    /// A cookie.
    Cookie(CookieFields<'a>) -> IdentitySource {
        /// The name of the cookie. Case matters.
        required name: CookieName = "session",
        /// Whether only a keyed digest of the value leaves the filter.
        default(false) secret: Boolean = true,
    }
}

impl CookieFields<'_> {
    fn build(self) -> Option<IdentitySource> {
        let name = self.name?;
        Some(KIND.one(Fact {
            label: key::label("cookie", name),
            value_type: None,
            secrecy: Secrecy::of(self.secret?),
            lookup: Box::new(CookieValue(name.into())),
        }))
    }
}

/// The cookie of this name.
#[derive(Debug)]
struct CookieValue(Box<str>);

impl LookUp for CookieValue {
    fn look_up<'c>(&'c self, facts: &Facts<'c>) -> Found<'c> {
        Found::only(pairs::cookies(facts.header("cookie").as_slice(), self.0.as_bytes()))
    }
}

/// The name of a cookie.
pub(crate) enum CookieName {}

impl Type for CookieName {
    type Out<'a> = &'a str;

    fn read<'a>(node: &Node<'a>) -> Option<&'a str> {
        let name = node.string()?;
        if is_short_token(name) {
            return Some(name);
        }
        node.fault(format!(
            "must be a cookie name of at most {MAX_NAME} bytes, is {name:?}: letters, digits and any of \
             !#$%&'*+-.^_`|~"
        ));
        None
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        let pattern = crate::document::names::TOKEN;
        serde_json::json!({"type": "string", "pattern": pattern, "maxLength": MAX_NAME})
    }
}
