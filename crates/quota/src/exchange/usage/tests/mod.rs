//! Bodies as providers send them, hostile ones, and every way to cut them into chunks.

mod ends;
mod events;
mod formats;
mod hostile;
mod measure;
mod member;
mod positions;

use super::{TokenUsage, UsageReader};

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

fn usage_reader(content_type: &str) -> UsageReader {
    UsageReader::new(&[content_type.as_bytes().to_vec()], b"").unwrap()
}

/// The usage in a body. Reads it whole, cut at every byte, and byte by byte.
fn read(content_type: &str, body: impl AsRef<[u8]>) -> TokenUsage {
    let body = body.as_ref();
    let read = |chunks: &mut dyn Iterator<Item = &[u8]>| {
        let mut reader = usage_reader(content_type);
        chunks.for_each(|chunk| reader.feed(chunk));
        reader.usage()
    };
    let usage = read(&mut std::iter::once(body));
    for cut in 0..=body.len() {
        let (first, second) = body.split_at(cut);
        assert_eq!(read(&mut [first, second].into_iter()), usage, "cut at {cut}");
    }
    assert_eq!(read(&mut body.chunks(1)), usage, "byte by byte");
    usage
}

/// The `input` of a body.
fn input(content_type: &str, body: impl AsRef<[u8]>) -> Option<u64> {
    read(content_type, body).input
}

fn usage(
    input: impl Into<Option<u64>>,
    cached_input: impl Into<Option<u64>>,
    output: impl Into<Option<u64>>,
    total: impl Into<Option<u64>>,
) -> TokenUsage {
    TokenUsage {
        input: input.into(),
        cached_input: cached_input.into(),
        output: output.into(),
        total: total.into(),
    }
}
