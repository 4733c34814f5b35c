//! The JSON Schema (draft 2020-12) of a document.

use serde_json::{Map, Value, json};

use super::book::{Book, FieldDoc, ObjectDoc, Presence};

/// The schema of the document whose root is the first object of `book`.
pub(crate) fn render(title: &str, book: &Book) -> Value {
    let mut objects = book.objects.iter();
    let mut schema = objects.next().map(object).unwrap_or_default();
    schema.insert("$schema".to_owned(), "https://json-schema.org/draft/2020-12/schema".into());
    schema.insert("title".to_owned(), title.into());
    let others: Map<String, Value> =
        objects.map(|other| (other.name.to_owned(), Value::Object(object(other)))).collect();
    schema.insert("$defs".to_owned(), Value::Object(others));
    let mut schema = Value::Object(schema);
    // Another crate in the build may enable serde_json's feature that keeps the order of members.
    schema.sort_all_objects();
    schema
}

fn object(object: &ObjectDoc) -> Map<String, Value> {
    let fields: Map<String, Value> =
        object.fields.iter().map(|f| (f.name.to_owned(), field(f))).collect();
    let required = object.fields.iter().filter(|f| matches!(f.presence, Presence::Required));
    let required: Vec<&str> = required.map(|f| f.name).collect();
    let mut schema = Map::new();
    let mut set = |keyword: &str, value: Value| schema.insert(keyword.to_owned(), value);
    set("type", "object".into());
    set("description", object.doc.as_str().into());
    set("properties", Value::Object(fields));
    set("additionalProperties", false.into());
    if !required.is_empty() {
        set("required", required.into());
    }
    let one_of = |group: &Vec<&str>| {
        let choices: Vec<Value> = group.iter().map(|name| json!({"required": [name]})).collect();
        json!({"oneOf": choices})
    };
    let rules: Vec<Value> = object.groups.iter().map(one_of).chain(object.rule.clone()).collect();
    if !rules.is_empty() {
        set("allOf", rules.into());
    }
    schema
}

fn field(field: &FieldDoc) -> Value {
    let mut schema = field.schema.clone();
    crate::document::book::set(&mut schema, "description", field.doc.as_str().into());
    if let Presence::Default(default) = &field.presence {
        crate::document::book::set(&mut schema, "default", default.clone());
    }
    if let Some(example) = &field.example {
        crate::document::book::set(&mut schema, "examples", json!([example]));
    }
    schema
}
