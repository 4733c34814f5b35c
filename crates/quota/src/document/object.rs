//! Objects with known fields, and the macros that declare them.

use serde_json::{Map, Value};

#[cfg(feature = "schema")]
use super::book::{Book, FieldDoc};
use super::{Node, suggest};

/// An object whose fields are being read. [`finish`](Self::finish) reports the fields that no
/// reader took.
pub(crate) struct Object<'a> {
    node: Node<'a>,
    fields: &'a Map<String, Value>,
    known: Vec<&'static str>,
    /// Fields that were refused with a reason. They are never suggested.
    refused: Vec<&'static str>,
}

/// Alternative fields. Exactly one of them must be present.
pub(crate) trait Group {
    /// What the one field is read into.
    type Out<'a>;

    /// Reads the one field. `None` means that a fault was recorded.
    fn take<'a>(object: &mut Object<'a>) -> Option<Self::Out<'a>>;

    /// The alternatives.
    #[cfg(feature = "schema")]
    fn fields(book: &mut Book) -> Vec<FieldDoc>;
}

impl<'a> Object<'a> {
    /// Begins to read an object.
    pub(crate) fn begin(node: &Node<'a>) -> Option<Self> {
        let Value::Object(fields) = node.value() else { return node.must("an object") };
        Some(Self { node: node.clone(), fields, known: Vec::new(), refused: Vec::new() })
    }

