//! Types of values: numbers, texts, lists, maps.

use std::marker::PhantomData;

use super::Node;
#[cfg(feature = "schema")]
use super::book::Book;
#[cfg(feature = "schema")]
use serde_json::{Value, json};

/// A type of values in a document. Types are never constructed: they only carry their reader.
pub(crate) trait Type {
    /// What a value is read into. It may borrow from the document.
    type Out<'a>;

    /// Reads a value. `None` means that a fault was recorded.
    fn read<'a>(node: &Node<'a>) -> Option<Self::Out<'a>>;

    /// The keywords of the JSON Schema for such a value. Adds objects to `book` and refers to them.
    #[cfg(feature = "schema")]
    fn schema(book: &mut Book) -> Value;
}

/// An enum whose variants are words of the document.
pub(crate) trait Words: Sized + 'static {
    /// The words and what they stand for.
    const WORDS: &'static [(&'static str, Self)];
}

/// `true` or `false`.
pub(crate) enum Boolean {}

/// A whole number from `MIN` to `MAX`.
pub(crate) enum Whole<const MIN: u64, const MAX: u64> {}

/// A string of 1 to `MAX` bytes.
pub(crate) enum Text<const MAX: usize> {}

/// A string that is not empty.
pub(crate) type NonEmpty = Text<{ usize::MAX }>;

/// Only `true`.
pub(crate) enum True {}

/// A value together with its node, for faults that need more context.
pub(crate) struct At<T>(PhantomData<T>);

/// A list of `MIN` to `MAX` elements.
pub(crate) struct List<T, const MIN: usize, const MAX: usize>(PhantomData<T>);

/// A list of `MIN` to `MAX` elements that all differ.
pub(crate) struct Distinct<T, const MIN: usize, const MAX: usize>(PhantomData<T>);

/// A list of at most `MAX` elements that keeps the good ones: an element with a fault is `None`.
pub(crate) struct Each<T, const MAX: usize>(PhantomData<T>);

/// An object of at most `MAX` members whose names the document chooses. A member with a fault is
/// `None`.
pub(crate) struct Map<T, const MAX: usize>(PhantomData<T>);

impl Type for Boolean {
    type Out<'a> = bool;

    fn read(node: &Node<'_>) -> Option<bool> {
        node.boolean()
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut Book) -> Value {
        json!({"type": "boolean"})
    }
}

impl<const MIN: u64, const MAX: u64> Type for Whole<MIN, MAX> {
    type Out<'a> = u64;

    fn read(node: &Node<'_>) -> Option<u64> {
        node.whole(MIN..=MAX)
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut Book) -> Value {
        json!({"type": "integer", "minimum": MIN, "maximum": MAX})
    }
}

impl<const MAX: usize> Type for Text<MAX> {
    type Out<'a> = &'a str;

    fn read<'a>(node: &Node<'a>) -> Option<&'a str> {
        let text = node.text()?;
        node.no_longer_than(text, MAX)?;
        Some(text)
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut Book) -> Value {
        match MAX {
            usize::MAX => json!({"type": "string", "minLength": 1}),
            most => json!({"type": "string", "minLength": 1, "maxLength": most}),
        }
    }
}

impl Type for True {
    type Out<'a> = ();

    fn read(node: &Node<'_>) -> Option<()> {
        if !node.boolean()? {
            node.fault("must be true: leave the whole source out instead");
            return None;
        }
        Some(())
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut Book) -> Value {
        json!({"const": true, "type": "boolean"})
    }
}

impl<T: Type> Type for At<T> {
    type Out<'a> = (T::Out<'a>, Node<'a>);

    fn read<'a>(node: &Node<'a>) -> Option<Self::Out<'a>> {
        Some((T::read(node)?, node.clone()))
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut Book) -> Value {
        T::schema(book)
    }
}

impl<T: Type, const MIN: usize, const MAX: usize> Type for List<T, MIN, MAX> {
    type Out<'a> = Vec<T::Out<'a>>;

    fn read<'a>(node: &Node<'a>) -> Option<Self::Out<'a>> {
        // Reads every element, even after one with a fault.
        let elements: Vec<_> = node.list(MAX)?.iter().map(T::read).collect();
        if elements.len() < MIN {
            node.fault("must not be empty");
            return None;
        }
        elements.into_iter().collect()
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut Book) -> Value {
        let mut schema = json!({"type": "array", "items": T::schema(book), "maxItems": MAX});
        if MIN > 0 {
            crate::document::book::set(&mut schema, "minItems", MIN.into());
        }
        schema
    }
}

impl<T, const MIN: usize, const MAX: usize> Type for Distinct<T, MIN, MAX>
where
    T: Type,
    for<'a> T::Out<'a>: PartialEq,
{
    type Out<'a> = Vec<T::Out<'a>>;

    fn read<'a>(node: &Node<'a>) -> Option<Self::Out<'a>> {
        node.distinct(List::<T, MIN, MAX>::read(node)?)
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut Book) -> Value {
        let mut schema = List::<T, MIN, MAX>::schema(book);
        crate::document::book::set(&mut schema, "uniqueItems", true.into());
        schema
    }
}

impl<T: Type, const MAX: usize> Type for Each<T, MAX> {
    type Out<'a> = Vec<Option<T::Out<'a>>>;

    fn read<'a>(node: &Node<'a>) -> Option<Self::Out<'a>> {
        Some(node.list(MAX)?.iter().map(T::read).collect())
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut Book) -> Value {
        List::<T, 0, MAX>::schema(book)
    }
}

impl<T: Type, const MAX: usize> Type for Map<T, MAX> {
    type Out<'a> = Vec<(&'a str, Node<'a>, Option<T::Out<'a>>)>;

    fn read<'a>(node: &Node<'a>) -> Option<Self::Out<'a>> {
        let members = node.members(MAX)?.into_iter();
        Some(members.map(|(name, node)| (name, node.clone(), T::read(&node))).collect())
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut Book) -> Value {
        json!({"type": "object", "additionalProperties": T::schema(book), "maxProperties": MAX})
    }
}
