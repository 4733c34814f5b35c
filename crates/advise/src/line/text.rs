//! Finds a few values in a line of text by its format string.
//!
//! A value ends where the text after it in the format first occurs. So a value from a client, such
//! as a path or a user agent, can shift all values after it: fields that matter belong in front.
//! Reading stops after the last selected value.

use memchr::memmem::Finder;

use super::fields::NUMBER;
use super::json::Found;

/// Envoy's default format.
pub(crate) const DEFAULT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
     %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \
     %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \
     \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\"";

/// A parsed format string.
#[derive(Clone, Debug)]
pub(crate) struct Format {
    /// The text before the first value.
    head: Vec<u8>,
    values: Vec<Field>,
}

/// An operator of Envoy, and the text after it.
#[derive(Clone, Debug)]
struct Field {
    /// The operator without percent signs and length: `REQ(X-FORWARDED-FOR)`.
    name: String,
    /// Indexes of the fields that it is read for.
    fields: Vec<usize>,
    /// The text after it; none for the last value, which ends with the line.
    end: Option<Finder<'static>>,
}

impl Format {
    /// Parses a format string.
    ///
    /// # Errors
    /// A sentence about the mistake in it.
    pub(crate) fn parse(format: &str) -> Result<Self, String> {
        let mut pieces = pieces(format.trim_end_matches('\n'))?.into_iter().peekable();
        let head = pieces.next_if(|piece| matches!(piece, FormatPiece::Text(_)));
        let head = if let Some(FormatPiece::Text(text)) = head { text } else { String::new() };
        let mut values = Vec::new();
        while let Some(FormatPiece::Operator(name)) = pieces.next() {
            let end = match pieces.next() {
                None => None,
                Some(FormatPiece::Text(text)) => Some(Finder::new(text.as_bytes()).into_owned()),
                Some(FormatPiece::Operator(next)) => {
                    return Err(format!(
                        "there is no text between %{name}% and %{next}%, so the end of the first value is unknown"
                    ));
                }
            };
            values.push(Field { name, fields: Vec::new(), end });
        }
        Ok(Self { head: head.into_bytes(), values })
    }

    /// The operators in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|field| field.name.as_str())
    }

    /// Selects the first matching operator for the field with this index. An operator may serve
    /// several fields. Returns false if none matches.
    pub(crate) fn want(&mut self, is: impl Fn(&str) -> bool, field: usize) -> bool {
        let value = self.values.iter_mut().find(|value| is(&value.name));
        value.map(|value| value.fields.push(field)).is_some()
    }

    /// Drops everything after the last selected value.
    pub(crate) fn stop_early(&mut self) {
        let last = self.values.iter().rposition(|value| !value.fields.is_empty());
        self.values.truncate(last.map_or(0, |last| last + 1));
    }

    /// The selected values; none if the line does not have this format.
    pub(crate) fn find<'l>(&self, line: &'l [u8]) -> Option<Found<'l>> {
        let mut rest = line.strip_prefix(self.head.as_slice())?;
        let mut found = [None; NUMBER];
        for part in &self.values {
            let value = match &part.end {
                None => std::mem::take(&mut rest),
                Some(end) => {
                    let (value, behind) = rest.split_at_checked(end.find(rest)?)?;
                    rest = behind.get(end.needle().len()..)?;
                    value
                }
            };
            for field in &part.fields {
                if let Some(slot) = found.get_mut(*field) {
                    *slot = Some(value);
                }
            }
        }
        Some(found)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum FormatPiece {
    Text(String),
    Operator(String),
}

fn pieces(format: &str) -> Result<Vec<FormatPiece>, String> {
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
        let (name, behind) = operator(after)
            .ok_or_else(|| format!("the operator at \"%{}\" has no end", cut(after)))?;
        if !text.is_empty() {
            pieces.push(FormatPiece::Text(std::mem::take(&mut text)));
        }
        pieces.push(FormatPiece::Operator(name.to_owned()));
        rest = behind;
    }
    text.push_str(rest);
    if !text.is_empty() {
        pieces.push(FormatPiece::Text(text));
    }
    Ok(pieces)
}

/// The operator with its arguments, and the text after its percent sign. Arguments may contain
/// percent signs.
fn operator(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            '%' if depth == 0 => {
                let inner = text.get(..at)?;
                // `:10` cuts the value to ten characters.
                let length =
                    |tail: &str| !tail.is_empty() && tail.bytes().all(|byte| byte.is_ascii_digit());
                let name = inner
                    .rsplit_once(':')
                    .filter(|(_, tail)| length(tail))
                    .map_or(inner, |(name, _)| name);
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
        for (field, name) in wanted.iter().enumerate() {
            assert!(format.want(|other| other == *name, field), "{name}");
        }
        format.stop_early();
        let found = format.find(line.as_bytes())?;
        Some(
            found
                .iter()
                .flatten()
                .map(|value| String::from_utf8_lossy(value).into_owned())
                .collect(),
        )
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
    fn arguments_lengths_and_percent_signs_are_parsed() {
        let format = "100%% %START_TIME(%d/%b/%Y:%H:%M:%S %z)%|%FILTER_STATE(a.b:PLAIN):64%\n";
        let wanted = ["START_TIME(%d/%b/%Y:%H:%M:%S %z)", "FILTER_STATE(a.b:PLAIN)"];
        assert_eq!(
            find(format, &wanted, "100% 21/Nov/2026:22:55:41 +0000|ip=192.0.2.7").unwrap(),
            ["21/Nov/2026:22:55:41 +0000", "ip=192.0.2.7"]
        );
    }

    #[test]
    fn bad_formats_are_refused_with_the_operator() {
        assert!(Format::parse("%A%%B%").unwrap_err().contains("between %A% and %B%"));
        assert!(Format::parse("%A(x%").unwrap_err().contains("no end"));
        assert!(Format::parse("%START_TIME").unwrap_err().contains("no end"));
    }
}
