//! Finds members of a JSON text that comes in chunks, without keeping the text.
//!
//! The scanner follows strings, escapes and depth. It looks at keys in three places only: in the
//! top-level object, in the objects of a top-level list, and in the objects below them that its
//! target enters. It does not check that a text is JSON: a text that is not yields wrong values or
//! none, and never more memory.

use std::borrow::Cow;

/// What a scanner looks for.
pub(super) trait Target {
    /// The longest key that [`role`](Self::role) knows, in bytes.
    fn longest_key(&self) -> usize;
    /// The longest value that it takes, in bytes of JSON.
    fn longest_value(&self) -> usize;
    /// Whether the top-level value may be a list of objects.
    fn takes_lists(&self) -> bool;
    /// What to do with the member `key` of an object; `nested`: of one that was entered.
    fn role(&self, key: &str, nested: bool) -> Role;
    /// A wanted value, as JSON; `None` if it is too long.
    fn found(&mut self, value: Option<&[u8]>);
}

/// What happens to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Skipped,
    /// Its own members count, if it is an object of the outer level.
    Entered,
    Wanted,
}

/// The state between two bytes.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    container: Container,
    /// Whether the outer object is an element of a list.
    in_list: bool,
    /// The open objects and lists inside the current member.
    depth: u64,
    text: Text,
    part: Part,
    record: Record,
}

/// The innermost object or list with members that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Container {
    #[default]
    Before,
    List,
    Object,
    Nested,
    /// The top-level value has ended, or has no members.
    After,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Text {
    #[default]
    Outside,
    Inside,
    /// After a backslash.
    Escaped,
}

/// The part of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Key,
    Value(Role),
}

impl Scanner {
    /// Begins another text.
    pub(super) fn restart(&mut self) {
        let record = std::mem::take(&mut self.record);
        *self = Self { record, ..Self::default() };
        self.record.stop();
    }

    /// The bytes that it keeps memory for.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.record.bytes.capacity()
    }

    pub(super) fn feed(&mut self, mut chunk: &[u8], target: &mut impl Target) {
        while let Some((&byte, rest)) = chunk.split_first() {
            if self.container == Container::After {
                return;
            }
            if self.text == Text::Inside && !self.record.is_on {
                let skipped = memchr::memchr2(b'"', b'\\', chunk).unwrap_or(chunk.len());
                if skipped > 0 {
                    chunk = chunk.get(skipped..).unwrap_or_default();
                    continue;
                }
            }
            chunk = rest;
            match self.text {
                Text::Outside => self.token(byte, target),
                Text::Inside => self.character(byte, target),
                Text::Escaped => {
                    self.text = Text::Inside;
                    self.record.push(byte);
                }
            }
        }
    }

    fn character(&mut self, byte: u8, target: &impl Target) {
        self.record.push(byte);
        match byte {
            b'\\' => self.text = Text::Escaped,
            b'"' => {
                self.text = Text::Outside;
                if self.is_key() {
                    self.key(target);
                }
            }
            _ => {}
        }
    }

    /// Whether a text that begins or ends here is a key that counts.
    fn is_key(&self) -> bool {
        let has_members = matches!(self.container, Container::Object | Container::Nested);
        has_members && self.depth == 0 && self.part == Part::Key
    }

    /// A key has ended.
    fn key(&mut self, target: &impl Target) {
        let key = self.record.value().and_then(unescaped);
        let nested = self.container == Container::Nested;
        let role = key.map_or(Role::Skipped, |key| target.role(&key, nested));
        self.part = Part::Value(role);
        match role {
            Role::Wanted => self.record.start(target.longest_value()),
            Role::Skipped | Role::Entered => self.record.stop(),
        }
    }

    /// A byte outside texts.
    fn token(&mut self, byte: u8, target: &mut impl Target) {
        match byte {
            b'"' => {
                self.text = Text::Inside;
                if self.is_key() {
                    // Each byte of a key may be written as \u0061; two quotation marks surround it.
                    self.record.start(target.longest_key().saturating_mul(6).saturating_add(2));
                }
                self.record.push(byte);
            }
            b'{' | b'[' => self.open(byte, target),
            b'}' | b']' => self.close(byte, target),
            b',' if self.depth == 0 => self.end_member(target),
            b':' if self.depth == 0 => {}
            b' ' | b'\t' | b'\r' | b'\n' => return,
            _ => self.record.push(byte),
        }
        if self.container == Container::Before && !BYTE_ORDER_MARK.contains(&byte) {
            self.container = Container::After;
        }
    }

    fn open(&mut self, byte: u8, target: &impl Target) {
        let is_object = byte == b'{';
        match (self.container, self.part) {
            _ if self.depth > 0 => self.depth = self.depth.saturating_add(1),
            (Container::Before, _) if is_object => self.container = Container::Object,
            (Container::Before, _) if target.takes_lists() => {
                self.container = Container::List;
                self.in_list = true;
            }
            (Container::List, _) if is_object => self.container = Container::Object,
            (Container::Object, Part::Value(Role::Entered)) if is_object => {
                self.container = Container::Nested;
                self.part = Part::Key;
            }
            (Container::Before | Container::After, _) => {}
            (Container::List | Container::Object | Container::Nested, _) => self.depth = 1,
        }
        self.record.push(byte);
    }

    fn close(&mut self, byte: u8, target: &mut impl Target) {
        if let Some(depth) = self.depth.checked_sub(1) {
            self.depth = depth;
            self.record.push(byte);
            return;
        }
        self.end_member(target);
        self.container = match self.container {
            Container::Nested => Container::Object,
            Container::Object if self.in_list => Container::List,
            Container::Object | Container::List | Container::Before | Container::After => {
                Container::After
            }
        };
    }

    fn end_member(&mut self, target: &mut impl Target) {
        if self.part == Part::Value(Role::Wanted) {
            target.found(self.record.value());
        }
        self.part = Part::Key;
        self.record.stop();
    }
}

/// The bytes of U+FEFF. They may precede the text.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The text that a JSON string stands for.
fn unescaped(json: &[u8]) -> Option<Cow<'_, str>> {
    match json {
        [b'"', plain @ .., b'"'] if !plain.contains(&b'\\') => {
            std::str::from_utf8(plain).ok().map(Cow::Borrowed)
        }
        _ => serde_json::from_slice(json).ok().map(Cow::Owned),
    }
}

/// Bytes kept up to a limit.
#[derive(Debug, Default)]
struct Record {
    is_on: bool,
    /// Longer than `limit` if bytes were dropped.
    bytes: Vec<u8>,
    limit: usize,
}

impl Record {
    fn start(&mut self, limit: usize) {
        self.bytes.clear();
        self.is_on = true;
        self.limit = limit;
    }

    fn stop(&mut self) {
        self.is_on = false;
    }

    fn push(&mut self, byte: u8) {
        if self.is_on && self.bytes.len() <= self.limit {
            self.bytes.push(byte);
        }
    }

    /// What was kept since the start; `None` if it was longer than the limit.
    fn value(&self) -> Option<&[u8]> {
        (self.bytes.len() <= self.limit).then_some(&*self.bytes)
    }
}
