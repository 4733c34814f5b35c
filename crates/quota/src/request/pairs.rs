//! Cookies and query parameters: pairs of a name and a value in one text.
//!
//! However the client wrote a value, the filter reads it as the upstream does:
//!
//! * cookies are separated by `;`, over all Cookie headers; the first `=` ends the name; spaces and
//!   tabs around name and value, and one pair of quotes around the value, are removed; within the
//!   quotes, `\141` and `\a` are an `a`, as Python reads them; `%XX` in the value is decoded, once.
//!   A piece without `=` is not a cookie. Names are compared as they are;
//! * query parameters are `application/x-www-form-urlencoded`: separated by `&`, with `+` for a
//!   space and `%XX` decoded in names and values. A piece without `=` is a name with an empty
//!   value.
//!
//! Each look-up reads the text once from front to end.

use std::borrow::Cow;

use super::percent;

/// The values of all cookies `name`, in the values of all Cookie headers.
pub(crate) fn cookies(headers: &[impl AsRef<[u8]>], name: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let pieces = headers.iter().flat_map(|header| header.as_ref().split(|b| *b == b';'));
    pieces.filter_map(move |piece| {
        let (key, value) = split(piece, b'=')?;
        (trim(key) == name).then(|| percent::decode(&unquote(trim(value))))
    })
}

/// The values of all parameters `name`, decoded, in the query string of `target`, a request's
/// `:path`.
pub(crate) fn parameters(target: &[u8], name: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let target = target.split(|b| *b == b'#').next().unwrap_or_default();
    let query = split(target, b'?').map_or(&[][..], |(_, query)| query);
    query.split(|b| *b == b'&').filter_map(move |piece| {
        let (key, value) = split(piece, b'=').unwrap_or((piece, b""));
        (*form(key) == *name).then(|| form(value).into_owned())
    })
}

/// Without the spaces and tabs at both ends.
pub(crate) fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

/// The same for a value that may be borrowed.
pub(crate) fn trim_value(text: &mut Cow<'_, [u8]>) {
    match text {
        Cow::Borrowed(text) => *text = trim(text),
        Cow::Owned(owned) => {
            let trimmed = trim(owned);
            if trimmed.len() < owned.len() {
                *owned = trimmed.to_vec();
            }
        }
    }
}

/// What is before and after the first `at`.
fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let index = text.iter().position(|b| *b == at)?;
    let (before, after) = text.split_at_checked(index)?;
    Some((before, after.get(1..)?))
}

fn unquote(text: &[u8]) -> Cow<'_, [u8]> {
    match text {
        [b'"', within @ .., b'"'] if within.contains(&b'\\') => Cow::Owned(unescape(within)),
        [b'"', within @ .., b'"'] => Cow::Borrowed(within),
        text => Cow::Borrowed(text),
    }
}

/// Replaces `\` and three octal digits by their byte, and `\` and any other byte by that byte.
fn unescape(mut text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    loop {
        let (byte, rest) = match text {
            [b'\\', high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', rest @ ..] => {
                ((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'), rest)
            }
            [b'\\', byte, rest @ ..] | [byte, rest @ ..] => (*byte, rest),
            [] => return out,
        };
        out.push(byte);
        text = rest;
    }
}

/// Decodes a part of a form; most need no decoding.
fn form(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|b| matches!(b, b'+' | b'%')) {
        return Cow::Borrowed(text);
    }
    let spaces: Vec<u8> = text.iter().map(|b| if *b == b'+' { b' ' } else { *b }).collect();
    Cow::Owned(percent::decode(&spaces))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::fact::{FactBytes, Found};

    fn value(text: &str) -> Found<'_> {
        Found::Value(FactBytes::Borrowed(text.as_bytes()))
    }

    #[test]
    fn a_cookie_has_one_spelling_and_is_given_once() {
        for (headers, found) in [
            (&["sid=a"][..], value("a")),
            (&["x=1; sid=a; y=2"], value("a")),
            (&["x=1;sid=a;y=2"], value("a")),
            (&["x=1", "sid=a"], value("a")),
            (&["\tsid = a b \t"], value("a b")),
            (&["sid=\"a\""], value("a")),
            (&["sid=%61"], value("a")),
            (&["sid=%2561"], value("%61")),
            (&[r#"sid="\141""#], value("a")),
            (&[r#"sid="\a""#], value("a")),
            (&[r#"sid="\""#], value("\\")),
            (&[r#"sid="\477\9""#], value("4779")),
            (&[r"sid=\141"], value(r"\141")),
            (&["sid=a=b=="], value("a=b==")),
            (&["sid=a+b"], value("a+b")),
            (&["sid=\""], value("\"")),
            (&["SID=a"], Found::Missing),
            (&["%73id=a"], Found::Missing),
            (&["xsid=a"], Found::Missing),
            (&["x=sid=a"], Found::Missing),
            (&["sid"], Found::Missing),
            (&["sid="], Found::Missing),
            (&["sid=\"\""], Found::Missing),
            (&[], Found::Missing),
            (&["sid=a; sid=a"], Found::Ambiguous),
            (&["sid=a; sid="], Found::Ambiguous),
            (&["sid=a", "sid=b"], Found::Ambiguous),
        ] {
            let headers: Vec<Vec<u8>> =
                headers.iter().map(|header| header.as_bytes().to_vec()).collect();
            assert_eq!(Found::only(cookies(&headers, b"sid")), found, "{headers:?}");
        }
    }

    #[test]
    fn a_parameter_has_one_spelling_and_is_given_once() {
        for (target, found) in [
            ("/?key=a", value("a")),
            ("/x?y=1&key=a&z", value("a")),
            ("/?k%65y=%61", value("a")),
            ("/?key=a+b%2Bc", value("a b+c")),
            ("/?key=a=b", value("a=b")),
            ("/?key=a?b", value("a?b")),
            ("/?key=%2561", value("%61")),
            ("/?key=%zz", value("%zz")),
            ("/?key=a;b", value("a;b")),
            ("/?KEY=a", Found::Missing),
            ("/?key", Found::Missing),
            ("/?key=", Found::Missing),
            ("/?", Found::Missing),
            ("/", Found::Missing),
            ("/key=a", Found::Missing),
            ("/#?key=a", Found::Missing),
            ("/?x=1#&key=a", Found::Missing),
            ("/?key=a&key=a", Found::Ambiguous),
            ("/?key=a&k%65y", Found::Ambiguous),
        ] {
            assert_eq!(Found::only(parameters(target.as_bytes(), b"key")), found, "{target}");
        }
    }

    #[test]
    fn invariant_4_a_thousand_cookies_are_read_once() {
        let many: Vec<String> = (0..1000).map(|i| format!("c{i}={i}")).collect();
        let header = vec![many.join("; ").into_bytes()];
        assert_eq!(Found::only(cookies(&header, b"c999")), value("999"));
        assert_eq!(cookies(&header, b"c1000").next(), None);
    }
}
