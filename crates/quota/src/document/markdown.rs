//! The reference page of a document: a table for each object.

use std::fmt::Write as _;

use serde_json::Value;

use super::book::{Book, FieldDoc, ObjectDoc, Presence};

/// The page: `introduction`, then the objects of `book`.
pub(crate) fn render(introduction: &str, book: &Book) -> String {
    let mut page = introduction.to_owned();
    for object in &book.objects {
        section(&mut page, object);
    }
    page
}

fn section(page: &mut String, object: &ObjectDoc) {
    // Writing into a String cannot fail.
    let _ = write!(page, "\n## {}\n\n", object.name);
    wrap(page, &object.doc);
    for group in &object.groups {
        let names: Vec<String> = group.iter().map(|name| format!("`{name}`")).collect();
        page.push('\n');
        wrap(page, &format!("Exactly one of {} must be present.", names.join(", ")));
    }
    if object.fields.is_empty() {
        page.push_str("\nIt has no fields.\n");
        return;
    }
    page.push_str("\n| field | type | default | bounds | meaning | example |\n");
    page.push_str("| --- | --- | --- | --- | --- | --- |\n");
    for field in &object.fields {
        let cells = [
            format!("`{}`", field.name),
            kind(&field.schema),
            default(field),
            bounds(&field.schema),
            meaning(field),
            field.example.as_ref().map(code).unwrap_or_default(),
        ];
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
}

/// The type of values with this schema, in words.
fn kind(schema: &Value) -> String {
    let text = |keyword: &str| schema.get(keyword).and_then(Value::as_str);
    let alternatives = |keyword: &str| schema.get(keyword).and_then(Value::as_array);
    if let Some(name) = text("$ref").and_then(|path| path.rsplit('/').next()) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(choices) = alternatives("oneOf").or(alternatives("anyOf")) {
        let mut kinds: Vec<String> = Vec::new();
        for choice in choices {
            let kind = choice.get("const").map_or_else(|| kind(choice), code);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        return kinds.join(" or ");
    }
    if let Some(value) = schema.get("const") {
        return code(value);
    }
    if let Some(title) = text("title") {
        return title.to_owned();
    }
    match text("type") {
        Some("array") => format!("list of {}", schema.get("items").map(kind).unwrap_or_default()),
        Some("object") => {
            format!(
                "map of names to {}",
                schema.get("additionalProperties").map(kind).unwrap_or_default()
            )
        }
        Some("integer") => "whole number".to_owned(),
        Some(kind) => kind.to_owned(),
        None => String::new(),
    }
}

fn default(field: &FieldDoc) -> String {
    match &field.presence {
        Presence::Required => "required".to_owned(),
        Presence::Optional => String::new(),
        Presence::Default(default) => code(default),
    }
}

/// The bounds of values with this schema, in words.
fn bounds(schema: &Value) -> String {
    let mut parts = Vec::new();
    if let Some(choices) = schema.get("anyOf").and_then(Value::as_array) {
        parts.extend(choices.iter().map(bounds).filter(|bounds| !bounds.is_empty()));
        return parts.join("; ");
    }
    if let Some(comment) = schema.get("$comment").and_then(Value::as_str) {
        return comment.to_owned();
    }
    let number = |keyword: &str| schema.get(keyword).map(number_text);
    let range = |least: Option<String>, most: Option<String>| match (least, most) {
        (Some(least), Some(most)) => Some(format!("{least} to {most}")),
        (Some(least), None) => Some(format!("at least {least}")),
        (None, Some(most)) => Some(format!("at most {most}")),
        (None, None) => None,
    };
    parts.extend(number("exclusiveMinimum").map(|least| format!("above {least}")));
    parts.extend(range(number("minimum"), number("maximum")));
    match (number("minLength"), number("maxLength")) {
        (Some(least), None) if least == "1" => parts.push("not empty".to_owned()),
        (least, most) => parts.extend(range(least, most).map(|range| format!("{range} bytes"))),
    }
    parts.extend(
        range(number("minItems"), number("maxItems")).map(|range| format!("{range} elements")),
    );
    let members = range(number("minProperties"), number("maxProperties"));
    parts.extend(members.map(|range| format!("{range} members")));
    parts.extend(
        schema.get("pattern").and_then(Value::as_str).map(|pattern| format!("`{pattern}`")),
    );
    let names = schema.get("propertyNames").map(bounds).filter(|bounds| !bounds.is_empty());
    parts.extend(names.map(|bounds| format!("names: {bounds}")));
    for inner in ["items", "additionalProperties"] {
        let bounds = schema.get(inner).map(bounds).filter(|bounds| !bounds.is_empty());
        parts.extend(bounds.map(|bounds| format!("each {bounds}")));
    }
    parts.join(", ")
}

fn number_text(number: &Value) -> String {
    const MOST: u64 = quotagate_protocol::MAX_UNITS;
    match number.as_u64() {
        Some(MOST) => "2^53 - 1".to_owned(),
        _ => number.to_string(),
    }
}

/// What a field means. For a choice of words, also what each word means.
fn meaning(field: &FieldDoc) -> String {
    let mut meaning = field.doc.clone();
    let of_items = field.schema.get("items").and_then(|items| items.get("oneOf"));
    for word in
        field.schema.get("oneOf").or(of_items).and_then(Value::as_array).into_iter().flatten()
    {
        if let (Some(word), Some(doc)) =
            (word.get("const"), word.get("description").and_then(Value::as_str))
        {
            // Writing into a String cannot fail.
            let _ = write!(meaning, " {}: {doc}", code(word));
        }
    }
    meaning
}

/// A value as YAML in one line.
fn code(value: &Value) -> String {
    match value {
        Value::Number(_) => format!("`{}`", number_text(value)),
        value => format!("`{}`", yaml(value)),
    }
}

fn yaml(value: &Value) -> String {
    let list = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::String(text) if needs_quotes(text) => format!("'{text}'"),
        Value::String(text) => text.clone(),
        Value::Array(values) => format!("[{}]", list(values.iter().map(yaml).collect())),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{name}: {}", yaml(value)));
            format!("{{{}}}", list(fields.collect()))
        }
        value => value.to_string(),
    }
}

/// Whether YAML would read this text as something else: as a number, an alias or several values.
fn needs_quotes(text: &str) -> bool {
    text.is_empty()
        || text.contains([' ', ':', '{', '"', '#'])
        || text.starts_with('*')
        || text.parse::<f64>().is_ok()
}

/// Appends `text` in lines of at most 100 characters.
fn wrap(page: &mut String, text: &str) {
    let mut column = 0;
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > 100 {
            page.push('\n');
            column = 0;
        } else if column > 0 {
            page.push(' ');
            column += 1;
        }
        page.push_str(word);
        column += width;
    }
    page.push('\n');
}
