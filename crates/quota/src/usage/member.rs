//! A number out of the body of a request, such as `max_tokens`.

use super::scanner::{Level, Role, Scanner, Target};
use super::whole;

/// Reads one member of the top-level object of a JSON text. Feed it every chunk, in order, and ask
/// for the value at the end.
#[derive(Debug)]
pub struct Member {
    scanner: Scanner,
    wanted: Wanted,
}

#[derive(Debug)]
struct Wanted {
    name: Box<str>,
    state: State,
}

#[derive(Debug)]
enum State {
    Missing,
    Whole(u64),
    Unusable,
}

/// The longest number, in bytes of JSON.
const MAX_NUMBER: usize = 64;

impl Member {
    /// A reader of the member `name`.
    pub fn new(name: &str) -> Self {
        let wanted = Wanted { name: name.into(), state: State::Missing };
        Self { scanner: Scanner::default(), wanted }
    }

    /// Reads the next chunk.
    pub fn feed(&mut self, chunk: &[u8]) {
        self.scanner.feed(chunk, &mut self.wanted);
    }

    /// The member's value so far, 0 to [`MAX_UNITS`](crate::protocol::MAX_UNITS). `None` if the
    /// text has no such member, or its value is anything but a whole number.
    ///
    /// Parsers disagree on which of two members with the same name counts. So the greatest of them
    /// counts, and nothing does if one is no whole number.
    pub const fn value(&self) -> Option<u64> {
        match self.wanted.state {
            State::Whole(number) => Some(number),
            State::Missing | State::Unusable => None,
        }
    }
}

impl Target for Wanted {
    fn longest_key(&self) -> usize {
        self.name.len()
    }

    fn takes_lists(&self) -> bool {
        false
    }

    fn role(&mut self, key: &str, _: Level) -> Role {
        if *key == *self.name { Role::Wanted(MAX_NUMBER) } else { Role::Skipped }
    }

    fn found(&mut self, value: Option<&[u8]>) {
        let number = value.and_then(|json| whole(&serde_json::from_slice(json).ok()?));
        self.state = match (&self.state, number) {
            (State::Missing, Some(number)) => State::Whole(number),
            (State::Whole(earlier), Some(number)) => State::Whole(number.max(*earlier)),
            (State::Unusable, _) | (_, None) => State::Unusable,
        };
    }
}
