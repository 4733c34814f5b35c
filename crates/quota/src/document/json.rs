//! JSON without duplicate fields: an ordinary parser would silently drop one of the two.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

pub(crate) fn parse(text: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice::<Strict>(text).map(|Strict(value)| value)
}

struct Strict(Value);

struct StrictVisitor;

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = seq.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some((name, Strict(value))) = map.next_entry::<String, _>()? {
            if fields.contains_key(&name) {
                return Err(A::Error::custom(format!("the field {name:?} is given twice")));
            }
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_duplicate_fields_are_read_unlike_ordinary_json() {
        let text = r#"{"a": [null, true, 1, -1, 1.5, 1e3, "x\u00e4", {}], "b": {"a": {"a": []}}}"#;
        assert_eq!(parse(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        for bad in ["", "{", "[1,]", "\u{feff}{}", "{} {}", "1e999", &"[".repeat(10_000)] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad:.20}");
        }
        let e = parse(br#"{"a": {"b": 1, "c": 2, "b": 1}}"#).unwrap_err().to_string();
        assert!(e.starts_with(r#"the field "b" is given twice at line 1 column"#), "{e}");
    }
}
