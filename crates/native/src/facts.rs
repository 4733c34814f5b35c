//! The facts of a request and its response, read from Envoy when a policy needs them.
//!
//! Envoy's ABI reads only top-level keys of dynamic metadata, and claims are deeper. So one of
//! Envoy's own filters copies the metadata of a filter, as JSON, to where this module reads it:
//! `set_filter_state` to the filter state `quotagate.metadata.<filter>`, or Lua to the key
//! `<filter>` of the metadata `quotagate.metadata`. Without such a copy, only
//! top-level keys can be read.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};

use quotagate_quota::request::{HeaderValues, Request};
use quotagate_quota::response::Upstream;
use serde_json::Value;

use crate::abi::raw::header_map::{REQUEST, RESPONSE, RESPONSE_TRAILERS};
use crate::abi::{HeaderMap, Host};
use crate::log;

/// The namespace of copies: of the metadata that Lua writes, and, with a dot, of the filter state.
const COPIES: &str = "quotagate.metadata";

/// The request of the stream whose `on_http_filter_request_headers` runs.
///
/// The first header that is no pseudo-header fetches all headers. Policies need similar facts of
/// every request: if the last one needed such a header, this one begins with fetching all.
pub struct RequestFacts<'h> {
    host: &'h Host<'h>,
    headers: OnceCell<HeaderMap<'h>>,
    needs_all: Cell<bool>,
    /// The metadata of each filter that a policy asked for.
    metadata: RefCell<Vec<(String, Option<Value>)>>,
}

impl<'h> RequestFacts<'h> {
    /// Reads nothing yet. `needed_all`: what [`needs_all`](Self::needs_all) said of the last
    /// request.
    pub fn new(host: &'h Host<'h>, needed_all: bool) -> Self {
        let headers = OnceCell::new();
        if needed_all {
            headers.get_or_init(|| host.headers(REQUEST));
        }
        Self { host, headers, needs_all: Cell::new(false), metadata: RefCell::default() }
    }

    /// Whether a policy needed a header that is no pseudo-header.
    pub fn needs_all(&self) -> bool {
        self.needs_all.get()
    }

    fn pseudo_header(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        match self.headers.get() {
            Some(headers) => headers.values(name).next(),
            None => self.host.first_header(REQUEST, name),
        }
        .map(Cow::from)
    }

    /// Hands the copied metadata of `filter` to `read`, if there is any.
    fn with_copy<T>(&self, filter: &str, read: impl FnOnce(Option<&Value>) -> T) -> T {
        let mut known = self.metadata.borrow_mut();
        let index = known.iter().position(|(name, _)| name == filter);
        let index = index.unwrap_or_else(|| {
            known.push((filter.to_owned(), self.copied(filter)));
            known.len() - 1
        });
        read(known.get(index).and_then(|(_, copy)| copy.as_ref()))
    }

    fn copied(&self, filter: &str) -> Option<Value> {
        // Envoy writes `-` where there is no metadata.
        let read = |text: Vec<u8>| serde_json::from_slice(&text).ok();
        let state = self.host.filter_state(&format!("{COPIES}.{filter}")).and_then(read);
        state.or_else(|| self.host.metadata_text(COPIES, filter).and_then(read))
    }
}

impl Request for RequestFacts<'_> {
    fn method(&self) -> Option<Cow<'_, [u8]>> {
        self.pseudo_header(":method")
    }

    fn path(&self) -> Option<Cow<'_, [u8]>> {
        self.pseudo_header(":path")
    }

    fn authority(&self) -> Option<Cow<'_, [u8]>> {
        self.pseudo_header(":authority")
    }

    fn header(&self, name: &str) -> HeaderValues<'_> {
        self.needs_all.set(true);
        let headers = self.headers.get_or_init(|| self.host.headers(REQUEST));
        headers.values(name).map(Cow::from).collect()
    }

    fn metadata(&self, filter: &str, path: &[Box<str>]) -> Option<Vec<u8>> {
        self.with_copy(filter, |copy| match (copy, path) {
            (Some(copy), path) => bytes(member(copy, path)?),
            (None, [key]) => top_level(self.host, filter, key),
            (None, _) => {
                if self.host.has_metadata(filter) {
                    warn_of_unreadable(filter);
                }
                None
            }
        })
    }

    fn has_metadata(&self, filter: &str, path: &[Box<str>]) -> bool {
        self.with_copy(filter, |copy| copy.is_some_and(|copy| member(copy, path).is_some()))
    }

    fn attribute(&self, path: &[&str]) -> Option<Vec<u8>> {
        self.host.attribute_at(path)
    }

    fn source_address(&self) -> Option<Cow<'_, [u8]>> {
        self.host.attribute_at(&["source", "address"]).map(Cow::from)
    }

    fn route_name(&self) -> Option<Cow<'_, [u8]>> {
        self.host.attribute_at(&["xds", "route_name"]).map(Cow::from)
    }
}

/// The response of the stream whose hook runs. The first header fetches all headers.
pub struct ResponseFacts<'h> {
    host: &'h Host<'h>,
    headers: OnceCell<HeaderMap<'h>>,
    trailers: OnceCell<HeaderMap<'h>>,
}

