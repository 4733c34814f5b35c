//! Cuts a log into chunks of whole lines, and mostly not between the parts of a line.

use std::io::{ErrorKind, Read as _};
use std::ops::Deref;

use super::open::Bytes;
use crate::line::without_unfinished;

/// Bytes of a chunk, and of the longest line. A longer line is malformed.
pub(crate) const CHUNK: usize = 2 * 1024 * 1024;

/// Whole lines, in a buffer of [`CHUNK`] bytes that is reused.
pub(crate) struct Chunk {
    room: Vec<u8>,
    length: usize,
}

/// The bytes of a log.
pub(crate) struct Chunks {
    source: Bytes,
    /// The beginning of an unfinished line.
    carried: Vec<u8>,
    /// Whether the rest of a line that is too long is skipped.
    skipping: bool,
    offset: u64,
    /// Set at the end of the log, with the error that truncated it, if any.
    end: Option<Option<String>>,
}

/// What [`Chunks::next`] has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    /// The position of the chunk in the decompressed log.
    pub(crate) offset: u64,
    /// Lines that were skipped because they are too long.
    pub(crate) too_long: u64,
}

impl Chunks {
    pub(crate) fn new(source: Bytes) -> Self {
        Self { source, carried: Vec::new(), skipping: false, offset: 0, end: None }
    }

    /// Replaces `chunk` by the next one. It is empty only at the end of the log.
    pub(crate) fn next(&mut self, chunk: &mut Chunk) -> Filled {
        let mut filled = Filled { offset: self.offset, too_long: 0 };
        chunk.begin(&self.carried);
        self.carried.clear();
        while self.end.is_none() {
            self.end = chunk.fill(&mut self.source);
            if self.skipping {
                let Some(end) = memchr::memchr(b'\n', chunk) else {
                    filled.offset += chunk.len() as u64;
                    chunk.length = 0;
                    continue;
                };
                filled.offset += end as u64 + 1;
                chunk.remove(end + 1);
                self.skipping = false;
                continue;
            }
            if self.end.is_some() {
                break;
            }
            match memchr::memrchr(b'\n', chunk) {
                Some(last) => {
                    let lines = chunk.get(..=last).unwrap_or_default();
                    // Parts that never end must not stop everything.
                    let whole = Some(without_unfinished(lines)).filter(|whole| *whole > CHUNK / 2);
                    let end = whole.unwrap_or(lines.len());
                    self.carried.extend_from_slice(chunk.get(end..).unwrap_or_default());
                    chunk.length = end;
                    break;
                }
                None => {
                    filled.too_long += 1;
                    filled.offset += chunk.len() as u64;
                    chunk.length = 0;
                    self.skipping = true;
                }
            }
        }
        // A truncated log ends with an incomplete line.
        if matches!(self.end, Some(Some(_))) {
            chunk.length = memchr::memrchr(b'\n', chunk).map_or(0, |last| last + 1);
        }
        self.offset = filled.offset + chunk.len() as u64;
        filled
    }

    /// The error that truncated the log, at its end.
    pub(crate) fn damage(&self) -> Option<&str> {
        self.end.as_ref()?.as_deref()
    }

    /// Whether the log is finished.
    pub(crate) fn is_over(&self) -> bool {
        self.end.is_some()
    }
}

impl Chunk {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self { room: vec![0; CHUNK], length: 0 }
    }

    /// Begins with these bytes, which must fit.
    fn begin(&mut self, bytes: &[u8]) {
        self.length = self.room.get_mut(..bytes.len()).map_or(0, |room| {
            room.copy_from_slice(bytes);
            bytes.len()
        });
    }

    /// Reads until the buffer is full or the log ends. Then it returns the error that truncated the
    /// log, if any.
    fn fill(&mut self, source: &mut Bytes) -> Option<Option<String>> {
        while let Some(room) = self.room.get_mut(self.length..).filter(|room| !room.is_empty()) {
            match source.read(room) {
                Ok(0) => return Some(None),
                Ok(read) => self.length += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Some(Some(error.to_string())),
            }
        }
        None
    }

    /// Removes bytes at the beginning.
    fn remove(&mut self, bytes: usize) {
        self.room.copy_within(bytes.min(self.length)..self.length, 0);
        self.length = self.length.saturating_sub(bytes);
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.room.get(..self.length).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Cursor, Read};

    type Whole = (Vec<(u64, Vec<u8>)>, u64, Option<String>);

    fn all(source: impl Read + Send + 'static) -> Whole {
        let mut chunks = Chunks::new(Box::new(source));
        let (mut found, mut too_long, mut chunk) = (Vec::new(), 0, Chunk::new());
        loop {
            let filled = chunks.next(&mut chunk);
            too_long += filled.too_long;
            if chunk.is_empty() {
                assert!(chunks.is_over());
                return (found, too_long, chunks.damage().map(str::to_owned));
            }
            found.push((filled.offset, chunk.to_vec()));
        }
    }

    #[test]
    fn chunks_end_with_lines_and_hold_everything() {
        let text: Vec<u8> = (0..500_000)
            .flat_map(|i| format!("line {i}\n").into_bytes())
            .chain(*b"the last")
            .collect();
        let (found, too_long, damage) = all(Cursor::new(text.clone()));
        assert!(found.len() > 2 && too_long == 0 && damage.is_none());
        let (last, others) = found.split_last().unwrap();
        assert!(
            others.iter().all(|(_, chunk)| chunk.ends_with(b"\n")) && last.1.ends_with(b"the last")
        );
        for (offset, chunk) in &found {
            assert!(text[*offset as usize..].starts_with(chunk));
        }
        assert_eq!(found.into_iter().flat_map(|(_, chunk)| chunk).collect::<Vec<_>>(), text);
        assert_eq!(all(io::empty()), (Vec::new(), 0, None));
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped() {
        let long = vec![b'x'; CHUNK * 2 + 5];
        let text = [b"one\n".as_slice(), &long, b"\ntwo\n"].concat();
        let (found, too_long, _) = all(Cursor::new(text));
        let texts: Vec<u8> = found.iter().flat_map(|(_, chunk)| chunk.clone()).collect();
        assert_eq!((texts, too_long), (b"one\ntwo\n".to_vec(), 1));
        assert_eq!(found.last().unwrap().0, 4 + long.len() as u64 + 1);
    }

    #[test]
    fn lines_before_the_damage_are_kept() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("broken"))
            }
        }
        let (found, _, damage) = all(Cursor::new(b"one\ntwo\nthr").chain(Broken));
        assert_eq!((found, damage), (vec![(0, b"one\ntwo\n".to_vec())], Some("broken".to_owned())));
    }
}
