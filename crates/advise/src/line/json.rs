//! Finds a few values in a line of JSON, usually three of fifteen fields.
//!
//! It is written by hand because the advisor spends half of its time here: it skips strings with
//! `memchr`, builds nothing, and stops at the last field, so it checks neither literals nor the
//! rest of the line. In valid JSON it finds the same values as `serde_json`; a test compares them.

use std::borrow::Cow;

use memchr::memchr2;

use super::fields::NUMBER;

/// The paths of the fields to read: names with dots between them.
pub(crate) type Paths<'p> = [Option<&'p str>; NUMBER];

/// The raw values of the fields.
pub(crate) type Found<'l> = [Option<&'l [u8]>; NUMBER];

/// The values at these paths. None if the part of the line that is read is no JSON object. If a
/// name occurs twice, the first value counts.
pub(crate) fn find<'l>(line: &'l [u8], paths: &Paths<'_>) -> Option<Found<'l>> {
    if !line.trim_ascii_end().ends_with(b"}") {
        return None;
    }
    let mut scanner =
        Scanner { rest: line, found: [None; NUMBER], missing: paths.iter().flatten().count() };
    scanner.space();
    scanner.object(paths)?;
    Some(scanner.found)
}

/// The text of a string, or another scalar unchanged; none for `null`, arrays and objects.
pub(crate) fn text(raw: &[u8]) -> Option<Cow<'_, [u8]>> {
    match raw {
        b"null" | [b'{' | b'[', ..] => None,
        [b'"', inner @ .., b'"'] if memchr::memchr(b'\\', inner).is_none() => {
            Some(Cow::Borrowed(inner))
        }
        [b'"', ..] => {
            let text: String = serde_json::from_slice(raw).ok()?;
            Some(Cow::Owned(text.into_bytes()))
        }
        scalar => Some(Cow::Borrowed(scalar)),
    }
}

/// The names of the fields in a line; empty if it is no JSON object.
pub(crate) fn names(line: &[u8]) -> impl Iterator<Item = String> {
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(line).unwrap_or_default();
    object.into_iter().map(|(name, _)| name)
}

struct Scanner<'l> {
    rest: &'l [u8],
    found: Found<'l>,
    missing: usize,
}

impl<'l> Scanner<'l> {
    fn space(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        let (first, rest) = self.rest.split_first()?;
        (*first == byte).then(|| self.rest = rest)
    }

    /// Takes this many bytes.
    fn advance(&mut self, length: usize) -> Option<&'l [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    /// Reads an object, and stops inside it once all fields are found.
    fn object(&mut self, paths: &Paths<'_>) -> Option<()> {
        self.take(b'{')?;
        self.space();
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            let name = self.string()?;
            self.space();
            self.take(b':')?;
            self.space();
            self.field(unquoted(name), paths)?;
            if self.missing == 0 {
                return Some(());
            }
            self.space();
            match self.advance(1)? {
                b"," => self.space(),
                b"}" => return Some(()),
                _ => return None,
            }
        }
    }

    fn field(&mut self, name: &[u8], paths: &Paths<'_>) -> Option<()> {
        let below = |path: &&str| {
            path.as_bytes().strip_prefix(name).is_some_and(|rest| rest.starts_with(b"."))
        };
        if self.rest.first() == Some(&b'{') && paths.iter().flatten().any(below) {
            let deeper =
                paths.map(|path| path.filter(below).and_then(|path| path.get(name.len() + 1..)));
            return self.object(&deeper);
        }
        let value = self.value()?;
        for (path, found) in paths.iter().zip(&mut self.found) {
            if found.is_none() && path.is_some_and(|path| path.as_bytes() == name) {
                *found = Some(value);
                self.missing -= 1;
            }
        }
        Some(())
    }

    /// A string with its quotes.
    fn string(&mut self) -> Option<&'l [u8]> {
        if self.rest.first() != Some(&b'"') {
            return None;
        }
        let mut from = 1;
        loop {
            let at = from + memchr2(b'"', b'\\', self.rest.get(from..)?)?;
            if self.rest.get(at) == Some(&b'"') {
                return self.advance(at + 1);
            }
            from = at + 2;
        }
    }

    fn value(&mut self) -> Option<&'l [u8]> {
        match self.rest.first()? {
            b'"' => self.string(),
            b'{' | b'[' => self.nested(),
            _ => {
                let end = |byte: &u8| {
                    matches!(byte, b',' | b'}' | b']' | b'"') || byte.is_ascii_whitespace()
                };
                let length = self.rest.iter().position(end)?;
                if length == 0 { None } else { self.advance(length) }
            }
        }
    }

    fn nested(&mut self) -> Option<&'l [u8]> {
        let begin = self.rest;
        let mut depth = 0_usize;
        loop {
            match self.rest.first()? {
                b'"' => drop(self.string()?),
                byte => {
                    match byte {
                        b'{' | b'[' => depth += 1,
                        b'}' | b']' => depth -= 1,
                        _ => {}
                    }
                    self.advance(1)?;
                }
            }
            if depth == 0 {
                return begin.get(..begin.len() - self.rest.len());
            }
        }
    }
}

