//! Reads the fields of a JSON object, and notices those that nobody asked for.

use serde_json::{Map, Value};

use super::reader::Node;
use super::suggest;

/// An object whose fields are being read.
pub(super) struct Object<'a> {
    node: Node<'a>,
    fields: &'a Map<String, Value>,
    known: Vec<&'static str>,
    /// Names that were refused with a reason, and therefore nobody should be pointed to.
    refused: Vec<&'static str>,
}

impl<'a> Object<'a> {
    /// Begins to read `fields`, which are those of `node`.
    pub(super) fn new(node: Node<'a>, fields: &'a Map<String, Value>) -> Self {
        Self { node, fields, known: Vec::new(), refused: Vec::new() }
    }

    /// Reads a field that must be there.
    pub(super) fn required<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&Node<'a>) -> Option<T>,
    ) -> Option<T> {
        self.required_or(name, "is required", read)
    }

    /// Reads a field that must be there. Without it, the fault says `missing`: that it is required, and what to write.
    pub(super) fn required_or<T>(
        &mut self,
        name: &'static str,
        missing: &str,
        read: impl FnOnce(&Node<'a>) -> Option<T>,
    ) -> Option<T> {
        match self.take(name) {
            Some(node) => read(&node),
            None => {
                self.node.member(name, &Value::Null).fault(missing);
                None
            }
        }
    }

    /// Reads a field that may be left out.
    pub(super) fn optional<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&Node<'a>) -> Option<T>,
        default: impl FnOnce() -> T,
    ) -> Option<T> {
        match self.take(name) {
            Some(node) => read(&node),
            None => Some(default()),
        }
    }

    /// Records what is wrong with having any of these fields; whether one is there.
    pub(super) fn refuse(&mut self, names: &[&'static str], why: &str) -> bool {
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

    /// The one field, of these, that is there.
    pub(super) fn one_of(&mut self, names: &[&'static str]) -> Option<(&'static str, Node<'a>)> {
        let mut found: Vec<_> = Vec::new();
        for name in names {
            found.extend(self.take(name).map(|node| (*name, node)));
        }
        match found.pop() {
            Some(only) if found.is_empty() => Some(only),
            last => {
                let has: Vec<_> = found.into_iter().chain(last).map(|(name, _)| name).collect();
                let has = if has.is_empty() { "none of them".to_owned() } else { has.join(", ") };
                self.node.fault(format!("must have exactly one of {}, has {has}", names.join(", ")));
                None
            }
        }
    }

    /// The place of a field, whether it is there or not.
    pub(super) fn field(&self, name: &str) -> Node<'a> {
        self.node.member(name, self.fields.get(name).unwrap_or(&Value::Null))
    }

    /// Records the fields that nobody asked for.
    pub(super) fn finish(self) {
        for (name, value) in self.fields {
            if !self.known.iter().chain(&self.refused).any(|known| known == name) {
                let hint = suggest::hint(name, &self.known);
                self.node.member(name, value).fault(format!("unknown field{hint}"));
            }
        }
    }

    fn take(&mut self, name: &'static str) -> Option<Node<'a>> {
        self.known.push(name);
        self.fields.get(name).map(|value| self.node.member(name, value))
    }
}
