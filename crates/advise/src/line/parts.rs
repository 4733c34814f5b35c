//! Joins lines that CRI has cut into parts. A line's last part has the mark `F`, all others `P`.
//! Standard output and standard error alternate in a file, so the parts of a line need not follow
//! each other.

use std::borrow::Cow;

use super::wrapped::{CriLine, STREAMS, cri};

/// Lines at the end of a chunk that are searched for parts. CRI cuts after 16 KiB.
const LOOK: usize = 64;

/// Parts of lines whose last part has not come yet, by stream.
#[derive(Debug, Default)]
pub(crate) struct Parts([Option<Unfinished>; STREAMS]);

#[derive(Debug)]
struct Unfinished {
    offset: u64,
    text: Vec<u8>,
}

impl Parts {
    /// Takes the next line of a log, at `offset`. Returns it, or the whole line that it ends, with
    /// the offset of its beginning; `None` if further parts must come.
    pub(crate) fn join<'l>(&mut self, offset: u64, line: &'l [u8]) -> Option<(u64, Cow<'l, [u8]>)> {
        let Some(CriLine { stream, is_last, text }) = cri(line) else {
            return Some((offset, line.into()));
        };
        let unfinished = self.0.get_mut(stream)?;
        match unfinished {
            None if is_last => return Some((offset, line.into())),
            None => *unfinished = Some(Unfinished { offset, text: text.to_vec() }),
            Some(line) => line.text.extend_from_slice(text),
        }
        let whole = unfinished.take_if(|_| is_last)?;
        Some((whole.offset, whole.text.into()))
    }

    /// Lines whose last part never came, with their offsets.
    pub(crate) fn unfinished(self) -> impl Iterator<Item = (u64, Vec<u8>)> {
        self.0.into_iter().flatten().map(|line| (line.offset, line.text))
    }
}

/// Bytes of these whole lines before the first part, near their end, whose line goes on after them.
pub(crate) fn without_unfinished(lines: &[u8]) -> usize {
    let (mut end, mut found) = (lines.len(), lines.len());
    // Whether the line that follows in the stream continues an earlier one.
    let mut goes_on = [None; STREAMS];
    for _ in 0..LOOK {
        let Some(before) = end.checked_sub(1) else { break };
        let begin = lines.get(..before).and_then(|lines| memchr::memrchr(b'\n', lines));
        let begin = begin.map_or(0, |at| at + 1);
        let Some(CriLine { stream, is_last, .. }) = lines.get(begin..before).and_then(cri) else {
            break;
        };
        let Some(goes_on) = goes_on.get_mut(stream) else { break };
        let goes_on = goes_on.get_or_insert(true);
        *goes_on &= !is_last;
        if *goes_on {
            found = begin;
        }
        end = begin;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_before_the_first_part_that_goes_on() {
        let whole = |lines: &str| {
            let written = |line: &str| {
                let (stream, mark) = line.split_at(1);
                let stream = if stream == "o" { "stdout" } else { "stderr" };
                format!("2026-11-28T10:00:00Z {stream} {mark} x\n")
            };
            let text: String = lines.split_whitespace().map(written).collect();
            let end = without_unfinished(text.as_bytes());
            text.get(..end).unwrap().lines().count()
        };
        for (lines, expected) in [
            ("", 0),
            ("oF oF", 2),
            ("oP oF", 2),
            ("oF oP", 1),
            ("oF oP oP", 1),
            ("oP oF oP oP", 2),
            ("oF oP eF eP eF", 1),
            ("oP eP oF eF", 4),
            ("oF eP oP oF", 1),
            ("eF oP eF oF oP", 4),
        ] {
            assert_eq!(whole(lines), expected, "{lines}");
        }
        assert_eq!(without_unfinished(b"{}\n"), 3);
        let endless = "2026-11-28T10:00:00Z stdout P x\n".repeat(2 * LOOK);
        assert_eq!(without_unfinished(endless.as_bytes()), endless.len() / 2);
    }
}
