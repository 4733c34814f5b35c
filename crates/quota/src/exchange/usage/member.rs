//! A number out of the body of a request, such as `max_tokens`.

use super::scanner::{Level, Role, Scanner, Target};
use super::whole;

/// Reads the members with some names of the top-level object of a JSON text. Feed it every chunk,
/// in order, and ask for the value at the end.
///
/// Parsers disagree on which of two members counts, and some of them (Go's) compare names without
/// case. So the greatest of all members counts whose names are the same without case.
#[derive(Debug)]
pub struct BodyNumber {
    scanner: Scanner,
    wanted: SoughtNumber,
}

#[derive(Debug)]
struct SoughtNumber {
    /// Each as [`folded`].
    names: Box<[String]>,
    longest: usize,
    greatest: Option<u64>,
    is_unusable: bool,
}

/// The longest number, in bytes of JSON.
const MAX_NUMBER: usize = 64;

impl BodyNumber {
    /// A reader of the members with these names.
    pub fn new<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        let names: Box<[String]> = names.into_iter().map(folded).collect();
        let longest = names.iter().map(String::len).max().unwrap_or_default();
        let wanted = SoughtNumber { names, longest, greatest: None, is_unusable: false };
        Self { scanner: Scanner::default(), wanted }
    }

    /// Reads the next chunk.
    pub fn feed(&mut self, chunk: &[u8]) {
        self.scanner.feed(chunk, &mut self.wanted);
    }

    /// The greatest value so far, 0 to [`MAX_UNITS`](quotagate_protocol::MAX_UNITS). `None` if no
    /// such member is a whole number.
    pub const fn value(&self) -> Option<u64> {
        self.wanted.greatest
    }

    /// Whether a member's value is anything but a whole number: nobody knows what it means.
    pub const fn is_unusable(&self) -> bool {
        self.wanted.is_unusable
    }
}

/// A name without the case of ASCII letters. Go takes two others for such letters: the Kelvin sign
/// and the long s.
fn folded(name: &str) -> String {
    let folded = name.chars().map(|char| match char {
        '\u{212a}' => 'k',
        '\u{17f}' => 's',
        char => char.to_ascii_lowercase(),
    });
    folded.collect()
}

impl Target for SoughtNumber {
    fn longest_key(&self) -> usize {
        self.longest
    }

    fn takes_lists(&self) -> bool {
        false
    }

    fn role(&mut self, key: &str, _: Level) -> Role {
        if self.names.contains(&folded(key)) { Role::Wanted(MAX_NUMBER) } else { Role::Skipped }
    }

    fn found(&mut self, value: Option<&[u8]>) {
        let number = value.and_then(|json| whole(&serde_json::from_slice(json).ok()?));
        self.is_unusable |= number.is_none();
        self.greatest = self.greatest.max(number);
    }
}