impl<'h> ResponseFacts<'h> {
    /// Reads nothing yet.
    pub fn new(host: &'h Host<'h>) -> Self {
        Self { host, headers: OnceCell::new(), trailers: OnceCell::new() }
    }

    fn headers(&self) -> &HeaderMap<'h> {
        self.headers.get_or_init(|| self.host.headers(RESPONSE))
    }

    fn trailers(&self) -> &HeaderMap<'h> {
        self.trailers.get_or_init(|| self.host.headers(RESPONSE_TRAILERS))
    }
}

impl Upstream for ResponseFacts<'_> {
    fn status(&self) -> Option<u16> {
        let status = self.host.first_header(RESPONSE, ":status")?;
        std::str::from_utf8(status).ok()?.parse().ok()
    }

    fn has_any(&self, names: &[&str]) -> bool {
        // Hardly any header has a name of such a length, so few names are compared.
        let bit = |len: usize| 1_u64 << (len % 64);
        let lengths = names.iter().fold(0, |lengths, name| lengths | bit(name.len()));
        let is_one = |known: &[u8]| {
            lengths & bit(known.len()) != 0 && names.iter().any(|name| name.as_bytes() == known)
        };
        self.headers().names().any(is_one)
    }

    fn header(&self, name: &str) -> Vec<Vec<u8>> {
        self.headers().values(name).map(<[u8]>::to_vec).collect()
    }

    fn trailer(&self, name: &str) -> Vec<Vec<u8>> {
        self.trailers().values(name).map(<[u8]>::to_vec).collect()
    }

    /// The copy is from before the request left, so only top-level keys can be read. `setup`
    /// refuses other paths.
    fn metadata(&self, filter: &str, path: &[Box<str>]) -> Option<Vec<u8>> {
        let [key] = path else { return None };
        top_level(self.host, filter, key)
    }
}

/// A member of the metadata of `filter` that Envoy's ABI can read.
fn top_level(host: &Host<'_>, filter: &str, key: &str) -> Option<Vec<u8>> {
    host.metadata_text(filter, key)
        .or_else(|| host.metadata_number(filter, key).map(|n| n.to_le_bytes().to_vec()))
        .or_else(|| host.metadata_boolean(filter, key).map(|b| vec![b.into()]))
}

/// The member at `path`. An element of a list is named by its index.
fn member<'v>(value: &'v Value, path: &[Box<str>]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, key| match value {
        Value::Array(list) => list.get(key.parse::<usize>().ok()?),
        other => other.get(&**key),
    })
}

/// A value as Envoy hands it to a Wasm filter: a number is eight bytes, little-endian, and a
/// boolean is one byte.
fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.clone().into_bytes()),
        Value::Number(number) => Some(number.as_f64()?.to_le_bytes().to_vec()),
        Value::Bool(boolean) => Some(vec![(*boolean).into()]),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Logs once that a configuration lacks the copy of the metadata.
fn warn_of_unreadable(filter: &str) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Ordering::Relaxed) {
        log::warn(&format!(
            "claims and nested metadata of {filter} cannot be read: add Envoy's filter \
             set_filter_state with the object key {COPIES}.{filter} before this one, as \
             envoy/native.yaml does, or Lua, as envoy/gateway/native.yaml does"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copied_metadata_reads_like_that_of_a_wasm_filter() {
        let value: Value = serde_json::from_str(
            r#"{"a": {"s": "x", "n": 7, "b": true, "l": ["y", 1.5], "z": null}}"#,
        )
        .unwrap();
        let read = |path: &[&str]| {
            let path: Vec<Box<str>> = path.iter().map(|key| (*key).into()).collect();
            member(&value, &path).and_then(bytes)
        };
        assert_eq!(read(&["a", "s"]), Some(b"x".to_vec()));
        assert_eq!(read(&["a", "n"]), Some(7.0_f64.to_le_bytes().to_vec()));
        assert_eq!(read(&["a", "b"]), Some(vec![1]));
        assert_eq!(read(&["a", "l", "0"]), Some(b"y".to_vec()));
        assert_eq!(read(&["a", "l", "1"]), Some(1.5_f64.to_le_bytes().to_vec()));
        for absent in
            [&["a"][..], &["a", "z"], &["a", "l"], &["a", "l", "2"], &["b"], &["a", "s", "x"]]
        {
            assert_eq!(read(absent), None, "{absent:?}");
        }
    }

    #[test]
    fn copied_number_is_the_one_that_a_wasm_filter_reads() {
        let read = |text: &str| {
            let value: Value = serde_json::from_str(text).unwrap();
            f64::from_le_bytes(bytes(&value).unwrap().try_into().unwrap())
        };
        assert_eq!(read("9007199254740993"), 9_007_199_254_740_992.0, "as Envoy keeps it");
        let known = [0.1 + 0.2, 1e21, 9_007_199_254_740_993.0, 1.1e-7, 5e-324, f64::MAX];
        // An irrational step reaches numbers with 16 and 17 digits.
        let many = (1..10_000).map(|i| f64::from(i) * std::f64::consts::PI);
        for number in known.into_iter().chain(many) {
            // The shortest text, and the 17 digits that Envoy writes if 15 are not enough.
            for text in [format!("{number:?}"), format!("{number:.16e}")] {
                assert_eq!(read(&text).to_bits(), number.to_bits(), "{text}");
            }
        }
    }
}
