//! Where a command's data and words go, and in which form.

use std::env;
use std::io::{self, IsTerminal as _};

use hyper::body::Bytes;
use serde_json::Value;

use super::failure::Failure;
use super::words::{clean, is_harmful};
use crate::standard::{self, Written};

/// The form of what is printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// The store's JSON is wanted.
    pub(crate) json: bool,
    /// Standard output is a terminal.
    pub(crate) terminal: bool,
    /// Tables have colours.
    pub(crate) colour: bool,
}

impl Output {
    /// As the terminal and the environment say: colours only on a terminal that has them, and not with `NO_COLOR`.
    pub(crate) fn new(json: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        let unset = |name| env::var_os(name).is_none_or(|value| value.is_empty());
        let able = env::var_os("TERM").is_some_and(|term| term != "dumb");
        Self { json, terminal, colour: terminal && able && unset("NO_COLOR") }
    }

    /// Prints data that is harmless already.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn print(self, text: &str) -> Result<(), Failure> {
        match standard::write(text) {
            Ok(Written::Whole) => Ok(()),
            Ok(Written::NobodyReads) => Err(Failure::NobodyReads),
            Err(sentence) => Err(Failure::Refused(sentence)),
        }
    }

    /// Prints a sentence of the store's.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn sentence(self, text: &str) -> Result<(), Failure> {
        self.print(&format!("{}\n", clean(text)))
    }

    /// Prints what the store answered: byte for byte and a line's end, or for a terminal indented and harmless.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn json(self, raw: &Bytes) -> Result<(), Failure> {
        let text = String::from_utf8_lossy(raw);
        match serde_json::from_str::<Value>(&text) {
            Ok(value) if self.terminal => self.print(&format!("{}\n", harmless(&format!("{value:#}")))),
            _ => self.print(&format!("{}\n", text.trim_end())),
        }
    }
}

/// The rows and columns of the terminal that standard output is; `None` where it does not tell.
pub(crate) fn size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    let known = size.ws_row > 0 && size.ws_col > 0;
    known.then_some((usize::from(size.ws_row), usize::from(size.ws_col)))
}

/// Says something about the data, on standard error, where that can be written.
pub(crate) fn say(words: &str) {
    standard::tell_line(&clean(words));
}

/// JSON in which nothing moves a terminal's cursor: such characters stand in strings only, where they may be escaped.
fn harmless(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_harmful(c) && c != '\n' {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_for_a_terminal_is_harmless_and_the_same() {
        let value = serde_json::json!({"by": "a\u{1b}[2J\u{9b}\u{202e}\u{e0041}é"});
        let text = harmless(&format!("{value:#}"));
        assert!(!text.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\u{e0041}']), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
