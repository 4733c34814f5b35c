//! Bodies that want memory or time.

use std::iter::{once, repeat_n};

use super::{EVENTS, JSON, usage_reader};
use crate::exchange::usage::{BodyNumber, Format, MAX_OBJECT, UsageReader};

const CHUNK: usize = 64 * 1024;
/// 100 MB, in chunks.
const HUGE: usize = 1600;
/// 1 MB, in chunks: enough to see that memory grows.
const LARGE: usize = 16;

impl UsageReader {
    fn kept(&self) -> usize {
        match &self.format {
            Format::Json(scanner) => scanner.kept(),
            Format::Events(events) => events.kept(),
            Format::Unknown | Format::Other => 0,
        }
    }
}

/// Feeds `start`, so many chunks of `filling`, and `end`. Returns the reader, which never kept more
/// than `most` bytes.
fn feed(
    content_type: &str,
    [start, filling, end]: [&str; 3],
    chunks: usize,
    most: usize,
) -> UsageReader {
    let filling = filling.repeat(CHUNK / filling.len());
    let mut reader = usage_reader(content_type);
    for chunk in once(start).chain(repeat_n(&*filling, chunks)).chain(once(end)) {
        reader.feed(chunk.as_bytes());
        assert!(reader.kept() <= most, "{start} {}", reader.kept());
    }
    reader
}

const KEY: usize = 256;

#[test]
fn a_text_of_a_hundred_megabytes_takes_no_memory() {
    let end = "\", \"usage\": {\"prompt_tokens\": 7}}";
    let reader = feed(JSON, ["{\"x\": \"", "x", end], HUGE, KEY);
    assert_eq!(reader.usage().input, Some(7));
    let reader = feed(EVENTS, ["data: {\"x\": \"", "x", end], HUGE, KEY);
    assert_eq!(reader.usage().input, Some(7));
}

#[test]
fn no_body_grows_the_memory() {
    let usage = r#""usage": {"prompt_tokens": 7}}"#;
    for (start, filling, end, found) in [
        ("{\"x\": \"", "x", format!("\", {usage}"), true),
        ("{\"x\": \"", "\\\"", format!("\", {usage}"), true),
        ("{\"x\": \"", "{\\u0022us\u{e4}ge", format!("\", {usage}"), true),
        ("{\"", "x", format!("\": 1, {usage}"), true),
        ("{\"x\": [", "[[]],", format!("1], {usage}"), true),
        ("{\"x\": ", "{\"usage\":", String::new(), false),
        ("{\"x\": ", "[", format!("1, {usage}"), false),
        ("{", "\"x\": 1,", usage.to_owned(), true),
        ("{\"x\": ", "1", format!(", {usage}"), true),
        ("", " ", format!("{{{usage}"), true),
        ("", "]", format!("{{{usage}"), false),
    ] {
        let reader = feed(JSON, [start, filling, &end], LARGE, KEY);
        assert_eq!(reader.usage().input, found.then_some(7), "{start}{filling}");
        let start = format!("data: {start}");
        let reader = feed(EVENTS, [&start, filling, &end], LARGE, KEY);
        assert_eq!(reader.usage().input, found.then_some(7), "{start}{filling}");
    }
    feed(EVENTS, ["", "x", ""], LARGE, KEY);
    feed(EVENTS, ["", "data: {\"usage\": null}\n\n", ""], LARGE, KEY);
    feed(EVENTS, ["", "data\r", ""], LARGE, KEY);
}

#[test]
fn a_usage_object_that_is_too_long_is_ignored() {
    let reader = feed(
        JSON,
        ["{\"usage\": {\"x\": \"", "x", "\", \"prompt_tokens\": 7}}"],
        LARGE,
        2 * MAX_OBJECT,
    );
    assert_eq!(reader.usage().input, None);
    let usage = |size: usize| {
        let start = "{\"prompt_tokens\":7,\"x\":\"";
        format!("{{\"usage\": {start}{}\"}}}}", "x".repeat(size - start.len() - 2))
    };
    for (size, expected) in [(MAX_OBJECT, Some(7)), (MAX_OBJECT + 1, None)] {
        let mut reader = usage_reader(JSON);
        reader.feed(usage(size).as_bytes());
        assert_eq!(reader.usage().input, expected, "{size}");
    }
}

#[test]
fn nesting_in_a_usage_object_ends_nowhere() {
    for nested in ["[".repeat(60_000), format!("{}1{}", "[".repeat(30_000), "]".repeat(30_000))] {
        let body = format!(
            r#"{{"usage": {{"x": {nested}, "prompt_tokens": 7}}, "usage": {{"prompt_tokens": 8}}}}"#
        );
        let mut reader = usage_reader(JSON);
        reader.feed(body.as_bytes());
        assert_ne!(reader.usage().input, Some(7), "deeper than the reader of such an object goes");
    }
}

#[test]
fn a_member_of_a_huge_body_takes_no_memory() {
    let mut member = BodyNumber::new(["max_tokens"]);
    let text = "x".repeat(CHUNK);
    let chunks = once("{\"prompt\": \"").chain(repeat_n(&*text, HUGE));
    for chunk in chunks.chain(once("\", \"max_tokens\": 500}")) {
        member.feed(chunk.as_bytes());
    }
    assert_eq!(member.value(), Some(500));
    let mut member = BodyNumber::new(["max_tokens"]);
    for chunk in once("{\"max_tokens\": ").chain(repeat_n("9999999999", CHUNK)).chain(once("}")) {
        member.feed(chunk.as_bytes());
    }
    assert_eq!(member.value(), None);
}
