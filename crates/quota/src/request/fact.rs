//! One fact about a request: its label in a key, and how to look it up.
//!
//! Envoy hands values of metadata over without their type: a number is eight bytes, a boolean one.
//! So the document names the type, and a value of another type counts as missing. Each value has
//! one spelling as text. Keys, tiers and overrides all compare the same bytes.
//!
//! * Envoy keeps numbers as floats. Above 2^53 - 1, several whole numbers become the same float, so
//!   such a number names nobody.
//! * Eight bytes that can be text are text and no number. No whole number below 2^51 looks like
//!   text.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

use quotagate_protocol::MAX_UNITS;

use super::facts::Facts;
use super::key::Secrecy;
use super::network::Prefixes;
use crate::document::words;

/// A fact that a policy asks for.
#[derive(Debug)]
pub(crate) struct Fact {
    /// Its label in a key, encoded.
    pub(crate) label: Box<str>,
    /// The type of its values. `None` stands for bytes of any kind.
    pub(crate) value_type: Option<ValueType>,
    /// Whether only a digest of its value leaves the filter.
    pub(crate) secrecy: Secrecy,
    /// How to look it up.
    pub(crate) lookup: Box<dyn LookUp>,
}

/// A way to look up a fact.
pub(crate) trait LookUp: fmt::Debug + Send + Sync {
    /// Looks it up in a request.
    fn look_up<'c>(&'c self, facts: &Facts<'c>) -> Found<'c>;

    /// The value, or the elements of a list of values.
    fn look_up_all<'c>(&'c self, facts: &Facts<'c>) -> Vec<FactBytes<'c>> {
        match self.look_up(facts) {
            Found::Value(value) => vec![value],
            Found::Missing | Found::Ambiguous => Vec::new(),
        }
    }

    /// The value as a number, also one that is too large to name a caller.
    fn number<'c>(&'c self, _: &Facts<'c>) -> Option<f64> {
        None
    }

    /// A value that a person wrote, in the spelling of [`look_up`](Self::look_up).
    ///
    /// # Errors
    /// What the value must be instead.
    fn spell(&self, raw: &[u8]) -> Result<Vec<u8>, &'static str> {
        Ok(raw.to_vec())
    }

    /// For the client's address: the leading bits that count as one client.
    fn prefixes(&self) -> Option<Prefixes> {
        None
    }
}

/// An attribute of Envoy, such as `connection.uri_san_peer_certificate`, used as it is.
#[derive(Debug)]
pub(crate) struct Attribute(pub(crate) &'static [&'static str]);

impl LookUp for Attribute {
    fn look_up<'c>(&'c self, facts: &Facts<'c>) -> Found<'c> {
        facts.attribute(self.0).map_or(Found::Missing, |value| Found::Value(value.into()))
    }
}

words! {
    /// The type of a value of metadata.
    pub(crate) enum ValueType {
        /// Text in UTF-8 without control characters.
        Text = "string",
        /// A number, whole or not.
        Number = "number",
        /// `true` or `false`.
        Boolean = "boolean",
    }
}

/// The value of a fact in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found<'v> {
    /// Its normalized text. Never empty.
    Value(FactBytes<'v>),
    /// There is no value, or one of another type.
    Missing,
    /// The client gave it more than once. The upstream may believe either of the values.
    Ambiguous,
}

/// The bytes of a value.
#[derive(Clone, Debug)]
pub(crate) enum FactBytes<'v> {
    /// Bytes of the host's.
    Borrowed(&'v [u8]),
    /// Bytes that were made for this value.
    Owned(Vec<u8>),
    /// Bytes that [`Facts`] remembers.
    Shared(Rc<[u8]>),
}

impl<'v> Found<'v> {
    /// The only one of `values`.
    pub(crate) fn only<V: Into<FactBytes<'v>>>(mut values: impl Iterator<Item = V>) -> Self {
        match (values.next(), values.next()) {
            (_, Some(_)) => Self::Ambiguous,
            (Some(value), None) => {
                let value = value.into();
                if value.is_empty() { Self::Missing } else { Self::Value(value) }
            }
            (None, None) => Self::Missing,
        }
    }
}

impl Deref for FactBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl PartialEq for FactBytes<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for FactBytes<'_> {}

impl<'v> From<Cow<'v, [u8]>> for FactBytes<'v> {
    fn from(bytes: Cow<'v, [u8]>) -> Self {
        match bytes {
            Cow::Borrowed(bytes) => Self::Borrowed(bytes),
            Cow::Owned(bytes) => Self::Owned(bytes),
        }
    }
}

impl From<Vec<u8>> for FactBytes<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Owned(bytes)
    }
}

impl From<Rc<[u8]>> for FactBytes<'_> {
    fn from(bytes: Rc<[u8]>) -> Self {
        Self::Shared(bytes)
    }
}

