//! Names that HTTP gives to things.

/// Longest name of a header: they are part of keys, so not without end.
pub(super) const MAX_HEADER: usize = 128;

/// Whether `text` is a token of RFC 9110, as names of headers are.
pub(super) fn is_token(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(allowed)
}
