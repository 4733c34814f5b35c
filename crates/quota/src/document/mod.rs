//! How a JSON document is read and described.
//!
//! Each type of value implements [`Type`]: it reads a value, and under the feature `schema` it
//! describes the values that it takes. The macros [`object!`], [`one_of!`] and [`words!`] declare
//! objects, alternatives and words with their documentation. The reader, its faults, the JSON
//! Schema and the reference page all come from these declarations.
//!
//! A reader never stops at the first fault. It records each fault with its path in the
//! [`Collector`], and `None` always means that a fault was recorded.

#[cfg(feature = "schema")]
pub(crate) mod book;
pub(crate) mod envoy;
pub(crate) mod fault;
mod json;
#[cfg(feature = "schema")]
pub(crate) mod json_schema;
#[cfg(feature = "schema")]
pub(crate) mod markdown;
pub(crate) mod names;
mod node;
mod object;
pub(crate) mod suggest;
mod types;

pub(crate) use node::{Collector, Node, ROOT, whole_from_float};
#[cfg(feature = "schema")]
pub(crate) use object::presence;
pub(crate) use object::{Group, Object, field_name, field_type, object, one_of, read_field, words};
pub(crate) use types::{
    At, Boolean, Distinct, Each, List, Map, NonEmpty, Text, True, Type, Whole, Words,
};
