//! Removes what collectors of logs write around a line of Envoy's.

use serde_json::Value;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The line without a byte-order mark, without what `kubectl logs --prefix` puts in front
/// (`[pod/NAME/CONTAINER]`), and without what CRI puts there (`TIME stdout F`). A part of a line
/// (`P`) stays as it is.
pub(super) fn bare(line: &[u8]) -> &[u8] {
    let mut line = line.trim_ascii();
    loop {
        let rest = line
            .strip_prefix(BYTE_ORDER_MARK)
            .or_else(|| after_space(line.strip_prefix(b"[pod/")?))
            .or_else(|| cri(line).filter(|line| line.is_last).map(|line| line.text));
        match rest {
            Some(rest) => line = rest.trim_ascii_start(),
            None => return line,
        }
    }
}

/// Streams of a container.
pub(super) const STREAMS: usize = 2;

/// A line, or a part of one, as CRI writes it: `TIME stdout F TEXT`.
pub(super) struct CriLine<'l> {
    /// Index of the stream: 0 for standard output, 1 for standard error.
    pub(super) stream: usize,
    /// Whether no further part follows.
    pub(super) is_last: bool,
    pub(super) text: &'l [u8],
}

/// Reads a line that CRI has written.
pub(super) fn cri(line: &[u8]) -> Option<CriLine<'_>> {
    let line = without_time(line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line))?;
    let after_name = |name: &[u8], stream| Some((stream, line.strip_prefix(name)?));
    let (stream, marked) = after_name(b"stdout ", 0).or_else(|| after_name(b"stderr ", 1))?;
    let after_mark = |mark: &[u8], is_last| Some((is_last, marked.strip_prefix(mark)?));
    let (is_last, text) = after_mark(b"F ", true).or_else(|| after_mark(b"P ", false))?;
    Some(CriLine { stream, is_last, text })
}

/// The line after the time that `kubectl logs --timestamps` and others put in front.
pub(super) fn without_time(line: &[u8]) -> Option<&[u8]> {
    let is_time = matches!(line, [a, b, c, d, b'-', _, _, b'-', _, _, b'T', ..]
        if [a, b, c, d].iter().all(|digit| digit.is_ascii_digit()));
    if is_time { after_space(line) } else { None }
}

/// The line that Docker's `json-file` has wrapped.
pub(super) fn of_docker(line: &[u8]) -> Option<String> {
    if !line.starts_with(b"{\"log\":\"") {
        return None;
    }
    let mut object: Value = serde_json::from_slice(line).ok()?;
    object.get("stream")?.as_str()?;
    match object.get_mut("log")?.take() {
        Value::String(text) => Some(text),
        _ => None,
    }
}

fn after_space(line: &[u8]) -> Option<&[u8]> {
    let space = memchr::memchr(b' ', line)?;
    line.get(space + 1..)
}
