//! Finds members of a JSON text that comes in chunks, without keeping the text.
//!
//! The scanner follows strings, escapes and depth. It looks at keys at three levels only: in the
//! top-level object and the objects of a top-level list, in the objects below them that its target
//! enters, and in the objects of a list below them. It does not check that a text is JSON: a text
//! that is not yields wrong values or none, and never more memory.

use std::borrow::Cow;

/// What a scanner looks for.
pub(super) trait Target {
    /// The longest key that [`role`](Self::role) knows, in bytes.
    fn longest_key(&self) -> usize;
    /// Whether the top-level value may be a list of objects.
    fn takes_lists(&self) -> bool;
    /// What to do with the member `key` of an object.
    fn role(&mut self, key: &str, level: Level) -> Role;
    /// The value that [`role`](Self::role) wanted last, as JSON; `None` if it is too long.
    fn found(&mut self, value: Option<&[u8]>);
    /// An outer object begins.
    fn begin(&mut self) {}
    /// An outer object has ended.
    fn end(&mut self) {}
}

/// Where an object is whose members count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// The text itself, or an element of a list that is the text.
    Outer,
    /// An object that was entered.
    Inner,
    /// An element of a list that was entered.
    Element,
}

/// What happens to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Skipped,
    /// Its own members count, if it is an object of the outer level.
    Entered,
    /// The members of its objects count, if it is a list of the outer level.
    Listed,
    /// So many bytes of JSON at most.
    Wanted(usize),
}

/// The state between two bytes.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    container: Container,
    /// Whether the outer object is an element of a list.
    in_list: bool,
    /// The open objects and lists inside the current member.
    depth: u64,
    text: StringState,
    part: MemberPart,
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
    /// A list below the outer object.
    Elements,
    Element,
    /// The top-level value has ended, or has no members.
    After,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StringState {
    #[default]
    Outside,
    Inside,
    /// After a backslash.
    Escaped,
}

/// The part of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum MemberPart {
    #[default]
    Key,
    Value(Role),
}

impl Scanner {
    /// Whether the text has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.container == Container::After
    }

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

    /// Reads the next chunk. Returns what follows the end of the text.
    pub(super) fn feed<'c>(&mut self, mut chunk: &'c [u8], target: &mut impl Target) -> &'c [u8] {
        while let Some((&byte, rest)) = chunk.split_first() {
            if self.container == Container::After {
                return chunk;
            }
            if self.text == StringState::Inside && !self.record.is_on {
                let skipped = memchr::memchr2(b'"', b'\\', chunk).unwrap_or(chunk.len());
                if skipped > 0 {
                    chunk = chunk.get(skipped..).unwrap_or_default();
                    continue;
                }
            }
            chunk = rest;
            match self.text {
                StringState::Outside => self.token(byte, target),
                StringState::Inside => self.character(byte, target),
                StringState::Escaped => {
                    self.text = StringState::Inside;
                    self.record.push(byte);
                }
            }
        }
        chunk
    }

    fn character(&mut self, byte: u8, target: &mut impl Target) {
        self.record.push(byte);
        match byte {
            b'\\' => self.text = StringState::Escaped,
            b'"' => {
                self.text = StringState::Outside;
                if self.is_key() {
                    self.key(target);
                }
            }
            _ => {}
        }
    }

    /// Whether a text that begins or ends here is a key that counts.
    fn is_key(&self) -> bool {
        self.level().is_some() && self.depth == 0 && self.part == MemberPart::Key
    }

    /// Where the members are that come here.
    const fn level(&self) -> Option<Level> {
        match self.container {
            Container::Object => Some(Level::Outer),
            Container::Nested => Some(Level::Inner),
            Container::Element => Some(Level::Element),
            Container::Before | Container::List | Container::Elements | Container::After => None,
        }
    }

    /// A key has ended.
    fn key(&mut self, target: &mut impl Target) {
        let key = self.record.value().and_then(unescaped).zip(self.level());
        let role = key.map_or(Role::Skipped, |(key, level)| target.role(&key, level));
        self.part = MemberPart::Value(role);
        match role {
            Role::Wanted(longest) => self.record.start(longest),
            Role::Skipped | Role::Entered | Role::Listed => self.record.stop(),
        }
    }

    /// A byte outside texts.
    fn token(&mut self, byte: u8, target: &mut impl Target) {
        match byte {
            b'"' => {
                self.text = StringState::Inside;
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

    fn open(&mut self, byte: u8, target: &mut impl Target) {
        let is_object = byte == b'{';
        match (self.container, self.part) {
            _ if self.depth > 0 => self.depth = self.depth.saturating_add(1),
            (Container::Before | Container::List, _) if is_object => {
                self.container = Container::Object;
                target.begin();
            }
            (Container::Before, _) if target.takes_lists() => {
                self.container = Container::List;
                self.in_list = true;
            }
            (Container::Object, MemberPart::Value(Role::Entered)) if is_object => {
                self.container = Container::Nested;
                self.part = MemberPart::Key;
            }
            (Container::Object, MemberPart::Value(Role::Listed)) if !is_object => {
                self.container = Container::Elements;
                self.part = MemberPart::Key;
            }
            (Container::Elements, _) if is_object => self.container = Container::Element,
            (Container::Before | Container::After, _) => {}
            _ => self.depth = 1,
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
        if self.container == Container::Object {
            target.end();
        }
        self.container = match self.container {
            Container::Nested | Container::Elements => Container::Object,
            Container::Element => Container::Elements,
            Container::Object if self.in_list => Container::List,
            Container::Object | Container::List | Container::Before | Container::After => {
                Container::After
            }
        };
    }

    fn end_member(&mut self, target: &mut impl Target) {
        if matches!(self.part, MemberPart::Value(Role::Wanted(_))) {
            target.found(self.record.value());
        }
        self.part = MemberPart::Key;
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
    /// Whether bytes are kept. Not beyond the limit.
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
        if self.is_on {
            self.bytes.push(byte);
            self.is_on = self.bytes.len() <= self.limit;
        }
    }

    /// What was kept since the start; `None` if it was longer than the limit.
    fn value(&self) -> Option<&[u8]> {
        (self.bytes.len() <= self.limit).then_some(&*self.bytes)
    }
}
