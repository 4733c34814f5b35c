//! Finds policy documents: a whole file, or parts of a configuration of Envoy, Istio or Envoy
//! Gateway.

use quotagate_quota::config;
use serde_json::error::Category;
use serde_saphyr::Spanned;

use super::yaml::{self, Node, Position, Tree, Unreadable};

/// The fields that a document must have. A value with two of them is taken for a document.
const REQUIRED: [&str; 3] = ["domain", "store", "policies"];

/// The fields in which plugins have their configuration.
const CONFIGURATIONS: [&str; 4] = ["configuration", "pluginConfig", "config", "filter_config"];

/// A text beside a plugin's configuration that shows it to be ours, even if the document in it is
/// mostly wrong.
const OURS: &str = "quotagate";

/// A policy document in a file.
#[derive(Debug)]
pub(super) struct Document<'n> {
    /// Its path in the surrounding configuration; empty if the file is the document.
    pub(super) path: String,
    pub(super) content: Content<'n>,
}

/// The form of a document.
#[derive(Debug)]
pub(super) enum Content<'n> {
    /// YAML or JSON of the file itself.
    Plain(&'n Node),
    /// The text of a `google.protobuf.StringValue`, which Envoy passes to the filter unchanged.
    Text(Embedded<'n>),
}

/// A document in a string of the file.
#[derive(Debug)]
pub(super) struct Embedded<'n> {
    node: &'n Node,
    text: &'n str,
    /// The lines and columns to add to a position in the text for its position in the file. None if
    /// the file does not contain the same lines.
    shift: Option<(u64, u64)>,
}

impl Embedded<'_> {
    /// The JSON in the text, with positions in the text.
    ///
    /// # Errors
    /// Why it is no JSON, with the position in the file.
    pub(super) fn read(&self) -> Result<Node, Unreadable> {
        if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(self.text) {
            let at = Position { line: error.line() as u64, column: error.column() as u64 };
            let message = error.to_string();
            let message =
                message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
            let yaml =
                if matches!(error.classify(), Category::Syntax) && yaml::read(self.text).is_ok() {
                    ": a StringValue cannot contain YAML; write JSON, or use google.protobuf.Struct"
                } else {
                    ""
                };
            return Err(Unreadable {
                at: Some(self.position(at)),
                message: format!("must be JSON: {message}{yaml}"),
            });
        }
        // JSON is YAML, and only the YAML parser keeps positions.
        let read = yaml::read(self.text).map_err(|Unreadable { at, message }| Unreadable {
            at: at.map(|at| self.position(at)),
            message,
        })?;
        read.into_iter().next().ok_or_else(|| Unreadable {
            at: Some(self.node.referenced.into()),
            message: "must be an object, is null".to_owned(),
        })
    }

    /// The text.
    pub(super) fn text(&self) -> &str {
        self.text
    }

    /// The position in the file at which the text begins.
    pub(super) fn start(&self) -> Position {
        self.position(Position { line: 1, column: 1 })
    }

    /// The position in the file for a position in the text.
    pub(super) fn position(&self, at: Position) -> Position {
        match self.shift {
            Some((lines, columns)) => {
                Position { line: lines + at.line, column: columns + at.column }
            }
            None => self.node.referenced.into(),
        }
    }
}

/// All policy documents below `root`, which is a document of `text`.
pub(super) fn find<'n>(root: &'n Node, text: &str) -> Vec<Document<'n>> {
    let mut found = Vec::new();
    let mut search = Search { text, found: &mut found };
    if REQUIRED.iter().any(|name| root.value.get(name).is_some()) {
        search.keep(String::new(), Content::Plain(root));
    } else {
        search.below(root, "", 2);
    }
    found
}

struct Search<'s, 'n> {
    text: &'s str,
    found: &'s mut Vec<Document<'n>>,
}

impl<'n> Search<'_, 'n> {
    /// Keeps the documents at and below this value. It is one itself if it has `enough` of the
    /// required fields.
    fn at(&mut self, node: &'n Node, path: &str, enough: usize) {
        if has(|name| node.value.get(name).is_some(), enough) {
            self.keep(path.to_owned(), Content::Plain(node));
        } else {
            self.below(node, path, enough);
        }
    }

    fn below(&mut self, node: &'n Node, path: &str, enough: usize) {
        match &node.value {
            Tree::Scalar(_) => {}
            Tree::List(elements) => {
                for (i, element) in elements.iter().enumerate() {
                    self.at(element, &config::element_path(path, i), 2);
                }
            }
            Tree::Map(members) => {
                let kind =
                    node.value.get("@type").and_then(|kind| kind.value.text()).unwrap_or_default();
                for (name, value) in members {
                    let path = config::member_path(path, &name.value);
                    let enough = match name.value.as_str() {
                        "value" if kind.ends_with("google.protobuf.StringValue") => {
                            self.text(value, path, enough);
                            continue;
                        }
                        "value" => enough,
                        name if CONFIGURATIONS.contains(&name) && is_ours(members, name) => 1,
                        _ => 2,
                    };
                    self.at(value, &path, enough);
                }
            }
        }
    }

    fn text(&mut self, node: &'n Node, path: String, enough: usize) {
        let Some(text) = node.value.text() else { return };
        let embedded = Embedded { node, text, shift: shift(node, text, self.text) };
        let is_document = match yaml::read(text).ok().as_deref() {
            Some([document, ..]) => has(|name| document.value.get(name).is_some(), enough),
            // A text of our own plugin is kept even if it cannot be parsed, to report that.
            Some([]) | None => enough == 1,
        };
        if is_document {
            self.keep(path, Content::Text(embedded));
        }
    }

    fn keep(&mut self, path: String, content: Content<'n>) {
        self.found.push(Document { path, content });
    }
}

fn has(field: impl Fn(&str) -> bool, enough: usize) -> bool {
    REQUIRED.iter().filter(|name| field(name)).count() >= enough
}

/// Whether any other member mentions this filter.
fn is_ours(members: &[(Spanned<String>, Node)], but: &str) -> bool {
    members.iter().any(|(name, value)| name.value != but && value.value.mentions(OURS))
}

/// The lines and columns between a text and its file. Known only for literal blocks (`|`), which
/// keep their lines.
fn shift(node: &Node, text: &str, file: &str) -> Option<(u64, u64)> {
    let before = node.referenced.line().checked_sub(1)?;
    let mut lines = file.lines().skip(usize::try_from(before).ok()?);
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut columns = None;
    for line in text.lines() {
        let in_file = lines.next().filter(|in_file| in_file.trim() == line.trim())?;
        columns.get_or_insert_with(|| indent(in_file).saturating_sub(indent(line)));
    }
    Some((before, columns? as u64))
}
