//! The source `peer`: a name in the client's certificate.

use super::{Kind, Verified, as_typed};
use crate::document::{True, Type, one_of, words};
use crate::request::fact::{Attribute, Fact};
use crate::request::key::{self, Secrecy};

const LABELS: [&str; 3] = ["peer.uri", "peer.dns", "peer.subject"];

pub(super) static KIND: Kind = Kind {
    name: "peer",
    #[cfg(feature = "schema")]
    doc: "A name in the certificate that the client showed (mTLS). Envoy must verify the certificate.",
    #[cfg(feature = "schema")]
    example: r#"{"san": "uri"}"#,
    is_written_by_client: false,
    is_often_secret: false,
    read: |node| Peer::read(node).map(|fact| KIND.one(fact)),
    #[cfg(feature = "schema")]
    schema: Peer::schema,
    verified: Some(Verified {
        read: |node, _| Peer::read(node),
        #[cfg(feature = "schema")]
        schema: Peer::schema,
    }),
    labels: "peer.uri, peer.dns, peer.subject",
    label: |typed| LABELS.contains(&typed).then(|| typed.to_owned()),
    spell: as_typed,
};

one_of! {
    /// A name in the client's certificate.
    Peer<'a> -> Fact {
        /// The first subject alternative name of this kind.
        san: San = "uri" => |san| match san {
            San::Uri => fact("uri", &["connection", "uri_san_peer_certificate"]),
            San::Dns => fact("dns", &["connection", "dns_san_peer_certificate"]),
        },
        /// The subject, as RFC 2253 writes it.
        subject: True = true => |()| fact("subject", &["connection", "subject_peer_certificate"]),
    }
}

words! {
    /// A kind of subject alternative names.
    pub(crate) enum San {
        /// A URI, such as a SPIFFE ID.
        Uri = "uri",
        /// A DNS name.
        Dns = "dns",
    }
}

fn fact(name: &str, attribute: &'static [&'static str]) -> Fact {
    Fact {
        label: key::label("peer", name),
        value_type: None,
        secrecy: Secrecy::Plain,
        lookup: Box::new(Attribute(attribute)),
    }
}
