//! The source `sni`: the server name of the client's TLS handshake, for tenants by host name.

use std::borrow::Cow;

use super::{IdentitySource, Kind};
use crate::document::{Type, object};
use crate::request::fact::{Fact, Found, LookUp};
use crate::request::facts::Facts;
use crate::request::host;
use crate::request::key::Secrecy;

const LABEL: &str = "sni";

pub(super) static KIND: Kind = Kind {
    name: "sni",
    #[cfg(feature = "schema")]
    doc: "The server name that the client asked for in its TLS handshake, in lower case. Envoy reads it if the \
        listener has the filter `tls_inspector`. Connections without TLS have none. A client can ask for any name \
        that a filter chain accepts.",
    #[cfg(feature = "schema")]
    example: "{}",
    is_written_by_client: true,
    is_often_secret: false,
    read: Sni::read,
    #[cfg(feature = "schema")]
    schema: Sni::schema,
    verified: None,
    labels: LABEL,
    label: |typed| (typed == LABEL).then(|| typed.to_owned()),
    spell: |_, value| Ok(host::normalize(value.into()).into_owned()),
};

object! {
    /// The server name of the client's TLS handshake.
    Sni(SniFields<'a>) -> IdentitySource {}
}

impl SniFields<'_> {
    #[allow(clippy::unnecessary_wraps, reason = "Other sources may have faults")]
    fn build(self) -> Option<IdentitySource> {
        Some(KIND.one(Fact {
            label: LABEL.into(),
            value_type: None,
            secrecy: Secrecy::Plain,
            lookup: Box::new(ServerName),
        }))
    }
}

/// The server name, as hosts are compared.
#[derive(Debug)]
struct ServerName;

impl LookUp for ServerName {
    fn look_up<'c>(&'c self, facts: &Facts<'c>) -> Found<'c> {
        let name = facts.attribute(&["connection", "requested_server_name"]);
        Found::only(name.map(|name| host::normalize(Cow::Borrowed(&name)).into_owned()).into_iter())
    }

    fn spell(&self, raw: &[u8]) -> Result<Vec<u8>, &'static str> {
        Ok(host::normalize(raw.into()).into_owned())
    }
}
