//! Any bytes as a body: the usage in it and a number of a request do not depend on where chunks
//! begin, and of JSON they are what a JSON parser finds.

use quotagate_quota::config::TokenUsage;
use quotagate_quota::exchange::usage::{BodyNumber, UsageReader};
use serde_json::{Map, Value, json};

use crate::choices::Choices;

/// Uses the bytes as a body, and to choose a body of JSON and the chunks of all.
pub fn check(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    compare(bytes, &mut choices);

    let document = value(4, &mut choices);
    let mut body = Vec::new();
    write(&document, &mut body, &mut choices);
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), document, "{body:?}");
    let json = compare(&body, &mut choices);
    assert_eq!(json.input, usage(&document), "{}", String::from_utf8_lossy(&body));
    let mut member = BodyNumber::new(["max"]);
    member.feed(&body);
    let expected = document.as_object().and_then(|object| object.get("max")?.as_u64());
    assert_eq!(member.value(), expected, "{}", String::from_utf8_lossy(&body));

    let lines = [&b"data: "[..], &body, b"\r\n\r\n"].concat();
    let events = compare(&lines, &mut choices);
    assert_eq!(events.input, usage(&document), "{}", String::from_utf8_lossy(&lines));

    // The same body with a few wrong bytes.
    for _ in 0..=choices.below(4) {
        let at = usize::from(u16::from_be_bytes([choices.byte(), choices.byte()])) % body.len();
        body[at] = *choices.of(b"\"\\{}[],:u0\r\n \xff\xef7");
    }
    compare(&body, &mut choices);
}

/// Reads a body at once and in chunks, and compares what was found.
fn compare(body: &[u8], choices: &mut Choices<'_>) -> TokenUsage {
    let length = *choices.of(&[1, 2, 3, 7, 50]);
    let mut member = BodyNumber::new(["max"]);
    let mut chunked = BodyNumber::new(["max"]);
    member.feed(body);
    body.chunks(length).for_each(|chunk| chunked.feed(chunk));
    assert_eq!(member.value(), chunked.value());
    let content_types = choices.yes().then(|| b"application/json".to_vec());
    let content_types = Vec::from_iter(content_types);
    let mut reader = UsageReader::new(&content_types, b"").unwrap();
    let mut chunked = UsageReader::new(&content_types, b"").unwrap();
    reader.feed(body);
    body.chunks(length).for_each(|chunk| chunked.feed(chunk));
    let found = |reader: &UsageReader| (reader.usage(), reader.is_final(), reader.reads_on());
    assert_eq!(found(&reader), found(&chunked), "{}", String::from_utf8_lossy(body));
    reader.usage()
}

const NAMES: [&str; 14] = [
    "usage",
    "message",
    "max",
    "response",
    "interaction",
    "tool_usage",
    "event_type",
    "usageMetadata",
    "type",
    "choices",
    "candidates",
    "finishReason",
    "index",
    "x",
];

/// A JSON value, whose interesting names are in all places.
fn value(depth: usize, choices: &mut Choices<'_>) -> Value {
    match choices.below(if depth == 0 { 4 } else { 9 }) {
        0 => json!(choices.byte()),
        1 => json!("usage\": {\"prompt_tokens\": 1}, \\"),
        2 => Value::Null,
        3 => json!(String::from_utf8_lossy(&choices.bytes())),
        4 => (0..choices.below(3)).map(|_| value(depth - 1, choices)).collect(),
        _ => {
            let mut members = Map::new();
            for _ in 0..choices.below(5) {
                let name = *choices.of(&NAMES);
                let member = match name {
                    "usage" | "usageMetadata" if choices.yes() => {
                        json!({"x": [{}, "}"], "prompt_tokens": choices.byte()})
                    }
                    _ => value(depth - 1, choices),
                };
                members.insert(name.into(), member);
            }
            Value::Object(members)
        }
    }
}

/// Writes JSON with white space and escapes of all kinds, but no line ends.
fn write(value: &Value, out: &mut Vec<u8>, choices: &mut Choices<'_>) {
    space(out, choices);
    match value {
        Value::Object(members) => {
            out.push(b'{');
            for (i, (name, member)) in members.iter().enumerate() {
                out.extend_from_slice(if i == 0 { b"" } else { b"," });
                space(out, choices);
                text(name, out, choices);
                space(out, choices);
                out.push(b':');
                write(member, out, choices);
            }
            out.push(b'}');
        }
        Value::Array(values) => {
            out.push(b'[');
            for (i, value) in values.iter().enumerate() {
                out.extend_from_slice(if i == 0 { b"" } else { b"," });
                write(value, out, choices);
            }
            out.push(b']');
        }
        Value::String(string) => text(string, out, choices),
        other => out.extend_from_slice(other.to_string().as_bytes()),
    }
    space(out, choices);
}

fn space(out: &mut Vec<u8>, choices: &mut Choices<'_>) {
    out.extend_from_slice(choices.text(&["", " ", "\t", "  "]));
}

fn text(text: &str, out: &mut Vec<u8>, choices: &mut Choices<'_>) {
    if choices.below(4) > 0 {
        out.extend_from_slice(Value::from(text).to_string().as_bytes());
        return;
    }
    out.push(b'"');
    for unit in text.encode_utf16() {
        out.extend_from_slice(format!("\\u{unit:04x}").as_bytes());
    }
    out.push(b'"');
}

/// The last `prompt_tokens` in a place where usage counts, in the order of the text.
fn usage(document: &Value) -> Option<u64> {
    let objects = match document {
        Value::Array(elements) => elements.iter().filter_map(Value::as_object).collect(),
        other => Vec::from_iter(other.as_object()),
    };
    let mut last = None;
    for (name, member) in objects.into_iter().flatten() {
        match (name.as_str(), member) {
            ("usage" | "usageMetadata", member) => last = later(last, member),
            ("message" | "response" | "interaction", Value::Object(inner)) => {
                for (_, member) in
                    inner.iter().filter(|(name, _)| matches!(&***name, "usage" | "usageMetadata"))
                {
                    last = later(last, member);
                }
            }
            _ => {}
        }
    }
    last
}

/// A zero replaces no number above zero.
fn later(last: Option<u64>, usage: &Value) -> Option<u64> {
    let tokens = usage.get("prompt_tokens").and_then(Value::as_u64);
    if tokens == Some(0) { last.or(tokens) } else { tokens.or(last) }
}
