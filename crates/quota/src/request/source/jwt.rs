//! The source `jwt`: claims that Envoy's `jwt_authn` has verified.

use super::metadata::{MAX_DEPTH, MetadataName, MetadataValue};
use super::{IdentitySource, Kind, Verified, as_typed, decoded, path_label};
#[cfg(feature = "schema")]
use crate::document::names::MAX_NAME;
use crate::document::{Distinct, List, Node, Type, object, one_of};
use crate::request::fact::{Fact, ValueType};
use crate::request::key::{self, Secrecy};

/// The namespace in which Envoy's `jwt_authn` leaves what it has verified.
pub(crate) const JWT_AUTHN: &str = "envoy.filters.http.jwt_authn";

const DEFAULT_PAYLOAD: &str = "jwt_payload";
/// The most claims of one source.
const MAX_CLAIMS: usize = 8;

pub(super) static KIND: Kind = Kind {
    name: "jwt",
    #[cfg(feature = "schema")]
    doc: "A claim of a token that Envoy's `jwt_authn` has verified, or several claims.",
    #[cfg(feature = "schema")]
    example: r#"{"claim": "sub"}"#,
    is_written_by_client: false,
    is_often_secret: false,
    read: Jwt::read,
    #[cfg(feature = "schema")]
    schema: Jwt::schema,
    verified: Some(Verified {
        read: |node, default| Some(VerifiedClaim::read(node)?(default)),
        #[cfg(feature = "schema")]
        schema: VerifiedClaim::schema,
    }),
    labels: "jwt.<claim>",
    label: |typed| {
        let (head, path) = typed.split_once('.')?;
        match head.split_once('@') {
            None if head == "jwt" => path_label("jwt", path),
            Some(("jwt", payload)) if !payload.is_empty() => {
                path_label(&source(&decoded(payload)?), path)
            }
            _ => None,
        }
    },
    spell: as_typed,
};

object! {
    /// Claims of a verified token: `claim`, or several `claims` that name a caller together.
    Jwt(JwtFields<'a>) -> IdentitySource {
        /// The key of the token's payload in the dynamic metadata of `jwt_authn`, its
        /// `payload_in_metadata`.
        default("jwt_payload") payload: MetadataName = "jwt_payload",
        /// The type of the claims. A value of another type counts as missing.
        default("string") r#type: ValueType = "string",
        + claims: Claims,
    }
}

one_of! {
    /// The claims of a source.
    Claims<'a> -> Vec<Vec<&'a str>> {
        /// The claim.
        claim: Claim = "sub" => |claim| vec![claim],
        /// Several claims that name a caller together, for more than one issuer.
        claims: Distinct<Claim, 1, MAX_CLAIMS> = ["iss", "sub"] => |claims| claims,
    }
}

impl JwtFields<'_> {
    fn build(self) -> Option<IdentitySource> {
        let (payload, claims, value_type) = (self.payload?, self.claims?, self.r#type?);
        let facts = claims.iter().map(|claim| fact(payload, claim, value_type));
        Some(IdentitySource { kind: &KIND, facts: facts.collect() })
    }
}

/// Makes the fact once the default of its type is known.
type Typed<'a> = Box<dyn FnOnce(ValueType) -> Fact + 'a>;

object! {
    /// A claim of a verified token.
    VerifiedClaim(VerifiedClaimFields<'a>) -> Typed<'a> {
        /// The key of the token's payload in the dynamic metadata of `jwt_authn`, its
        /// `payload_in_metadata`.
        default("jwt_payload") payload: MetadataName = "jwt_payload",
        /// The claim.
        required claim: Claim = "plan",
        /// The type of the claim. A value of another type counts as missing. Left out, it is
        /// `number` in `quota_from` and `string` elsewhere.
        optional r#type: ValueType = "string",
    }
}

impl<'a> VerifiedClaimFields<'a> {
    fn build(self) -> Option<Typed<'a>> {
        let (payload, claim, value_type) = (self.payload?, self.claim?, self.r#type?);
        Some(Box::new(move |default| fact(payload, &claim, value_type.unwrap_or(default))))
    }
}

fn fact(payload: &str, claim: &[&str], value_type: ValueType) -> Fact {
    let path = std::iter::once(payload).chain(claim.iter().copied()).map(Box::from).collect();
    Fact {
        label: key::path_label(&source(payload), claim.iter().copied()),
        value_type: Some(value_type),
        secrecy: Secrecy::Plain,
        lookup: Box::new(MetadataValue { filter: JWT_AUTHN.into(), path, value_type }),
    }
}

/// The beginning of a label: `jwt`, and the payload unless it is the usual one.
fn source(payload: &str) -> String {
    let mut source = "jwt".to_owned();
    if payload != DEFAULT_PAYLOAD {
        source.push('@');
        key::push_name(&mut source, payload);
    }
    source
}

/// A claim: a name in which dots lead into nested claims, or a list of names that may hold dots
/// themselves.
enum Claim {}

impl Type for Claim {
    type Out<'a> = Vec<&'a str>;

    fn read<'a>(node: &Node<'a>) -> Option<Vec<&'a str>> {
        if node.value().is_array() {
            return List::<MetadataName, 1, MAX_DEPTH>::read(node);
        }
        let claim = MetadataName::read(node)?;
        if claim.split('.').any(str::is_empty) {
            node.fault(format!(
                "must be a claim, or nested ones with one dot between them, is {claim:?}: write a list of names \
                 where a name itself holds dots"
            ));
            return None;
        }
        Some(claim.split('.').collect())
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut crate::document::book::Book) -> serde_json::Value {
        let pattern = r"^[^.\u0000-\u001f\u007f]+(\.[^.\u0000-\u001f\u007f]+)*$";
        let dotted =
            serde_json::json!({"type": "string", "pattern": pattern, "maxLength": MAX_NAME});
        serde_json::json!({"anyOf": [dotted, List::<MetadataName, 1, MAX_DEPTH>::schema(book)]})
    }
}
