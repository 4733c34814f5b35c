//! Server-sent events: the data of each event is a JSON text.
//!
//! Lines end with CR, LF or CRLF, and an empty line ends an event, as
//! <https://html.spec.whatwg.org/multipage/server-sent-events.html> says. What is not JSON yields
//! no values. `[DONE]` ends the stream.

use super::scanner::{Scanner, Target};

/// The state between two bytes.
#[derive(Debug)]
pub(super) struct Events {
    scanner: Scanner,
    line: Line,
    /// The last byte was a CR, so an LF belongs to the same line end.
    after_return: bool,
    /// So many bytes of [`DONE`] have come in this event, and no other data.
    done: Option<usize>,
    is_done: bool,
}

#[derive(Clone, Copy, Debug)]
enum Line {
    /// So many bytes of [`DATA`] have come, and nothing else.
    Name(usize),
    Data,
    /// A comment or another field.
    Other,
}

/// The only field that counts.
const DATA: &[u8] = b"data";
/// The data of the last event of OpenAI's streams.
const DONE: &[u8] = b"[DONE]";

impl Default for Line {
    fn default() -> Self {
        Self::Name(0)
    }
}

impl Default for Events {
    fn default() -> Self {
        Self {
            scanner: Scanner::default(),
            line: Line::default(),
            after_return: false,
            done: Some(0),
            is_done: false,
        }
    }
}

impl Events {
    /// Whether the event [`DONE`] has come, and no data after it.
    pub(super) const fn is_done(&self) -> bool {
        self.is_done
    }

    /// The bytes that it keeps memory for.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.scanner.kept()
    }

    pub(super) fn feed(&mut self, mut chunk: &[u8], target: &mut impl Target) {
        while let Some((&byte, rest)) = chunk.split_first() {
            if byte == b'\n' && std::mem::take(&mut self.after_return) {
                chunk = rest;
                continue;
            }
            self.after_return = false;
            chunk = match self.line {
                Line::Data | Line::Other => self.until_end(chunk, target),
                Line::Name(_) if matches!(byte, b'\r' | b'\n') => {
                    self.end_line(byte);
                    rest
                }
                Line::Name(matched) if DATA.get(matched) == Some(&byte) => {
                    self.line = Line::Name(matched.saturating_add(1));
                    rest
                }
                Line::Name(matched) if byte == b':' && matched == DATA.len() => {
                    self.line = Line::Data;
                    rest
                }
                Line::Name(_) => {
                    self.line = Line::Other;
                    rest
                }
            };
        }
    }

    /// Passes the rest of a line. Returns what follows its end.
    fn until_end<'c>(&mut self, chunk: &'c [u8], target: &mut impl Target) -> &'c [u8] {
        let end = memchr::memchr2(b'\r', b'\n', chunk).unwrap_or(chunk.len());
        let (text, end) = chunk.split_at_checked(end).unwrap_or_default();
        let is_data = matches!(self.line, Line::Data);
        if is_data {
            self.scanner.feed(text, target);
            self.is_done &= text.trim_ascii().is_empty();
            let mut bytes = text.iter().filter(|byte| **byte != b' ');
            self.done = self.done.and_then(|so_far| {
                bytes.try_fold(so_far, |matched, byte| {
                    (DONE.get(matched) == Some(byte)).then(|| matched.saturating_add(1))
                })
            });
        }
        let Some((&byte, rest)) = end.split_first() else { return end };
        if is_data {
            // The data of several lines is joined so.
            self.scanner.feed(b"\n", target);
            self.is_done |= self.done == Some(DONE.len());
        }
        self.end_line(byte);
        rest
    }

    /// `byte` ends a line.
    fn end_line(&mut self, byte: u8) {
        if matches!(self.line, Line::Name(0)) {
            self.scanner.restart();
            self.done = Some(0);
        }
        self.line = Line::Name(0);
        self.after_return = byte == b'\r';
    }
}
