//! The dynamic metadata of an answer, for later filters and access logs.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde_json::Map;

use crate::messages::{Descriptor, RateLimitRequest};

/// The request, and the metadata of its rules that passed: where two have the same member, the
/// first wins, and objects merge.
pub(crate) fn of<'m>(
    request: &RateLimitRequest,
    passed: impl Iterator<Item = &'m Map<String, serde_json::Value>>,
) -> Struct {
    let mut fields = Struct::default();
    fields.fields.insert("domain".to_owned(), text(request.domain.clone()));
    let descriptors = request.descriptors.iter().map(descriptor).collect();
    fields.fields.insert("descriptors".to_owned(), list(descriptors));
    if request.hits_addend != 0 {
        fields.fields.insert("hitsAddend".to_owned(), number(request.hits_addend.into()));
    }
    let mut merged = Map::new();
    for metadata in passed {
        merge(&mut merged, metadata);
    }
    if !merged.is_empty() {
        fields.fields.insert("metadata".to_owned(), value(serde_json::Value::Object(merged)));
    }
    fields
}

fn descriptor(descriptor: &Descriptor) -> Value {
    let mut fields = Struct::default();
    let entries =
        descriptor.entries.iter().map(|entry| text(format!("{}={}", entry.key, entry.value)));
    fields.fields.insert("entries".to_owned(), list(entries.collect()));
    if let Some(limit) = descriptor.limit {
        let unit = limit.unit().name();
        let limit = match limit.requests_per_unit {
            0 => format!("unit:{unit}"),
            hits => format!("requests_per_unit:{hits} unit:{unit}"),
        };
        fields.fields.insert("limit".to_owned(), text(limit));
    }
    if let Some(hits) = descriptor.hits_addend {
        fields.fields.insert("hitsAddend".to_owned(), number(hits as f64));
    }
    Value { kind: Some(Kind::StructValue(fields)) }
}

fn merge(into: &mut Map<String, serde_json::Value>, from: &Map<String, serde_json::Value>) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (None, value) => {
                into.insert(name.clone(), value.clone());
            }
            (Some(serde_json::Value::Object(into)), serde_json::Value::Object(from)) => {
                merge(into, from);
            }
            (Some(_), _) => {}
        }
    }
}

fn value(json: serde_json::Value) -> Value {
    let kind = match json {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(bool) => Kind::BoolValue(bool),
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        serde_json::Value::String(text) => Kind::StringValue(text),
        serde_json::Value::Array(values) => return list(values.into_iter().map(value).collect()),
        serde_json::Value::Object(members) => {
            let members = members.into_iter().map(|(name, member)| (name, value(member)));
            Kind::StructValue(Struct { fields: members.collect() })
        }
    };
    Value { kind: Some(kind) }
}

fn text(text: String) -> Value {
    Value { kind: Some(Kind::StringValue(text)) }
}

fn number(number: f64) -> Value {
    Value { kind: Some(Kind::NumberValue(number)) }
}

fn list(values: Vec<Value>) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values })) }
}
