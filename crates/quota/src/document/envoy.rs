//! The document of a configuration, as Envoy hands it over.
//!
//! Envoy passes on the text of a `google.protobuf.StringValue` or `BytesValue`, and that text is
//! JSON. A `google.protobuf.Struct`, the readable form in Envoy's YAML, arrives in the binary form
//! of Protocol Buffers (seen with Envoy 1.40).

use prost::Message as _;
use prost_types::value::Kind;
use serde_json::Value;

/// Reads a document from JSON text or from a serialized `google.protobuf.Struct`.
///
/// # Errors
/// What is wrong with it as JSON, if it is neither.
pub(crate) fn read(text: &[u8]) -> Result<Value, serde_json::Error> {
    super::json::parse(text).or_else(|error| {
        // A Struct that is not empty begins with the tag of its one field. The tag is the byte
        // `\n`, so JSON is tried first.
        match prost_types::Struct::decode(text) {
            Ok(document) if text.first() == Some(&STRUCT_FIELDS_TAG) => Ok(object(document)),
            _ => Err(error),
        }
    })
}

/// The tag of `Struct.fields`: field 1, length-delimited.
const STRUCT_FIELDS_TAG: u8 = 0x0a;

/// The same document, in the order that a Struct gets: JSON text that Envoy has made of a Struct has
/// any order.
pub(crate) fn unordered(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            sorted(members.into_iter().map(|(name, value)| (name, unordered(value))))
        }
        Value::Array(list) => list.into_iter().map(unordered).collect(),
        value => value,
    }
}

fn object(document: prost_types::Struct) -> Value {
    sorted(document.fields.into_iter().map(|(name, value)| (name, json(value))))
}

/// A Struct has no order. The member with the largest number comes first, so that the largest quota
/// of a caller's tiers counts.
fn sorted(members: impl Iterator<Item = (String, Value)>) -> Value {
    let mut members: Vec<_> = members.collect();
    members.sort_by(|(_, a), (_, b)| number(b).total_cmp(&number(a)));
    Value::Object(members.into_iter().collect())
}

/// A number, which Envoy may have written as a string. Other values are the smallest.
fn number(value: &Value) -> f64 {
    let text = || value.as_str()?.parse().ok();
    value.as_f64().or_else(text).unwrap_or(f64::NEG_INFINITY)
}

/// Depth is bounded by the decoder's own limit of 100 messages.
fn json(value: prost_types::Value) -> Value {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => number.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::BoolValue(truth)) => truth.into(),
        Some(Kind::StructValue(document)) => object(document),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(json).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::json;
    use super::*;

    #[test]
    fn largest_number_of_text_without_order_comes_first() {
        let text = json::parse(br#"{"a": [{"free": 1, "vip": "9", "premium": 5}]}"#).unwrap();
        assert_eq!(unordered(text).to_string(), r#"{"a":[{"vip":"9","premium":5,"free":1}]}"#);
    }

    fn value(kind: Kind) -> prost_types::Value {
        prost_types::Value { kind: Some(kind) }
    }

    #[test]
    fn a_struct_reads_like_its_json() {
        let list = prost_types::ListValue {
            values: vec![
                value(Kind::BoolValue(true)),
                value(Kind::NullValue(0)),
                prost_types::Value { kind: None },
            ],
        };
        let inner =
            prost_types::Struct { fields: [("l".to_owned(), value(Kind::ListValue(list)))].into() };
        let fields = [
            ("n".to_owned(), value(Kind::NumberValue(4_503_599_627_370_496.0))),
            ("s".to_owned(), value(Kind::StringValue("\u{e4}".to_owned()))),
            ("o".to_owned(), value(Kind::StructValue(inner))),
        ];
        let bytes = prost_types::Struct { fields: fields.into() }.encode_to_vec();
        let json = serde_json::json!({"n": 4_503_599_627_370_496.0, "s": "\u{e4}", "o": {"l": [true, null, null]}});
        assert_eq!(read(&bytes).unwrap(), json);
        assert_eq!(read(json.to_string().as_bytes()).unwrap(), json);
    }

    #[test]
    fn text_that_is_neither_json_nor_a_struct_is_an_error() {
        for bad in
            [&b""[..], b"\n", b"{", b"\n{\"domain\": }", b"\x0a\xff", b"\x12\x00", &[b'['; 5000]]
        {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_struct_nested_too_deep_is_an_error() {
        let mut inner = prost_types::Struct::default();
        for _ in 0..1000 {
            inner = prost_types::Struct {
                fields: [("a".to_owned(), value(Kind::StructValue(inner)))].into(),
            };
        }
        assert!(read(&inner.encode_to_vec()).is_err());
    }
}
