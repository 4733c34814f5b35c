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
//! let mut reader = UsageReader::new(Some(b"text/event-stream"), None).unwrap();
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
use self::scanner::Scanner;
use crate::config::TokenUsage;
use crate::document::whole_from_float;

/// Reads the usage out of the body of a response. Feed it every chunk, in order; ask for the usage
/// when the response ends for whatever reason.
#[derive(Debug)]
pub struct UsageReader {
    format: Format,
    reported: Reported,
}

#[derive(Debug)]
enum Format {
    Json(Scanner),
    Events(Events),
}

impl UsageReader {
    /// A reader for a body with these headers. `None` if the body is neither JSON nor server-sent
    /// events, or is compressed.
    pub fn new(content_type: Option<&[u8]>, content_encoding: Option<&[u8]>) -> Option<Self> {
        let encoding = content_encoding.unwrap_or_default().trim_ascii();
        if !encoding.is_empty() && !encoding.eq_ignore_ascii_case(b"identity") {
            return None;
        }
        let media_type = content_type?.split(|byte| *byte == b';').next()?.trim_ascii();
        let media_type = media_type.to_ascii_lowercase();
        let format = if media_type == b"text/event-stream" {
            Format::Events(Events::default())
        } else if media_type.ends_with(b"/json") || media_type.ends_with(b"+json") {
            Format::Json(Scanner::default())
        } else {
            return None;
        };
        Some(Self { format, reported: Reported::default() })
    }

    /// Reads the next chunk.
    pub fn feed(&mut self, chunk: &[u8]) {
        match &mut self.format {
            Format::Json(scanner) => scanner.feed(chunk, &mut self.reported),
            Format::Events(events) => events.feed(chunk, &mut self.reported),
        }
    }

    /// Whether no more usage can come: the last event of a stream is there, or the whole JSON text.
    pub fn is_final(&self) -> bool {
        match &self.format {
            Format::Json(scanner) => scanner.has_ended(),
            Format::Events(events) => events.is_done() || self.reported.is_final(),
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
