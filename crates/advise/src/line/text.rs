//! Finds a few values in a line of text, by the format string that Envoy wrote it with.
//!
//! A value ends where the text that follows it in the format first comes. So a value that clients choose (a path, a
//! user agent) can shift what stands behind it: fields that matter belong in front of it. Reading stops at the last one
//! that is wanted.

use memchr::memmem::Finder;

use super::fields::NUMBER;
use super::json::Found;

/// What Envoy writes unless told otherwise.
pub(crate) const DEFAULT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
     %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \
     %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \
     \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\"";

/// A format string, taken apart.
#[derive(Clone, Debug)]
pub(crate) struct Format {
    /// What stands before the first value.
    head: Vec<u8>,
    values: Vec<Field>,
}

/// An operator of Envoy, and the text behind it.
#[derive(Clone, Debug)]
struct Field {
    /// As in the format, without percent signs and length: `REQ(X-FORWARDED-FOR)`.
    name: String,
    /// The places of what is wanted of it.
    places: Vec<usize>,
    /// None: it is the last, and reaches to the end of the line.
    end: Option<Finder<'static>>,
}

impl Format {
    /// Takes a format string apart.
    ///
    /// # Errors
    /// A sentence on what is wrong with it.
    pub(crate) fn parse(format: &str) -> Result<Self, String> {
        let mut pieces = pieces(format.trim_end_matches('\n'))?.into_iter().peekable();
        let head = pieces.next_if(|piece| matches!(piece, Piece::Text(_)));
        let head = if let Some(Piece::Text(text)) = head { text } else { String::new() };
        let mut values = Vec::new();
        while let Some(Piece::Operator(name)) = pieces.next() {
            let end = match pieces.next() {
                None => None,
                Some(Piece::Text(text)) => Some(Finder::new(text.as_bytes()).into_owned()),
                Some(Piece::Operator(next)) => {
                    return Err(format!(
                        "nothing stands between %{name}% and %{next}%, so none knows where one ends"
                    ));
                }
            };
            values.push(Field { name, places: Vec::new(), end });
        }
        Ok(Self { head: head.into_bytes(), values })
    }

    /// The names of its operators, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|field| field.name.as_str())
    }

    /// Wants this operator's value at that place of what is found, beside others that it is wanted for; false if the format
    /// has no such operator.
    pub(crate) fn want(&mut self, is: impl Fn(&str) -> bool, place: usize) -> bool {
        let field = self.values.iter_mut().find(|field| is(&field.name));
        field.map(|field| field.places.push(place)).is_some()
    }

    /// Forgets what stands behind the last value that is wanted.
    pub(crate) fn stop_early(&mut self) {
        let last = self.values.iter().rposition(|field| !field.places.is_empty());
        self.values.truncate(last.map_or(0, |last| last + 1));
    }

    /// The values that are wanted; none if the line was not written with this format.
    pub(crate) fn find<'l>(&self, line: &'l [u8]) -> Option<Found<'l>> {
        let mut rest = line.strip_prefix(self.head.as_slice())?;
        let mut found = [None; NUMBER];
        for field in &self.values {
            let value = match &field.end {
                None => std::mem::take(&mut rest),
                Some(end) => {
                    let (value, behind) = rest.split_at_checked(end.find(rest)?)?;
                    rest = behind.get(end.needle().len()..)?;
                    value
                }
            };
            for place in &field.places {
                if let Some(slot) = found.get_mut(*place) {
                    *slot = Some(value);
                }
            }
        }
        Some(found)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Operator(String),
}

fn pieces(format: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        if let Some(after) = after.strip_prefix('%') {
            text.push('%');
            rest = after;
            continue;
        }
        let (name, behind) =
            operator(after).ok_or_else(|| format!("the operator at \"%{}\" has no end", cut(after)))?;
        if !text.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut text)));
        }
        pieces.push(Piece::Operator(name.to_owned()));
        rest = behind;
    }
    text.push_str(rest);
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

/// The operator's name with its arguments, and what follows its percent sign. Arguments may hold such signs.
fn operator(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            '%' if depth == 0 => {
                let inner = text.get(..at)?;
                // `:10` is the length to cut the value to.
                let length = |tail: &str| !tail.is_empty() && tail.bytes().all(|byte| byte.is_ascii_digit());
                let name =
                    inner.rsplit_once(':').filter(|(_, tail)| length(tail)).map_or(inner, |(name, _)| name);
                return (!name.is_empty()).then_some((name, text.get(at + 1..)?));
            }
            _ => {}
        }
    }
    None
}

fn cut(text: &str) -> String {
    text.chars().take(20).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(format: &str, wanted: &[&str], line: &str) -> Option<Vec<String>> {
        let mut format = Format::parse(format).unwrap();
        for (place, name) in wanted.iter().enumerate() {
            assert!(format.want(|other| other == *name, place), "{name}");
        }
        format.stop_early();
        let found = format.find(line.as_bytes())?;
        Some(found.iter().flatten().map(|value| String::from_utf8_lossy(value).into_owned()).collect())
    }

    #[test]
    fn the_default_format_is_read() {
        let line = "[2026-11-21T22:55:41.123Z] \"GET /a?b=c HTTP/1.1\" 200 - 0 5 3 2 \"192.0.2.7\" \"curl/8 \" x\" \"id\" \
                    \"example.com\" \"10.0.0.1:80\"";
        let found = find(DEFAULT, &["START_TIME", "REQ(X-FORWARDED-FOR)"], line).unwrap();
        assert_eq!(found, ["2026-11-21T22:55:41.123Z", "192.0.2.7"]);
        assert_eq!(find(DEFAULT, &["START_TIME"], "hello"), None);
        assert_eq!(find(DEFAULT, &["REQ(X-FORWARDED-FOR)"], "[2026] \"GET / HTTP/1.1\" 200"), None);
    }

    #[test]
    fn arguments_lengths_and_percent_signs_are_understood() {
        let format = "100%% %START_TIME(%d/%b/%Y:%H:%M:%S %z)%|%FILTER_STATE(a.b:PLAIN):64%\n";
        let wanted = ["START_TIME(%d/%b/%Y:%H:%M:%S %z)", "FILTER_STATE(a.b:PLAIN)"];
        assert_eq!(
            find(format, &wanted, "100% 21/Nov/2026:22:55:41 +0000|ip=192.0.2.7").unwrap(),
            ["21/Nov/2026:22:55:41 +0000", "ip=192.0.2.7"]
        );
    }

    #[test]
    fn bad_formats_are_told() {
        assert!(Format::parse("%A%%B%").unwrap_err().contains("between %A% and %B%"));
        assert!(Format::parse("%A(x%").unwrap_err().contains("no end"));
        assert!(Format::parse("%START_TIME").unwrap_err().contains("no end"));
    }
}