    /// Takes a field that may be absent.
    pub(crate) fn optional(&mut self, name: &'static str) -> Option<Node<'a>> {
        self.known.push(name);
        self.fields.get(name).map(|value| self.node.member(name, value))
    }

    /// Takes a field that must be present.
    pub(crate) fn required(&mut self, name: &'static str) -> Option<Node<'a>> {
        let field = self.optional(name);
        if field.is_none() {
            self.node.field(name).fault("is required");
        }
        field
    }

    /// Takes a field that must be present. If it is absent, the fault says `what` to write.
    pub(crate) fn needed(&mut self, name: &'static str, what: &str) -> Option<Node<'a>> {
        let field = self.optional(name);
        if field.is_none() {
            self.node.field(name).fault(format!("is required: {what}"));
        }
        field
    }

    /// Takes the one field of `names` that is present.
    pub(crate) fn exactly_one(
        &mut self,
        names: &[&'static str],
    ) -> Option<(&'static str, Node<'a>)> {
        let mut found: Vec<_> = Vec::new();
        for name in names {
            found.extend(self.optional(name).map(|node| (*name, node)));
        }
        match found.pop() {
            Some(only) if found.is_empty() => Some(only),
            last => {
                let has: Vec<_> = found.into_iter().chain(last).map(|(name, _)| name).collect();
                let has = if has.is_empty() { "none of them".to_owned() } else { has.join(", ") };
                self.node
                    .fault(format!("must have exactly one of {}, has {has}", names.join(", ")));
                None
            }
        }
    }

    /// Records the fault `why` for each of these fields that is present. Returns whether there is
    /// one.
    pub(crate) fn refuse(&mut self, names: &[&'static str], why: &str) -> bool {
        let mut refused = false;
        for name in names {
            self.refused.push(name);
            if let Some(value) = self.fields.get(*name) {
                self.node.member(name, value).fault(why);
                refused = true;
            }
        }
        refused
    }

    /// Records every field that was neither taken nor refused.
    pub(crate) fn finish(self) {
        for (name, value) in self.fields {
            if !self.known.iter().chain(&self.refused).any(|known| known == name) {
                let hint = suggest::hint(name, &self.known);
                self.node.member(name, value).fault(format!("unknown field{hint}"));
            }
        }
    }
}

/// The name of a field whose Rust name may be raw, such as `r#match`.
pub(crate) fn field_name(name: &'static str) -> &'static str {
    name.strip_prefix("r#").unwrap_or(name)
}

/// Declares an object: its fields in their order, each with documentation, presence, type and
/// example.
///
/// ```ignore
/// object! {
///     /// What the object is for.
///     Lease(LeaseFields<'a>) -> Precision {
///         /// What the field means.
///         default("100ms") ahead: Short = "250ms",
///         required max: Whole<1, 1000> = 500,
///         + source: SourceGroup,
///     }
/// }
/// ```
///
/// A field is `required`, `needed("what to write")`, `optional`, or has a `default(JSON)` that is
/// read like a given value. A line `+ name: Group` takes exactly one field of a [`Group`]. A line
/// `! name: "why"` refuses a field that people may look for here. The macro makes the type `Lease`
/// and the struct `LeaseFields`, whose method `build(self) -> Option<Precision>` is written by
/// hand. Each field of that struct is `None` only if it has a fault.
macro_rules! object {
    (
        $(#[doc = $doc:literal])*
        $name:ident($fields:ident<$life:lifetime>) -> $out:ty {
            $(
                $(#[doc = $field_doc:literal])*
                $presence:ident $(($argument:tt))? $field:ident: $of:ty $(= $example:tt)?,
            )*
            $(+ $group:ident: $group_of:ty,)*
            $(! $refused:ident: $why:literal,)*
        }
        $(rule $rule:tt)?
    ) => {
        $(#[doc = $doc])*
        pub(crate) enum $name {}

        /// The fields as they were read. `None` means that a fault was recorded.
        pub(crate) struct $fields<$life> {
            #[allow(dead_code, reason = "Some objects have no faults of their own")]
            node: $crate::document::Node<$life>,
            $($(#[doc = $field_doc])* $field: $crate::document::field_type!($presence $life $of),)*
            $($group: Option<<$group_of as $crate::document::Group>::Out<$life>>,)*
        }

        impl $crate::document::Type for $name {
            type Out<$life> = $out;

            fn read<$life>(node: &$crate::document::Node<$life>) -> Option<$out> {
                #[allow(unused_mut, reason = "An object may have no fields")]
                let mut object = $crate::document::Object::begin(node)?;
                let fields = $fields {
                    node: node.clone(),
                    $($field: $crate::document::read_field!(object, $presence $(($argument))? $field: $of),)*
                    $($group: <$group_of as $crate::document::Group>::take(&mut object),)*
                };
                $(object.refuse(&[stringify!($refused)], $why);)*
                object.finish();
                fields.build()
            }

            #[cfg(feature = "schema")]
            fn schema(book: &mut $crate::document::book::Book) -> ::serde_json::Value {
                book.object(stringify!($name), concat!($($doc, "\n",)* ""), |_book| {
                    #[allow(unused_mut, reason = "An object may have no groups")]
                    let mut object = $crate::document::book::ObjectDoc::default();
                    $(object.field($crate::document::book::FieldDoc {
                        name: $crate::document::field_name(stringify!($field)),
                        doc: $crate::document::book::prose(concat!($($field_doc, "\n",)* "")),
                        schema: <$of as $crate::document::Type>::schema(_book),
                        presence: $crate::document::presence!($presence $(($argument))?),
                        example: None$(.or(Some(::serde_json::json!($example))))?,
                    });)*
                    $(object.group(<$group_of as $crate::document::Group>::fields(_book));)*
                    $(object.rule = Some(::serde_json::json!($rule));)?
                    object
                })
            }
        }
    };
}

/// The type of a field in the struct of [`object!`].
macro_rules! field_type {
    (optional $life:lifetime $of:ty) => { Option<Option<<$of as $crate::document::Type>::Out<$life>>> };
    ($presence:ident $life:lifetime $of:ty) => { Option<<$of as $crate::document::Type>::Out<$life>> };
}

/// Reads a field of [`object!`].
macro_rules! read_field {
    ($object:ident, required $field:ident: $of:ty) => {
        $object
            .required($crate::document::field_name(stringify!($field)))
            .and_then(|node| <$of as $crate::document::Type>::read(&node))
    };
    ($object:ident, needed($what:tt) $field:ident: $of:ty) => {
        $object
            .needed($crate::document::field_name(stringify!($field)), $what)
            .and_then(|node| <$of as $crate::document::Type>::read(&node))
    };
    ($object:ident, optional $field:ident: $of:ty) => {
        match $object.optional($crate::document::field_name(stringify!($field))) {
            Some(node) => <$of as $crate::document::Type>::read(&node).map(Some),
            None => Some(None),
        }
    };
    ($object:ident, default($default:tt) $field:ident: $of:ty) => {{
        static DEFAULT: ::std::sync::LazyLock<::serde_json::Value> =
            ::std::sync::LazyLock::new(|| ::serde_json::json!($default));
        let name = $crate::document::field_name(stringify!($field));
        let given = $object.optional(name);
        <$of as $crate::document::Type>::read(
            &given.unwrap_or_else(|| $object.default_of(name, &DEFAULT)),
        )
    }};
}

/// The presence of a field of [`object!`], for the reference.
#[cfg(feature = "schema")]
macro_rules! presence {
    (optional) => {
        $crate::document::book::Presence::Optional
    };
    (default($default:tt)) => {
        $crate::document::book::Presence::Default(::serde_json::json!($default))
    };
    ($required:ident $(($what:tt))?) => {
        $crate::document::book::Presence::Required
    };
}

/// Declares alternatives: an object, or a [`Group`] within one, that has exactly one of these
/// fields.
///
/// The value of the field that is present goes through the function after `=>`.
macro_rules! one_of {
    (
        $(#[doc = $doc:literal])*
        $name:ident<$life:lifetime> -> $out:ty {
            $(
                $(#[doc = $field_doc:literal])*
                $field:ident: $of:ty $(= $example:tt)? => $map:expr,
            )+
        }
    ) => {
        $(#[doc = $doc])*
        pub(crate) enum $name {}

        impl $crate::document::Group for $name {
            type Out<$life> = $out;

            fn take<$life>(object: &mut $crate::document::Object<$life>) -> Option<$out> {
                let (name, node) = object.exactly_one(&[$(stringify!($field)),+])?;
                $(if name == stringify!($field) {
                    return <$of as $crate::document::Type>::read(&node).map($map);
                })+
                None
            }

            #[cfg(feature = "schema")]
            fn fields(book: &mut $crate::document::book::Book) -> Vec<$crate::document::book::FieldDoc> {
                vec![$($crate::document::book::FieldDoc {
                    name: stringify!($field),
                    doc: $crate::document::book::prose(concat!($($field_doc, "\n",)* "")),
                    schema: <$of as $crate::document::Type>::schema(book),
                    presence: $crate::document::book::Presence::Optional,
                    example: None$(.or(Some(::serde_json::json!($example))))?,
                }),+]
            }
        }

        impl $crate::document::Type for $name {
            type Out<$life> = $out;

            fn read<$life>(node: &$crate::document::Node<$life>) -> Option<$out> {
                let mut object = $crate::document::Object::begin(node)?;
                let out = <Self as $crate::document::Group>::take(&mut object);
                object.finish();
                out
            }

            #[cfg(feature = "schema")]
            fn schema(book: &mut $crate::document::book::Book) -> ::serde_json::Value {
                book.object(stringify!($name), concat!($($doc, "\n",)* ""), |book| {
                    let mut object = $crate::document::book::ObjectDoc::default();
                    object.group(<Self as $crate::document::Group>::fields(book));
                    object
                })
            }
        }
    };
}

/// Declares an enum whose variants are words of the document. With `for`, declares the words of an
/// existing enum.
macro_rules! words {
    (
        $(#[doc = $doc:literal])*
        pub $(($in:tt))? enum $name:ident {
            $($(#[doc = $word_doc:literal])* $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub $(($in))? enum $name {
            $($(#[doc = $word_doc])* $variant,)+
        }

        $crate::document::words! {
            for $name {
                $($(#[doc = $word_doc])* $variant = $word,)+
            }
        }
    };
    (
        for $name:ident {
            $($(#[doc = $word_doc:literal])* $variant:ident = $word:literal,)+
        }
    ) => {
        impl $crate::document::Words for $name {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),+];
        }

        impl $crate::document::Type for $name {
            type Out<'a> = Self;

            fn read(node: &$crate::document::Node<'_>) -> Option<Self> {
                node.choice(<Self as $crate::document::Words>::WORDS)
            }

            #[cfg(feature = "schema")]
            fn schema(_: &mut $crate::document::book::Book) -> ::serde_json::Value {
                $crate::document::book::words(&[$(($word, concat!($($word_doc, "\n",)* ""))),+])
            }
        }
    };
}

#[cfg(feature = "schema")]
pub(crate) use presence;
pub(crate) use {field_type, object, one_of, read_field, words};

impl<'a> Object<'a> {
    /// The default of an absent field.
    pub(crate) fn default_of(&self, name: &str, default: &'a Value) -> Node<'a> {
        self.node.member(name, default)
    }
}
