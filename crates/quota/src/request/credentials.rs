//! Credentials in one spelling, so that another spelling of a key opens no fresh quota.
//!
//! `Authorization` and `Proxy-Authorization` hold a scheme, and after a space what that scheme
//! defines (RFC 9110, section 11.4). Upstreams accept the scheme in any case and any run of spaces
//! and tabs after it, and any padding of the base64 of `Basic`. So the filter compares:
//!
//! * the scheme with one capital letter, such as `Bearer`, and one space after it;
//! * the base64 of `Basic` with its padding, and with unused bits of 0.
//!
//! Where upstreams read several keys out of one value, the value is ambiguous.
//!
//! A value without a space is no scheme but a bare key, and stays as it is. So does what follows
//! any other scheme than `Basic`.

use std::borrow::Cow;

use crate::document::names::is_token;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Whether the header with this lower-case name holds credentials.
pub(crate) fn are_in(name: &str) -> bool {
    matches!(name, "authorization" | "proxy-authorization")
}

/// A whole value without spaces around it, in its one spelling.
pub(crate) fn normalize(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    match respelt(&value, base64) {
        Some(spelt) => Cow::Owned(spelt),
        None => value,
    }
}

/// The beginning of a value. Without a space, it is the beginning of a scheme or of a bare key:
/// then the result is `None`.
pub(crate) fn normalize_prefix(text: &str) -> Option<Cow<'_, [u8]>> {
    let text = text.as_bytes();
    split(text)?;
    Some(respelt(text, |base64| base64.into()).map_or(Cow::Borrowed(text), Cow::Owned))
}

/// Whether upstreams may read several keys out of one of the normalized values of the header with
/// this lower-case name.
pub(crate) fn are_ambiguous(name: &str, values: &[impl AsRef<[u8]>]) -> bool {
    are_in(name) && values.iter().any(|value| is_ambiguous(value.as_ref()))
}

/// Whether an upstream may read the key of `exact`, which is normalized, out of one of these
/// values, if one is ambiguous. The upstream skips, or ends at, what belongs to no key.
pub(crate) fn may_hold(exact: &str, values: &[impl AsRef<[u8]>]) -> bool {
    let (scheme, key) = split(exact.as_bytes()).unwrap_or((b"", exact.as_bytes()));
    let mut key = digits(key);
    // The last digit of base64 may have other unused bits.
    if scheme == b"Basic" && !key.len().is_multiple_of(4) {
        key.pop();
    }
    let holds = |value: &[u8]| digits(value).windows(key.len()).any(|part| part == key);
    key.is_empty() || values.iter().any(|value| holds(value.as_ref()))
}

/// Some upstreams take all that follows the scheme, and others end the key at a space, `,` or `;`,
/// or trim more than spaces from it, or read parameters. Decoders of base64 end at a foreign
/// character, or skip it, or take `-` and `_` for digits.
fn is_ambiguous(value: &[u8]) -> bool {
    let Some((scheme, credentials)) = split(value) else { return false };
    match scheme {
        b"Basic" => !is_padded(credentials, is_digit),
        b"Bearer" => {
            let ends = |byte: &u8| is_separator(*byte) || b",;\"'".contains(byte);
            credentials.starts_with(b"token=") || credentials.iter().any(ends)
        }
        _ => {
            let ends = |byte: &u8| is_separator(*byte) || matches!(byte, b',' | b';');
            let end = credentials.iter().position(ends);
            end.and_then(|end| credentials.get(..end)).is_some_and(is_key)
        }
    }
}

/// The regular expression has a scheme that no normalized value begins with: the spelling to write
/// instead.
pub(crate) fn misspelt_scheme(regex: &str) -> Option<String> {
    let end = regex.find(|c: char| !c.is_ascii_alphanumeric() && c != '-')?;
    let (scheme, rest) = regex.split_at_checked(end)?;
    let follows = [" ", "\\s", "[ "].iter().any(|space| rest.starts_with(space));
    (follows && !scheme.is_empty() && !is_capitalized(scheme.as_bytes()))
        .then(|| String::from_utf8_lossy(&capitalized(scheme.as_bytes())).into_owned())
}

