//! Policy documents, wherever they stand: alone, or in a configuration of Envoy, Istio or Envoy Gateway.

use quotagate_quota::config;
use serde_json::error::Category;
use serde_saphyr::Spanned;

use super::yaml::{self, Node, Position, Tree, Unreadable};

/// The fields that a document must have; two of them tell it from everything else.
const REQUIRED: [&str; 3] = ["domain", "store", "policies"];

/// Where plugins have their configuration.
const CONFIGURATIONS: [&str; 4] = ["configuration", "pluginConfig", "config", "filter_config"];

/// What marks the configuration of our own plugin, however little of it is right.
const OURS: &str = "quotagate";

/// A policy document and where it stands.
#[derive(Debug)]
pub(super) struct Document<'n> {
    /// Its path in what contains it; empty where it stands alone.
    pub(super) path: String,
    pub(super) content: Content<'n>,
}

/// How a document is written.
#[derive(Debug)]
pub(super) enum Content<'n> {
    /// As YAML or JSON in the file itself.
    Plain(&'n Node),
    /// As the text of a `google.protobuf.StringValue`, which Envoy hands over as it is.
    Text(Embedded<'n>),
}

/// A text in a file.
#[derive(Debug)]
pub(super) struct Embedded<'n> {
    node: &'n Node,
    text: &'n str,
    /// By how many lines and columns the text is further on in the file, where the file has the same lines.
    shift: Option<(u64, u64)>,
}

impl Embedded<'_> {
    /// The JSON that it is, with positions in the text.
    ///
    /// # Errors
    /// Why it is none, and where in the file.
    pub(super) fn read(&self) -> Result<Node, Unreadable> {
        if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(self.text) {
            let at = Position { line: error.line() as u64, column: error.column() as u64 };
            let message = error.to_string();
            let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
            let yaml = if matches!(error.classify(), Category::Syntax) && yaml::read(self.text).is_ok() {
                ", and YAML is not read in a StringValue: write JSON, or use google.protobuf.Struct"
            } else {
                ""
            };
            return Err(Unreadable {
                at: Some(self.position(at)),
                message: format!("must be JSON: {message}{yaml}"),
            });
        }
        // JSON is YAML, and only the reader of YAML knows where values stand.
        let read = yaml::read(self.text).map_err(|Unreadable { at, message }| Unreadable {
            at: at.map(|at| self.position(at)),
            message,
        })?;
        read.into_iter().next().ok_or_else(|| Unreadable {
            at: Some(self.node.referenced.into()),
            message: "must be an object, is null".to_owned(),
        })
    }

    /// The text itself.
    pub(super) fn text(&self) -> &str {
        self.text
    }

    /// Where it begins in the file.
    pub(super) fn start(&self) -> Position {
        self.position(Position { line: 1, column: 1 })
    }

    /// The place in the file of a place in the text.
    pub(super) fn position(&self, at: Position) -> Position {
        match self.shift {
            Some((lines, columns)) => Position { line: lines + at.line, column: columns + at.column },
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
    /// Keeps documents at and below this value, which is one if it has so many of the required fields.
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
                let kind = node.value.get("@type").and_then(|kind| kind.value.text()).unwrap_or_default();
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
            // Of our own plugin even a text that cannot be read is kept, for its mistakes.
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

/// Whether anything beside this member names us.
fn is_ours(members: &[(Spanned<String>, Node)], but: &str) -> bool {
    members.iter().any(|(name, value)| name.value != but && mentions(&value.value))
}

fn mentions(tree: &Tree) -> bool {
    match tree {
        Tree::Scalar(value) => value.as_str().is_some_and(|text| text.contains(OURS)),
        Tree::List(elements) => elements.iter().any(|element| mentions(&element.value)),
        Tree::Map(members) => members.iter().any(|(_, value)| mentions(&value.value)),
    }
}

/// By how many lines and columns a text is further on in the file: known of literal blocks (`|`), which keep their lines.
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
