//! YAML as a tree in which each value knows its line.
//!
//! Scalars stay texts: which of them are numbers or booleans depends on the field, and rule files
//! follow YAML 1.1, where `yes` and `0x10` are such.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, options};

/// Most levels of a file.
const MAX_LEVELS: usize = 256;
/// Most values of a file, each alias counted with all that it stands for.
const MAX_VALUES: usize = 2_000_000;
/// Most bytes of all its texts, each alias counted with all that it stands for.
const MAX_BYTES: usize = 64 << 20;

/// A value and the line where it begins.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) tree: Tree,
}

#[derive(Clone, Debug)]
pub(super) enum Tree {
    /// A text, and whether it stands without quotes.
    Scalar(Rc<str>, Quotes),
    List(Rc<[Node]>),
    /// In the order of the text. Of a name that occurs twice, only the last is left.
    Map(Rc<[(Rc<str>, Node)]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quotes {
    None,
    Some,
}

impl Node {
    /// The member of this name, if this is a mapping that has it.
    pub(super) fn member(&self, name: &str) -> Option<&Self> {
        let Tree::Map(members) = &self.tree else { return None };
        members.iter().find(|(known, _)| **known == *name).map(|(_, member)| member)
    }

    /// The line of the value at a path such as `descriptors[0].key`, or of the nearest value around
    /// it.
    pub(super) fn line_of(&self, path: &str) -> usize {
        let mut node = self;
        for step in path.split(['.', '[']) {
            let inner = match (&node.tree, step.strip_suffix(']')) {
                (Tree::List(elements), Some(index)) => {
                    index.parse().ok().and_then(|index: usize| elements.get(index))
                }
                _ => node.member(step),
            };
            match inner {
                Some(inner) => node = inner,
                None => break,
            }
        }
        node.line
    }
}

/// What is wrong, and where.
pub(super) struct Unreadable {
    pub(super) line: usize,
    pub(super) text: String,
}

/// Reads the first document of a text; `None` if it is empty.
///
/// # Errors
/// Why it is not YAML, or is too large.
pub(super) fn read(text: &str) -> Result<Option<Node>, Unreadable> {
    let options = options! { emit_comments: false };
    let events = Parser::new_from_str_with_options(text, options);
    let mut reader = TreeReader { events, anchors: HashMap::new(), size: TreeSize::default() };
    loop {
        match reader.next()? {
            (Event::StreamEnd | Event::DocumentEnd, _) => return Ok(None),
            (Event::StreamStart | Event::DocumentStart(..), _) => {}
            (event, span) => return reader.node(event, span, 0).map(Some),
        }
    }
}

struct TreeReader<I> {
    events: I,
    /// By the number of the anchor, each with the size of what it holds.
    anchors: HashMap<usize, (Node, TreeSize)>,
    size: TreeSize,
}

#[derive(Clone, Copy, Default)]
struct TreeSize {
    values: usize,
    /// Of all texts.
    bytes: usize,
}

impl<'t, I: Iterator<Item = Result<(Event<'t>, Span), ScanError>>> TreeReader<I> {
    fn next(&mut self) -> Result<(Event<'t>, Span), Unreadable> {
        match self.events.next() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(Unreadable { line: error.marker().line(), text: error.info() }),
            None => Err(Unreadable { line: 1, text: "ends too early".to_owned() }),
        }
    }

    fn node(&mut self, event: Event<'t>, span: Span, level: usize) -> Result<Node, Unreadable> {
        let line = span.start.line();
        let too = |what: &str| Unreadable { line, text: format!("has {what}: make it smaller") };
        if level > MAX_LEVELS {
            return Err(too(&format!("more than {MAX_LEVELS} levels")));
        }
        let before = self.size;
        self.size.values += 1;
        let (tree, anchor) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let quotes = if style == ScalarStyle::Plain { Quotes::None } else { Quotes::Some };
                self.size.bytes += text.len();
                (Tree::Scalar(text.as_ref().into(), quotes), anchor)
            }
            Event::SequenceStart(_, anchor, _) => (self.list(level)?, anchor),
            Event::MappingStart(_, anchor, _) => (self.map(level)?, anchor),
            Event::Alias(anchor) => {
                let known = self.anchors.get(&anchor).cloned();
                let (node, size) = known.ok_or(Unreadable {
                    line,
                    text: "an alias stands inside what it stands for".to_owned(),
                })?;
                self.size.values += size.values;
                self.size.bytes += size.bytes;
                (node.tree, 0)
            }
            _ => return Err(Unreadable { line, text: "a value is missing".to_owned() }),
        };
        if self.size.values > MAX_VALUES {
            return Err(too(&format!("more than {MAX_VALUES} values")));
        }
        if self.size.bytes > MAX_BYTES {
            return Err(too(&format!("more than {MAX_BYTES} bytes of text with its aliases")));
        }
        let node = Node { line, tree };
        if anchor != 0 {
            let size = TreeSize {
                values: self.size.values - before.values,
                bytes: self.size.bytes - before.bytes,
            };
            self.anchors.insert(anchor, (node.clone(), size));
        }
        Ok(node)
    }

    fn list(&mut self, level: usize) -> Result<Tree, Unreadable> {
        let mut elements = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Tree::List(elements.into())),
                (event, span) => elements.push(self.node(event, span, level + 1)?),
            }
        }
    }

    fn map(&mut self, level: usize) -> Result<Tree, Unreadable> {
        let mut members = Members::default();
        let mut merged = Vec::new();
        loop {
            let (event, span) = match self.next()? {
                (Event::MappingEnd, _) => break,
                next => next,
            };
            let key = self.node(event, span, level + 1)?;
            let (event, span) = self.next()?;
            let value = self.node(event, span, level + 1)?;
            match key.tree {
                Tree::Scalar(name, Quotes::None) if &*name == "<<" => merged.push(value),
                Tree::Scalar(name, _) => members.set(name, value),
                Tree::List(_) | Tree::Map(_) => {
                    let text = "the name of a field is a list or a mapping: write a text";
                    return Err(Unreadable { line: key.line, text: text.to_owned() });
                }
            }
        }
        for value in merged {
            members.merge(&value)?;
        }
        Ok(Tree::Map(members.list.into()))
    }
}

/// The members of a mapping.
#[derive(Default)]
struct Members {
    /// In the order of the text.
    list: Vec<(Rc<str>, Node)>,
    /// The index of each name, so that a mapping of many members is read in linear time.
    index: HashMap<Rc<str>, usize>,
}

impl Members {
    /// The last of a name wins, at the index of the first.
    fn set(&mut self, name: Rc<str>, value: Node) {
        match self.index.entry(name) {
            Entry::Occupied(known) => {
                if let Some((_, member)) = self.list.get_mut(*known.get()) {
                    *member = value;
                }
            }
            Entry::Vacant(vacant) => {
                self.list.push((Rc::clone(vacant.key()), value));
                vacant.insert(self.list.len() - 1);
            }
        }
    }

    /// Adds the members that a merge key `<<` names, unless they are there.
    fn merge(&mut self, value: &Node) -> Result<(), Unreadable> {
        match &value.tree {
            Tree::Map(others) => {
                for (name, other) in others.iter() {
                    if !self.index.contains_key(name) {
                        self.set(Rc::clone(name), other.clone());
                    }
                }
                Ok(())
            }
            Tree::List(maps) => maps.iter().try_for_each(|map| self.merge(map)),
            Tree::Scalar(..) => {
                let text = "the merge key `<<` needs a mapping, or a list of mappings";
                Err(Unreadable { line: value.line, text: text.to_owned() })
            }
        }
    }
}
