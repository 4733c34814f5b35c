//! The digest of a policy document. It tells operators whether all proxies have the same one.
//!
//! It is the first 12 hexadecimal digits of the SHA-256 of the document in canonical form: JSON
//! without spaces, members sorted by name, whole numbers without a fraction. `store` is left out,
//! because the two forms of the filter reach the store in different ways, and so are `digest_key`,
//! which is secret, and `live`, which a published document does not have.

use std::collections::BTreeMap;

use quotagate_protocol::MAX_UNITS;
use quotagate_protocol::dials::DOCUMENT_DIGEST;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Members of the document that do not count.
const LEFT_OUT: [&str; 3] = ["store", "digest_key", "live"];

/// The digest of a document.
pub(super) fn of(document: &Value) -> Box<str> {
    let mut document = canonical(document);
    if let Value::Object(members) = &mut document {
        members.retain(|name, _| !LEFT_OUT.contains(&&**name));
    }
    let hashed = Sha256::digest(document.to_string());
    let digits: String = hashed.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.chars().take(DOCUMENT_DIGEST).collect::<String>().into()
}

/// The depth of documents is bounded where they are read.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let sorted: BTreeMap<&String, &Value> = members.iter().collect();
            let members = sorted.into_iter().map(|(name, value)| (name.clone(), canonical(value)));
            Value::Object(members.collect())
        }
        Value::Array(list) => list.iter().map(canonical).collect(),
        // All numbers of a `google.protobuf.Struct` are doubles.
        Value::Number(number) => match number.as_f64() {
            Some(number) if number.fract() == 0.0 && number.abs() <= MAX_UNITS as f64 => {
                (number as i64).into()
            }
            _ => value.clone(),
        },
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn digest_is_of_what_a_document_says() {
        let document = json!({"domain": "shop", "policies": [{"name": "a", "quota": 5}]});
        let digest = of(&document);
        // printf '%s' '{"domain":"shop","policies":[{"name":"a","quota":5}]}' | sha256sum
        assert_eq!(&*digest, "d9ea30042ef5");
        let of_text = |text: &str| of(&serde_json::from_str(text).unwrap());
        for same in [
            r#"{"policies":[{"quota":5.0,"name":"a"}],"domain":"shop"}"#,
            r#"{"domain":"shop","store":{"redis":"redis://r"},"digest_key":"k","policies":[{"name":"a","quota":5}]}"#,
            r#"{"domain":"shop","live":true,"policies":[{"name":"a","quota":5}]}"#,
        ] {
            assert_eq!(of_text(same), digest, "{same}");
        }
        for other in [
            r#"{"domain":"shop","policies":[{"name":"a","quota":6}]}"#,
            r#"{"domain":"shop","policies":[{"name":"a","quota":5.5}]}"#,
            r#"{"domain":"shop","policies":[{"name":"a","quota":"5"}]}"#,
        ] {
            assert_ne!(of_text(other), digest, "{other}");
        }
    }
}
