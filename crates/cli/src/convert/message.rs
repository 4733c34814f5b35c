//! Messages of Envoy's API, as JSON has them.

use hyper::StatusCode;
use serde_json::Value;

/// A route.
#[derive(Debug)]
pub(super) struct EnvoyRoute<'e> {
    /// Its name, or the one that it should have.
    pub(super) name: String,
    pub(super) is_named: bool,
    pub(super) fields: &'e Value,
}

impl<'e> EnvoyRoute<'e> {
    /// Its only cluster.
    pub(super) fn cluster(&self) -> Option<&'e str> {
        text(member(self.fields, "route")?, "cluster")
    }

    /// A text in its metadata.
    pub(super) fn metadata(&self, filter: &str, path: &[String]) -> Option<&'e str> {
        let all = member(member(self.fields, "metadata")?, "filter_metadata")?;
        let inner = path.iter().try_fold(all.get(filter)?, |inner, step| inner.get(step))?;
        inner.as_str().filter(|text| !text.is_empty())
    }
}

/// A field of a message, by its name in snake case or in camel case.
pub(super) fn member<'v>(message: &'v Value, name: &str) -> Option<&'v Value> {
    let fields = message.as_object()?;
    fields.get(name).or_else(|| {
        let mut words = name.split('_');
        let mut camel = words.next().unwrap_or_default().to_owned();
        for word in words {
            let mut letters = word.chars();
            camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
            camel.push_str(letters.as_str());
        }
        fields.get(&camel)
    })
}

pub(super) fn text<'v>(message: &'v Value, name: &str) -> Option<&'v str> {
    member(message, name)?.as_str()
}

pub(super) fn flag(message: &Value, name: &str) -> bool {
    member(message, name).and_then(Value::as_bool) == Some(true)
}

pub(super) fn number(message: &Value, name: &str) -> Option<u64> {
    let number = member(message, name)?;
    number.as_u64().or_else(|| number.as_str()?.parse().ok())
}

/// The HTTP status of a `code`, which is a number or the name that Envoy's API gives it, such as
/// `ServiceUnavailable`.
pub(super) fn status_code(code: &Value) -> Option<u64> {
    let by_name = || {
        let name = code.as_str()?;
        let is_named = |status: &StatusCode| {
            let reason = status.canonical_reason().unwrap_or_default();
            !name.is_empty() && reason.split(' ').collect::<String>() == name
        };
        let mut all = (100..600).filter_map(|code| StatusCode::from_u16(code).ok());
        all.find(is_named).map(|status| u64::from(status.as_u16()))
    };
    code.as_u64().or_else(by_name)
}

pub(super) fn list<'v>(message: &'v Value, name: &str) -> &'v [Value] {
    member(message, name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn is_a(message: &Value, kind: &str) -> bool {
    text(message, "@type").is_some_and(|name| name.ends_with(kind))
}
