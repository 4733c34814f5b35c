//! Kinds of names that a document holds.

use super::Node;

/// The longest name of a header, cookie, parameter, claim or member, in bytes: names are parts of
/// keys.
pub(crate) const MAX_NAME: usize = 128;

/// The pattern of a token, for the JSON Schema.
#[cfg(feature = "schema")]
pub(crate) const TOKEN: &str = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$";

/// A kind of names.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    /// The most bytes of a name. The least is 1.
    pub(crate) most: usize,
    /// Whether a name may hold this byte.
    pub(crate) allowed: fn(u8) -> bool,
    /// The pattern of a whole name.
    pub(crate) pattern: &'static str,
}

impl Names {
    /// Whether `text` is such a name.
    pub(crate) fn accept(self, text: &str) -> bool {
        (1..=self.most).contains(&text.len()) && text.bytes().all(self.allowed)
    }

    /// Reads such a name.
    pub(crate) fn read<'a>(self, node: &Node<'a>) -> Option<&'a str> {
        let text = node.string()?;
        if self.accept(text) {
            return Some(text);
        }
        node.fault(format!("must match {}, is {text:?}", self.pattern));
        None
    }

    /// The keywords of the JSON Schema for such a name.
    #[cfg(feature = "schema")]
    pub(crate) fn schema(self) -> serde_json::Value {
        serde_json::json!({"type": "string", "pattern": format!("^{}$", self.pattern)})
    }
}

/// Whether `text` is a token of RFC 9110, as names of headers and cookies are.
pub(crate) fn is_token(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(allowed)
}

/// Whether `text` is a token of at most [`MAX_NAME`] bytes.
pub(crate) fn is_short_token(text: &str) -> bool {
    text.len() <= MAX_NAME && is_token(text)
}