/// The value in another spelling, unless it has its normal one. `basic` spells base64.
fn respelt(value: &[u8], basic: fn(&[u8]) -> Cow<'_, [u8]>) -> Option<Vec<u8>> {
    let (scheme, credentials) = split(value)?;
    let spelt = match scheme.eq_ignore_ascii_case(b"basic") {
        true => basic(credentials),
        false => Cow::Borrowed(credentials),
    };
    let has_one_space = value.len() == scheme.len() + 1 + credentials.len()
        && value.get(scheme.len()) == Some(&b' ');
    if has_one_space && is_capitalized(scheme) && matches!(spelt, Cow::Borrowed(_)) {
        return None;
    }
    let mut out = capitalized(scheme);
    out.push(b' ');
    out.extend_from_slice(&spelt);
    Some(out)
}

/// The scheme, and what follows the spaces after it.
fn split(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = value.iter().position(|b| is_separator(*b))?;
    let (scheme, rest) = value.split_at_checked(end)?;
    let spaces = rest.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
    std::str::from_utf8(scheme).is_ok_and(is_token).then_some((scheme, rest.get(spaces..)?))
}

/// Whether this byte ends a scheme or a key. Some upstreams trim spaces outside ASCII.
fn is_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t') || !byte.is_ascii()
}

fn is_capitalized(scheme: &[u8]) -> bool {
    scheme.split_first().is_some_and(|(first, rest)| {
        !first.is_ascii_lowercase() && !rest.iter().any(u8::is_ascii_uppercase)
    })
}

fn capitalized(scheme: &[u8]) -> Vec<u8> {
    let mut scheme = scheme.to_ascii_lowercase();
    scheme.iter_mut().take(1).for_each(|first| first.make_ascii_uppercase());
    scheme
}

/// Whether `text` is a single key and not the beginning of parameters. Beyond the characters of
/// RFC 9110, Laravel's keys have a `|`, and others a `:`.
fn is_key(text: &[u8]) -> bool {
    is_padded(text, |b| b.is_ascii_alphanumeric() || b"-._~+/|:".contains(&b))
}

/// Whether `text` has only such characters, and `=` at its end.
fn is_padded(text: &[u8], is_one: impl Fn(u8) -> bool) -> bool {
    let (unpadded, padding) = text.split_at(unpadded_len(text));
    unpadded.iter().all(|b| is_one(*b)) && padding.iter().all(|b| *b == b'=')
}

fn unpadded_len(text: &[u8]) -> usize {
    text.iter().position(|b| *b == b'=').unwrap_or(text.len())
}

/// Base64 as RFC 4648 writes it. What [is ambiguous](are_ambiguous) stays.
fn base64(text: &[u8]) -> Cow<'_, [u8]> {
    let digits = text.get(..unpadded_len(text)).unwrap_or_default();
    let is_spelt = text.len().is_multiple_of(4)
        && text.len() - digits.len() <= 2
        && digits.last().is_none_or(|last| *last == without_unused_bits(*last, digits.len()));
    if is_spelt || !is_padded(text, is_digit) {
        return Cow::Borrowed(text);
    }
    let mut out = digits.to_vec();
    // The bits of a single digit make no byte.
    if out.len() % 4 == 1 {
        out.pop();
    }
    let len = out.len();
    out.iter_mut().skip(len.saturating_sub(1)).for_each(|b| *b = without_unused_bits(*b, len));
    out.resize(len.next_multiple_of(4), b'=');
    Cow::Owned(out)
}

/// The digits of base64 in `text`, of both alphabets.
fn digits(text: &[u8]) -> Vec<u8> {
    let digits = text.iter().map(|byte| match byte {
        b'-' => b'+',
        b'_' => b'/',
        other => *other,
    });
    digits.filter(|byte| is_digit(*byte)).collect()
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/')
}

