//! Where a command's data and messages go, and in which form.

use std::env;
use std::io::{self, IsTerminal as _};

use hyper::body::Bytes;
use quotagate_operate::text::harmless;
use serde_json::Value;

use crate::operate::failure::Failure;
use crate::standard::{self, Written};
use crate::text::clean;

/// The form of what is printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// The store's JSON is printed.
    pub(crate) json: bool,
    /// Standard output is a terminal.
    pub(crate) terminal: bool,
    /// It can move its cursor.
    pub(crate) able: bool,
    /// Tables have colours.
    pub(crate) colour: bool,
}

impl Output {
    /// The form for this terminal and environment: colours only on a terminal that has them, and
    /// not with `NO_COLOR`.
    pub(crate) fn new(json: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        let unset = |name| env::var_os(name).is_none_or(|value| value.is_empty());
        let able = env::var_os("TERM").is_some_and(|term| term != "dumb");
        Self { json, terminal, able, colour: terminal && able && unset("NO_COLOR") }
    }

    /// Prints data that is clean already.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn print(self, text: &str) -> Result<(), Failure> {
        match standard::write(text) {
            Ok(Written::Whole) => Ok(()),
            Ok(Written::ReaderGone) => Err(Failure::ReaderGone),
            Err(sentence) => Err(Failure::Refused(sentence)),
        }
    }

    /// Prints a sentence of the store.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn sentence(self, text: &str) -> Result<(), Failure> {
        self.print(&format!("{}\n", clean(text)))
    }

    /// Prints the store's JSON on one line, byte for byte; on a terminal indented and with harmful
    /// characters escaped.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn json(self, raw: &Bytes) -> Result<(), Failure> {
        let text = String::from_utf8_lossy(raw);
        match serde_json::from_str::<Value>(&text) {
            Ok(value) if self.terminal => {
                self.print(&format!("{}\n", harmless(&format!("{value:#}"))))
            }
            _ => self.print(&format!("{}\n", text.trim_end())),
        }
    }
}

/// Writes a message about the data to standard error, if that is possible.
pub(crate) fn say(message: &str) {
    standard::error_line(&clean(message));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_for_a_terminal_is_escaped_and_equal() {
        let value = serde_json::json!({"by": "a\u{1b}[2J\u{9b}\u{202e}\u{e0041}é"});
        let text = harmless(&format!("{value:#}"));
        assert!(!text.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\u{e0041}']), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
