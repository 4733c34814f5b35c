//! A value of the file with its path.

use quotagate_quota::config;

use crate::check::yaml::{Node, Tree};

/// A value of the file with its path.
#[derive(Clone)]
pub(super) struct At<'n> {
    pub(super) path: String,
    pub(super) node: &'n Node,
}

impl<'n> At<'n> {
    /// The value at the root of a document.
    pub(super) fn root(node: &'n Node) -> Self {
        Self { path: String::new(), node }
    }

    /// The member of this name.
    pub(super) fn get(&self, name: &str) -> Option<Self> {
        let node = self.node.value.get(name)?;
        Some(Self { path: config::member_path(&self.path, name), node })
    }

    /// The members of a mapping.
    pub(super) fn members(&self) -> Vec<Self> {
        let Tree::Map(members) = &self.node.value else { return Vec::new() };
        let member = |name: &str, node| Self { path: config::member_path(&self.path, name), node };
        members.iter().map(|(name, node)| member(&name.value, node)).collect()
    }

    /// The elements of a list.
    pub(super) fn elements(&self) -> Vec<Self> {
        let Tree::List(elements) = &self.node.value else { return Vec::new() };
        let element = |(i, node)| Self { path: config::element_path(&self.path, i), node };
        elements.iter().enumerate().map(element).collect()
    }

    /// The text, if this is one.
    pub(super) fn text(&self) -> Option<&'n str> {
        self.node.value.text()
    }

    /// The type of an `Any`, as a URL.
    pub(super) fn kind(&self) -> Option<&'n str> {
        self.node.value.get("@type")?.value.text()
    }

    /// Whether this is an `Any` of a message of this name.
    pub(super) fn is_of(&self, message: &str) -> bool {
        self.kind().is_some_and(|kind| kind.rsplit('.').next() == Some(message))
    }

    /// Whether it is, or contains, a text with this in it.
    pub(super) fn mentions(&self, text: &str) -> bool {
        self.node.value.mentions(text)
    }

    /// Shows this value, and all that it contains.
    pub(super) fn visit(&self, show: &mut impl FnMut(&Self)) {
        show(self);
        for inner in self.members().iter().chain(&self.elements()) {
            inner.visit(show);
        }
    }
}