/// The last of `len` digits. Its bits that belong to no byte are 0.
fn without_unused_bits(last: u8, len: usize) -> u8 {
    let used = match len % 4 {
        2 => 0b11_0000,
        3 => 0b11_1100,
        _ => return last,
    };
    let value = ALPHABET.iter().position(|b| *b == last);
    value.and_then(|value| ALPHABET.get(value & used)).copied().unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelt(value: &[u8]) -> Vec<u8> {
        normalize(value.into()).into_owned()
    }

    #[test]
    fn credentials_have_one_spelling() {
        for (value, expected) in [
            (&b"Bearer K"[..], &b"Bearer K"[..]),
            (b"bearer K", b"Bearer K"),
            (b"BEARER \t  K", b"Bearer K"),
            (b"Bearer\tK", b"Bearer K"),
            (b"AWS4-HMAC-SHA256 C=a, S=b", b"Aws4-hmac-sha256 C=a, S=b"),
            (b"basic dXNlcjpwYXNz", b"Basic dXNlcjpwYXNz"),
            (b"Basic YTpi", b"Basic YTpi"),
            (b"Basic YTpiYw", b"Basic YTpiYw=="),
            (b"Basic YTpiYw=", b"Basic YTpiYw=="),
            (b"Basic YTpiYw==", b"Basic YTpiYw=="),
            (b"Basic YTpiYw===", b"Basic YTpiYw=="),
            (b"Basic YTpiYz==", b"Basic YTpiYw=="),
            (b"Basic YTpiY2R=", b"Basic YTpiY2Q="),
            (b"Basic YTpiY", b"Basic YTpi"),
            (b"Basic +/+/", b"Basic +/+/"),
            (b"Basic =", b"Basic "),
            // A bare key, and what is no scheme.
            (b"sk-AbC", b"sk-AbC"),
            (b"bearer", b"bearer"),
            (b"a/b c", b"a/b c"),
            (b"Bearer: K", b"Bearer: K"),
            (b"", b""),
        ] {
            assert_eq!(spelt(value), expected, "{value:?}");
            assert_eq!(spelt(expected), expected, "{expected:?}");
            let is_spelt = value == expected;
            let borrows = matches!(normalize(value.into()), Cow::Borrowed(_));
            assert_eq!(borrows, is_spelt, "{value:?}: a normal value is not copied");
        }
    }

    #[test]
    fn credentials_with_more_than_a_key_are_ambiguous() {
        for (value, expected) in [
            (&b"Bearer K"[..], false),
            (b"Bearer K junk", true),
            (b"Bearer K,1", true),
            (b"Bearer K;2", true),
            (b"Bearer K\t3", true),
            (b"bearer \"K\"", true),
            (b"Bearer token=K", true),
            (b"Bearer ,K", true),
            (b"Bearer 7|aB-._~+/:==", false),
            (b"Bearer ATCTT3xFfGN0=1A2B3C4D", false),
            (b"Token K,1", true),
            (b"Token K;2", true),
            (b"Basic YT pi", true),
            (b"Basic YTpiYw==YQ", true),
            (b"Basic YT!pi%Yw", true),
            (b"Basic -_-_", true),
            (b"Basic YTp.iYw===", true),
            (b"Basic YTpi=Yw==", true),
            (b"Basic YTpi,", true),
            (b"basic YTpiYw", false),
            (b"Bearer \xa0K", true),
            (b"Bearer K\xc2\xa0", true),
            (b"Bearer\xa0K", true),
            (b"Digest username=\"a\", realm=\"b c\"", false),
            (b"Digest username=\"jos\xe9\"", false),
            (b"Token token=\"a\", nonce=\"b\"", false),
            (b"sk-AbC", false),
        ] {
            assert_eq!(is_ambiguous(&spelt(value)), expected, "{value:?}");
        }
    }

    #[test]
    fn key_is_read_only_out_of_a_value_that_holds_it() {
        for (exact, value, expected) in [
            ("Bearer K1", "Bearer K1 junk", true),
            ("Bearer K1", "Bearer ,K1", true),
            ("Bearer K1", "Bearer \"K1\"", true),
            ("Bearer K1", "Bearer a b", false),
            ("Bearer K1", "Bearer k1,K2", false),
            ("Basic YTpiYw==", "Basic YTpiYz=!", true),
            ("Basic YTpi", "Basic YT pi", true),
            ("Basic YTpi", "Basic Yj!pi", false),
            ("Basic +/+/", "Basic -_-_", true),
            ("sk-AbC", "Bearer a sk-AbC", true),
        ] {
            assert_eq!(may_hold(exact, &[value]), expected, "{exact} in {value}");
        }
    }

    #[test]
    fn expression_is_told_of_a_scheme_that_no_value_has() {
        for (regex, instead) in [
            ("bearer .*", Some("Bearer")),
            ("ApiKey\\s+.*", Some("Apikey")),
            ("Bearer .*", None),
            ("(?i)bearer .*", None),
            ("[Bb]earer .*", None),
            ("sk-[a-z]+", None),
            ("bearer", None),
        ] {
            assert_eq!(misspelt_scheme(regex).as_deref(), instead, "{regex}");
        }
    }
}