fn unquoted(string: &[u8]) -> &[u8] {
    string.strip_prefix(b"\"").and_then(|inner| inner.strip_suffix(b"\"")).unwrap_or(string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn texts(line: &str, paths: Paths<'_>) -> Option<Vec<Option<String>>> {
        let found = find(line.as_bytes(), &paths)?;
        let text = |raw: &[u8]| text(raw).map(|text| String::from_utf8(text.into_owned()).unwrap());
        Some(found.iter().map(|raw| raw.and_then(text)).collect())
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn fields_are_found_by_name_and_by_path() {
        let line = r#" {"a" : "x\"y\u00e9", "skip": [1, {"b": "]"}], "b": {"c": {"d": 7}, "e": null}, "f.g": true} "#;
        let found = texts(
            line,
            [Some("a"), Some("b.c.d"), Some("b.e"), Some("f.g"), Some("b"), None, None],
        )
        .unwrap();
        assert_eq!(found, [some("x\"yé"), some("7"), None, some("true"), None, None, None]);
    }

    #[test]
    fn lines_that_are_no_objects_are_refused() {
        let bad = [
            "",
            "}",
            "{",
            "[]",
            "[}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1 \"b\":2}",
            "{\"a\":1",
            "{\"a\\\"}",
            "{a:1}",
        ];
        for line in bad {
            assert_eq!(
                texts(line, [Some("z"), None, None, None, None, None, None]),
                None,
                "{line}"
            );
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
            "[a-c\"\\\\{}\\[\\],:.]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map("[a-c]{1,2}", inner, 0..4).prop_map(|map| json!(map)),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_finds_what_serde_json_finds(fields in prop::collection::hash_map("[a-c]{1,2}", any_value(), 0..6), pretty: bool) {
            let document = json!(fields);
            let line = if pretty { serde_json::to_string_pretty(&document) } else { serde_json::to_string(&document) }.unwrap();
            let paths = [Some("a"), Some("b.a"), Some("c.b.a"), Some("ab"), Some("zz"), None, None];
            let expected = paths.map(|path| {
                let value = document.pointer(&format!("/{}", path?.replace('.', "/")))?;
                match value {
                    Value::Null | Value::Array(_) | Value::Object(_) => None,
                    Value::String(text) => Some(text.clone()),
                    scalar => Some(scalar.to_string()),
                }
            });
            prop_assert_eq!(texts(&line, paths).unwrap(), expected);
        }

        #[test]
        fn hostile_bytes_do_no_harm(bytes in prop::collection::vec(prop::sample::select(b"{}[]\":,\\ a.0n\xff".to_vec()), 0..60)) {
            let found = find(&bytes, &[Some("a"), Some("a.a"), None, None, Some("n"), None, None]);
            let _ = found.map(|found| found.iter().flatten().filter_map(|raw| text(raw)).count());
        }
    }
}
