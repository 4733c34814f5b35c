//! What collectors of logs write around a line of Envoy's.

use serde_json::Value;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The line without a byte-order mark, without what `kubectl logs --prefix` puts in front
/// (`[pod/NAME/CONTAINER]`), and without what CRI puts there (`TIME stdout F`). A line that CRI has
/// cut into parts (`P`) stays as it is.
pub(super) fn bare(line: &[u8]) -> &[u8] {
    let mut line = line.trim_ascii();
    loop {
        let rest = line
            .strip_prefix(BYTE_ORDER_MARK)
            .or_else(|| after_space(line.strip_prefix(b"[pod/")?))
            .or_else(|| {
                let line = without_time(line)?;
                let stream = |name: &[u8]| line.strip_prefix(name)?.strip_prefix(b" F ");
                stream(b"stdout").or_else(|| stream(b"stderr"))
            });
        match rest {
            Some(rest) => line = rest.trim_ascii_start(),
            None => return line,
        }
    }
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
