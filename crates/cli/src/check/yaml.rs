//! YAML and JSON as a tree in which each value knows its position.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{Error, Location, MessageFormatter as _, Spanned, UserMessageFormatter};

/// A position in a text; both numbers begin at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) line: u64,
    pub(super) column: u64,
}

/// Why a text is no YAML, with the position.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) at: Option<Position>,
    pub(super) message: String,
}

/// A value and its position.
pub(super) type Node = Spanned<Tree>;

/// A value whose parts know their positions.
#[derive(Debug)]
pub(super) enum Tree {
    /// A value that contains no others.
    Scalar(Value),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping in the order of the text.
    Map(Vec<(Spanned<String>, Node)>),
}

/// Parses all documents of a text, empty ones excepted.
///
/// # Errors
/// The first syntax error.
pub(super) fn read(text: &str) -> Result<Vec<Node>, Unreadable> {
    serde_saphyr::from_multiple(text).map_err(|error| {
        let error = error.without_snippet();
        let message = match error {
            Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("the field {key:?} is given twice")
            }
            Error::DuplicateMappingKey { key: None, .. } => "a field is given twice".to_owned(),
            other => UserMessageFormatter.format_message(other).into_owned(),
        };
        let at = error.location().filter(|at| *at != Location::UNKNOWN).map(Position::from);
        Unreadable { at, message }
    })
}

impl Tree {
    /// The member of this name, if this is a mapping that has it.
    pub(super) fn get(&self, name: &str) -> Option<&Node> {
        let Self::Map(members) = self else { return None };
        members.iter().find(|(key, _)| key.value == name).map(|(_, value)| value)
    }

    /// The text, if this is one.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Whether it is, or contains, a text with this in it.
    pub(super) fn mentions(&self, text: &str) -> bool {
        match self {
            Self::Scalar(value) => value.as_str().is_some_and(|own| own.contains(text)),
            Self::List(elements) => elements.iter().any(|element| element.value.mentions(text)),
            Self::Map(members) => members.iter().any(|(_, value)| value.value.mentions(text)),
        }
    }

    /// The same value without positions.
    pub(super) fn json(&self) -> Value {
        match self {
            Self::Scalar(value) => value.clone(),
            Self::List(elements) => elements.iter().map(|element| element.value.json()).collect(),
            Self::Map(members) => members
                .iter()
                .map(|(name, value)| (name.value.clone(), value.value.json()))
                .collect(),
        }
    }
}

impl From<Location> for Position {
    fn from(location: Location) -> Self {
        Self { line: location.line(), column: location.column() }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element()? {
            elements.push(element);
        }
        Ok(Tree::List(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Tree::Map(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syntax_error(text: &str) -> (Option<(u64, u64)>, String) {
        let Unreadable { at, message } = read(text).unwrap_err();
        (at.map(|at| (at.line, at.column)), message)
    }

    #[test]
    fn values_and_names_have_positions() {
        let text =
            "a: 1\nb:\n  - x\n  - {c: [true, null, -1, 1.5]}\n---\n\"d\": >\n  folded\n  text\n";
        let documents = read(text).unwrap();
        let json: Vec<Value> = documents.iter().map(|document| document.value.json()).collect();
        assert_eq!(
            json,
            [
                serde_json::json!({"a": 1, "b": ["x", {"c": [true, null, -1, 1.5]}]}),
                serde_json::json!({"d": "folded text\n"})
            ]
        );
        let Tree::List(elements) = &documents[0].value.get("b").unwrap().value else { panic!() };
        assert_eq!(
            elements.iter().map(|element| element.referenced.line()).collect::<Vec<_>>(),
            [3, 4]
        );
        let Tree::Map(members) = &documents[1].value else { panic!() };
        assert_eq!((members[0].0.referenced.line(), members[0].0.referenced.column()), (6, 1));
    }

    #[test]
    fn syntax_errors_have_a_position_and_plain_words() {
        let twice = "domain: shop\nstore:\n  cluster: a\n  cluster: b\n";
        assert_eq!(
            syntax_error(twice),
            (Some((4, 3)), "the field \"cluster\" is given twice".to_owned())
        );
        for text in ["a: [", "a: b: c", "a: *b", "a:\n\t- b", "{a: 1, a: 2}"] {
            let (at, message) = syntax_error(text);
            assert!(
                at.is_some() && !message.contains("Policy") && !message.contains('\n'),
                "{text}: {message}"
            );
        }
    }

    #[test]
    fn alias_bombs_and_deep_nesting_are_refused() {
        let bomb: String = (0..40).fold("a0: &a0 [x]\n".to_owned(), |text, i| {
            text + &format!("a{}: &a{} [*a{i}, *a{i}, *a{i}]\n", i + 1, i + 1)
        });
        for text in [bomb, "[".repeat(100_000), "{a: ".repeat(100_000)] {
            assert!(read(&text).is_err());
        }
    }
}
