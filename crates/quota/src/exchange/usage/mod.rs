//! The tokens that a model used, out of the body of its response, and the size of a request out of
//! its body.
//!
//! Bodies come in chunks of any size. A reader keeps no chunk: it holds one key or one `usage`
//! object at a time, at most [`MAX_OBJECT`] bytes of it. The host passes the chunks on unchanged.
//!
//! ```
//! use quotagate_quota::config::Measure;
//! use quotagate_quota::exchange::usage::UsageReader;
//!
//! let mut reader = UsageReader::new(&[b"text/event-stream".to_vec()], b"").unwrap();
//! for chunk in ["data: {\"usage\": {\"prompt_to", "kens\": 9, \"completion_tokens\": 3}}\n\n"] {
//!     reader.feed(chunk.as_bytes());
//! }
//! assert_eq!(Measure::Total.units(&reader.usage()), Some(12));
//! ```
//!
//! - `reported`: the formats, by provider.
//! - `ends`: the event after which a usage is final.
//! - `scanner`: finds values in JSON; `events`: finds JSON in server-sent events.
//! - `member`: one number of a request's body.

mod ends;
mod events;
mod member;
mod reported;
mod scanner;
#[cfg(test)]
mod tests;

pub use member::BodyNumber;
pub use reported::MAX_OBJECT;

use quotagate_protocol::MAX_UNITS;
use serde_json::Value;

use self::events::Events;
use self::reported::Reported;
use self::scanner::{BYTE_ORDER_MARK, Scanner};
use crate::config::TokenUsage;
use crate::document::whole_from_float;

/// Reads the usage out of the body of a response. Feed it every chunk, in order; ask for the usage
/// when the response ends for whatever reason.
///
/// The first bytes say whether a body is JSON, lines of JSON or server-sent events: some servers
/// state no content type, two of them, or a wrong one. If the first bytes say nothing, a stated
/// `text/event-stream` counts.
#[derive(Debug)]
pub struct UsageReader {
    format: Format,
    /// Whether the body is a single JSON text, as far as its headers and the bytes so far say.
    is_one_text: bool,
    /// Whether the headers say that the body is server-sent events.
    says_events: bool,
    reported: Reported,
}

#[derive(Debug)]
enum Format {
    /// Nothing has come, except white space.
    Unknown,
    Json(Scanner),
    Events(Events),
    /// A body that is not read.
    Other,
}

impl UsageReader {
    /// A reader for a body with these values of `content-type`. `None` if the body is compressed.
    pub fn new(content_types: &[Vec<u8>], content_encoding: &[u8]) -> Option<Self> {
        let encoding = content_encoding.trim_ascii();
        if !encoding.is_empty() && !encoding.eq_ignore_ascii_case(b"identity") {
            return None;
        }
        let media_type = match content_types {
            [only] if !only.contains(&b',') => only.split(|byte| *byte == b';').next(),
            _ => None,
        };
        let media_type = media_type.unwrap_or_default().trim_ascii().to_ascii_lowercase();
        Some(Self {
            format: Format::Unknown,
            is_one_text: media_type.ends_with(b"/json") || media_type.ends_with(b"+json"),
            says_events: media_type == b"text/event-stream",
            reported: Reported::default(),
        })
    }

    /// Reads the next chunk.
    pub fn feed(&mut self, mut chunk: &[u8]) {
        if matches!(self.format, Format::Unknown) {
            let is_before =
                |byte: &u8| byte.is_ascii_whitespace() || BYTE_ORDER_MARK.contains(byte);
            let Some(start) = chunk.iter().position(|byte| !is_before(byte)) else { return };
            chunk = chunk.get(start..).unwrap_or_default();
            self.format = match chunk.first() {
                Some(b'{' | b'[') => Format::Json(Scanner::default()),
                // The names of fields: data, event, id, retry, and nothing in front of a comment.
                Some(b'd' | b'e' | b'i' | b'r' | b':') => Format::Events(Events::default()),
                // Any other field is legal, and ignored.
                _ if self.says_events => Format::Events(Events::default()),
                _ => Format::Other,
            };
        }
        match &mut self.format {
            Format::Json(scanner) => {
                let mut rest = scanner.feed(chunk, &mut self.reported).trim_ascii_start();
                while let Some(first) = rest.first() {
                    self.is_one_text = false;
                    if !matches!(first, b'{' | b'[') {
                        self.format = Format::Other;
                        return;
                    }
                    scanner.restart();
                    rest = scanner.feed(rest, &mut self.reported).trim_ascii_start();
                }
            }
            Format::Events(events) => events.feed(chunk, &mut self.reported),
            Format::Unknown | Format::Other => {}
        }
    }

    /// Whether the next chunk may say something.
    pub const fn reads_on(&self) -> bool {
        !matches!(self.format, Format::Other)
    }

    /// Whether no more usage can come: the last event of a stream is there, or the whole JSON text.
    pub fn is_final(&self) -> bool {
        match &self.format {
            Format::Json(scanner) => self.is_one_text && scanner.has_ended(),
            Format::Events(events) => events.is_done() || self.reported.is_final(),
            Format::Unknown | Format::Other => false,
        }
    }

    /// What the response has reported so far.
    pub fn usage(&self) -> TokenUsage {
        self.reported.usage()
    }
}

/// The whole number, 0 to [`MAX_UNITS`], that a JSON value is. `7.0` and `7e0` are whole, `"7"` is
/// a text.
fn whole(value: &Value) -> Option<u64> {
    let number = value.as_u64().or_else(|| whole_from_float(value.as_f64()?))?;
    (number <= MAX_UNITS).then_some(number)
}