impl ValueType {
    /// The text of a value as Envoy gave it. `None` if the value is of another type, empty, or a
    /// number that is too large to be exact.
    ///
    /// A boolean is one byte, 0 or 1.
    pub(crate) fn text(self, raw: &Rc<[u8]>) -> Option<Rc<[u8]>> {
        match self {
            Self::Text => is_text(raw).then(|| Rc::clone(raw)),
            Self::Number => {
                let exact = number(raw).filter(|number| number.abs() <= MAX_UNITS as f64)?;
                Some(Rc::from(number_text(exact).into_bytes()))
            }
            Self::Boolean => match **raw {
                [0] => Some(Rc::from(*b"false")),
                [1] => Some(Rc::from(*b"true")),
                _ => None,
            },
        }
    }
}

/// Whether `raw` is UTF-8 without control characters, and not empty.
fn is_text(raw: &[u8]) -> bool {
    let control = raw.iter().any(u8::is_ascii_control);
    !raw.is_empty() && !control && std::str::from_utf8(raw).is_ok()
}

/// The number of a value as Envoy gave it: eight bytes, IEEE 754, little-endian.
pub(crate) fn number(raw: &[u8]) -> Option<f64> {
    let number = f64::from_le_bytes(raw.try_into().ok()?);
    (number.is_finite() && !is_text(raw)).then_some(number)
}

/// A whole number that is not negative. One too large to hold is the largest.
pub(crate) fn whole_number(number: f64) -> Option<u64> {
    (number >= 0.0 && number.fract() == 0.0).then_some(number as u64)
}

/// A number of at most 2^53 - 1 as text: an integer, else the shortest form that reads back.
fn number_text(number: f64) -> String {
    if number.fract() == 0.0 { (number as i64).to_string() } else { format!("{number:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value_type: ValueType, raw: &[u8]) -> Option<String> {
        value_type.text(&raw.into()).map(|text| String::from_utf8(text.to_vec()).unwrap())
    }

    #[test]
    fn a_number_has_one_spelling() {
        for (number, expected) in [
            (42.0, Some("42")),
            (-7.0, Some("-7")),
            (0.0, Some("0")),
            (-0.0, Some("0")),
            (0.5, Some("0.5")),
            (9_007_199_254_740_991.0, Some("9007199254740991")),
            (-9_007_199_254_740_991.0, Some("-9007199254740991")),
            (9_007_199_254_740_992.0, None),
            (-9_007_199_254_740_992.0, None),
            (1e300, None),
            (5e-324, Some("5e-324")),
            (f64::NAN, None),
            (f64::INFINITY, None),
            (f64::NEG_INFINITY, None),
        ] {
            assert_eq!(
                text(ValueType::Number, &f64::to_le_bytes(number)).as_deref(),
                expected,
                "{number}"
            );
        }
        assert_eq!(text(ValueType::Number, b"42"), None);
        assert_eq!(text(ValueType::Number, &[0; 9]), None);
        assert_eq!(text(ValueType::Number, b""), None);
    }

    #[test]
    fn eight_bytes_of_text_are_no_number() {
        for raw in ["12345678", "abcdefgh", "abcdef0C", "        ", "\u{e4}bcdefg"] {
            let raw = raw.as_bytes();
            assert_eq!(text(ValueType::Number, raw), None, "{raw:?}");
        }
        // No whole number below 2^51 looks like text, whatever its digits.
        let powers = (0..51).map(|power| 1_u64 << power);
        let many = (0..100_000_u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 13);
        for whole in powers.chain(many).chain(0..100_000).chain([(1 << 51) - 1]) {
            let raw = (whole as f64).to_le_bytes();
            assert_eq!(text(ValueType::Number, &raw), Some(whole.to_string()));
        }
    }

    #[test]
    fn a_boolean_is_one_byte() {
        for (raw, expected) in [
            (&[0][..], Some("false")),
            (&[1], Some("true")),
            (&[2], None),
            (&[], None),
            (b"true", None),
        ] {
            assert_eq!(text(ValueType::Boolean, raw).as_deref(), expected, "{raw:?}");
        }
    }

    #[test]
    fn text_is_utf8_without_control_characters() {
        for (raw, is_text) in [
            (&b"alice"[..], true),
            ("k\u{e4}se \u{1f9c0}".as_bytes(), true),
            (b" ", true),
            (b"", false),
            (b"a\0b", false),
            (b"a\nb", false),
            (b"\x7f", false),
            (b"\xff", false),
            (&42.0_f64.to_le_bytes(), false),
            (&[1], false),
        ] {
            assert_eq!(text(ValueType::Text, raw).is_some(), is_text, "{raw:?}");
        }
    }
}
