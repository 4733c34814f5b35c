//! The text of the written document.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::message::{flag, member, status_code};
use super::policies::{POLICY_FIELDS, PolicyItem};
use crate::text::is_harmful;

/// What begins a comment on what the document does not say.
pub(super) const GAP: &str = "NOT CONVERTED: ";
/// The longest line of a comment.
const WIDTH: usize = 98;

/// The fields that come first, in this order; the others follow by name.
const FIRST: [&str; 7] = ["name", "reserve", "settle", "filter", "source", "calendar", "headers"];

/// A document.
pub(super) struct WrittenDocument<'d> {
    /// What stands above it.
    pub(super) head: Vec<String>,
    pub(super) domain: &'d str,
    /// The filter of Envoy that it replaces.
    pub(super) filter: Option<&'d Value>,
    pub(super) identities: Vec<(String, Value)>,
    /// What a reader should know of each identity.
    pub(super) remarks: Vec<String>,
    pub(super) items: &'d [PolicyItem],
}

impl WrittenDocument<'_> {
    /// The document in YAML.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        self.head.iter().for_each(|line| comment(&mut out, "", line));
        field(&mut out, "", "domain", &json!(self.domain));
        out.push_str("store:\n");
        comment(
            &mut out,
            "  ",
            "The Envoy cluster of `quotagate serve`. In the native module, `redis:` and a store URL \
             instead.",
        );
        for (name, value) in store(self.filter) {
            field(&mut out, "  ", &name, &value);
        }
        if !self.identities.is_empty() {
            out.push_str("identities:\n");
            self.remarks.iter().for_each(|line| comment(&mut out, "  ", line));
            for (name, sources) in &self.identities {
                field(&mut out, "  ", &flow(&json!(name)), sources);
            }
        }
        let is_empty = self.items.iter().all(|item| item.policy.is_none());
        out.push_str(if is_empty { "policies: []\n" } else { "policies:\n" });
        for item in self.items {
            item.remarks.iter().for_each(|line| comment(&mut out, "  ", line));
            item.gaps.iter().for_each(|line| comment(&mut out, "  ", &format!("{GAP}{line}")));
            let Some(policy) = &item.policy else { continue };
            let mut indent = "  - ";
            for name in POLICY_FIELDS {
                if let Some(value) = policy.get(name) {
                    field(&mut out, indent, name, value);
                    indent = "    ";
                }
            }
        }
        if let Some(response) = response(self.filter) {
            field(&mut out, "", "response", &response);
        }
        out
    }
}

/// How the store is reached, as far as the filter of Envoy says it.
fn store(filter: Option<&Value>) -> Vec<(String, Value)> {
    let mut store = vec![("cluster".to_owned(), json!("quota_store"))];
    if let Some(filter) = filter {
        let timeout = member(filter, "timeout").and_then(Value::as_str);
        let seconds = timeout.and_then(|timeout| timeout.strip_suffix('s')?.parse::<f64>().ok());
        let ms = (seconds.unwrap_or(0.02) * 1000.0).round();
        // Without a limit there, the longest here.
        let ms = if ms < 1.0 { 60_000.0 } else { ms.min(60_000.0) };
        store.push(("timeout".to_owned(), json!(format!("{ms}ms"))));
        let on_failure = if flag(filter, "failure_mode_deny") { "deny" } else { "allow" };
        store.push(("on_failure".to_owned(), json!(on_failure)));
    }
    store
}

/// What clients see.
fn response(filter: Option<&Value>) -> Option<Value> {
    let filter = filter?;
    let mut response = Map::new();
    let headers = member(filter, "enable_x_ratelimit_headers").filter(|headers| {
        headers.as_str() == Some("DRAFT_VERSION_03") || headers.as_u64() == Some(1)
    });
    match headers {
        Some(_) => {
            response.insert("headers".to_owned(), json!(["x_ratelimit"]));
            response.insert("reset".to_owned(), json!("delta"));
        }
        None => {
            response.insert("headers".to_owned(), json!([]));
        }
    }
    let status = member(filter, "rate_limited_status").and_then(|status| member(status, "code"));
    let status = status.and_then(status_code).filter(|status| (400..600).contains(status));
    if let Some(status) = status.filter(|status| *status != 429) {
        response.insert("denied".to_owned(), json!({"status": status}));
    }
    Some(response.into())
}

fn field(out: &mut String, indent: &str, name: &str, value: &Value) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{indent}{name}: {}", flow(value));
}

/// A comment, in lines.
fn comment(out: &mut String, indent: &str, text: &str) {
    let mut line = String::new();
    // A line that a text of the rules ends must not end the comment.
    let text: String = text.chars().map(|c| if is_harmful(c) { ' ' } else { c }).collect();
    for word in text.split_whitespace() {
        if !line.is_empty() && indent.len() + line.len() + word.len() + 3 > WIDTH {
            let _ = writeln!(out, "{indent}#{line}");
            line.clear();
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(out, "{indent}#{line}");
}

/// A value on one line of YAML.
fn flow(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        Value::String(text) => quoted(text),
        Value::Array(elements) => {
            format!("[{}]", elements.iter().map(flow).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let rank = |name: &str| FIRST.iter().position(|first| *first == name);
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| (rank(name).unwrap_or(FIRST.len()), *name));
            let members = members
                .into_iter()
                .map(|(name, value)| format!("{}: {}", flow(&json!(name)), flow(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Whether YAML reads a text without quotes as itself.
fn is_plain(text: &str) -> bool {
    const OTHERS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"];
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
        && !OTHERS.contains(&text.to_ascii_lowercase().as_str());
    let is_duration = text.ends_with(|c: char| "smhd".contains(c))
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || "smhd".contains(c));
    is_word || is_duration
}

/// A text in double quotes.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        let number = u32::from(c);
        let _ = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            c if !is_harmful(c) => write!(out, "{c}"),
            _ if number <= 0xffff => write!(out, "\\u{number:04x}"),
            _ => write!(out, "\\U{number:08x}"),
        };
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_yaml() {
        let texts = [
            "plain",
            "x-user",
            "yes",
            "null",
            "1m",
            "1e3",
            "12",
            "",
            " a",
            "a: b",
            "{x}",
            "#",
            "*",
            "\"\\'",
            "a\nb\u{85}\u{2028}\u{7f}\0",
            "käse 日本",
            "\u{e0041}",
            "~",
            "- a",
            "no",
            "0x1",
        ];
        let value = json!({"a": texts, "b": {"c": [1, true, null, {}]}, "no": []});
        let read: Value = serde_saphyr::from_str(&flow(&value)).unwrap();
        assert_eq!(read, value);
    }

    #[test]
    fn no_text_ends_a_comment() {
        let mut out = String::new();
        comment(&mut out, "  ", &format!("a\nb: c\r\u{2028}{}", "word ".repeat(40)));
        assert!(out.lines().all(|line| line.starts_with("  # ") && line.len() <= 100), "{out}");
        assert!(out.lines().count() > 1);
    }
}
