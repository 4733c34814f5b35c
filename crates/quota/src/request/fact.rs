//! One thing that is known of a request: how to get it, of which type it is, and its label in a key.
//!
//! Envoy hands values of metadata over without their type: a number is eight bytes, a truth value one. The
//! configuration therefore says which type is meant, and what is not of that type is missing. What is meant
//! becomes text in one spelling, so that keys, tiers and overrides all compare the same bytes.

use std::rc::Rc;

use crate::protocol::MAX_UNITS;
use crate::request::PeerName;

/// Something the host looks up, and its label in a key.
#[derive(Debug)]
pub(crate) struct Fact {
    /// Encoded.
    pub(crate) label: Box<str>,
    /// How to get it.
    pub(crate) lookup: Lookup,
    /// How the bytes of a [`Lookup::Metadata`] are read; all others are text, whatever bytes they hold.
    pub(crate) kind: Kind,
}

/// A question to the host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The header of this lower-case name.
    Header(Box<str>),
    /// The cookie of this name.
    Cookie(Box<str>),
    /// The parameter of this name, decoded, in the query string.
    Query(Box<str>),
    /// A member of dynamic metadata, such as a verified claim.
    Metadata {
        /// The namespace: the name of the filter that wrote it.
        filter: Box<str>,
        /// From the outermost member inwards.
        path: Vec<Box<str>>,
    },
    /// A name in the client's certificate.
    Peer(PeerName),
}

/// The type that a value of metadata is meant to be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// UTF-8 without control characters.
    Text,
    /// A finite number: eight bytes, IEEE 754, little-endian.
    Number,
    /// One byte, 0 or 1.
    Boolean,
}

/// What was found of a fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Its text in its one spelling; never empty.
    Value(Rc<[u8]>),
    /// Nothing, or nothing of its type.
    Missing,
    /// The client gave it more than once, so that nobody can tell which one its upstream believes.
    Ambiguous,
}

impl Found {
    /// The one of `values`.
    pub(crate) fn only<V: AsRef<[u8]>>(mut values: impl Iterator<Item = V>) -> Self {
        match (values.next(), values.next()) {
            (_, Some(_)) => Self::Ambiguous,
            (Some(value), None) if !value.as_ref().is_empty() => Self::Value(value.as_ref().into()),
            (Some(_) | None, None) => Self::Missing,
        }
    }

    /// The value that can be given only once.
    pub(crate) fn present(value: Option<Vec<u8>>) -> Self {
        Self::only(value.into_iter())
    }
}

impl Kind {
    /// The text of a value as the host gave it; `None` where it is not of this type or empty.
    pub(crate) fn text(self, raw: &Rc<[u8]>) -> Option<Rc<[u8]>> {
        match self {
            Self::Text => {
                let control = raw.iter().any(|b| b.is_ascii_control());
                (!raw.is_empty() && !control && std::str::from_utf8(raw).is_ok()).then(|| Rc::clone(raw))
            }
            Self::Number => {
                let number = f64::from_le_bytes(<[u8; 8]>::try_from(&**raw).ok()?);
                number.is_finite().then(|| Rc::from(number_text(number).into_bytes()))
            }
            Self::Boolean => match **raw {
                [0] => Some(Rc::from(*b"false")),
                [1] => Some(Rc::from(*b"true")),
                _ => None,
            },
        }
    }
}

/// A whole number as an integer where it is held exactly, any other in the shortest form that reads back.
fn number_text(number: f64) -> String {
    let most = MAX_UNITS as f64;
    if number.fract() == 0.0 && (-most..=most).contains(&number) {
        (number as i64).to_string()
    } else {
        format!("{number:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: Kind, raw: &[u8]) -> Option<String> {
        kind.text(&raw.into()).map(|text| String::from_utf8(text.to_vec()).unwrap())
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
            (9_007_199_254_740_992.0, Some("9007199254740992.0")),
            (1e300, Some("1e300")),
            (5e-324, Some("5e-324")),
            (f64::NAN, None),
            (f64::INFINITY, None),
            (f64::NEG_INFINITY, None),
        ] {
            assert_eq!(text(Kind::Number, &f64::to_le_bytes(number)).as_deref(), expected, "{number}");
        }
        assert_eq!(text(Kind::Number, b"42"), None);
        assert_eq!(text(Kind::Number, &[0; 9]), None);
        assert_eq!(text(Kind::Number, b""), None);
    }

    #[test]
    fn a_truth_value_is_one_byte() {
        for (raw, expected) in
            [(&[0][..], Some("false")), (&[1], Some("true")), (&[2], None), (&[], None), (b"true", None)]
        {
            assert_eq!(text(Kind::Boolean, raw).as_deref(), expected, "{raw:?}");
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
            assert_eq!(text(Kind::Text, raw).is_some(), is_text, "{raw:?}");
        }
    }
}
