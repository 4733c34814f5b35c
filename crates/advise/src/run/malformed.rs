//! Lines that cannot be read: their number, and the first few.

use std::collections::BTreeMap;

use crate::display::shown;

/// How many are kept.
const SHOWN: usize = 3;

/// Malformed lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Malformed {
    number: u64,
    /// By log and position in it.
    first: BTreeMap<(usize, u64), String>,
}

impl Malformed {
    /// Counts the line at `offset` of a log.
    pub(crate) fn add(&mut self, log: usize, offset: u64, line: &[u8]) {
        self.number += 1;
        let position = (log, offset);
        if self.first.len() < SHOWN
            || self.first.last_key_value().is_some_and(|(last, _)| position < *last)
        {
            self.first.insert(position, shown(line));
            if self.first.len() > SHOWN {
                self.first.pop_last();
            }
        }
    }

    /// Counts lines that are too long to keep.
    pub(crate) fn add_too_long(&mut self, number: u64) {
        self.number += number;
    }

    /// Adds the lines of another thread.
    pub(crate) fn merge(&mut self, other: Self) {
        self.number += other.number;
        self.first.extend(other.first);
        while self.first.len() > SHOWN {
            self.first.pop_last();
        }
    }

    /// How many there are.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The first few: log, byte and text.
    pub(crate) fn first(&self) -> impl Iterator<Item = (usize, u64, &str)> {
        self.first.iter().map(|((log, offset), line)| (*log, *offset, line.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_lines_are_kept_for_any_order_of_threads() {
        let mut one = Malformed::default();
        for offset in [50, 40, 30, 20] {
            one.add(1, offset, b"x");
        }
        let mut two = Malformed::default();
        two.add(0, 99, b"\x1b[31mred\xff\xe2\x80\xae");
        two.add_too_long(2);
        two.merge(one);
        assert_eq!(two.number(), 7);
        let first: Vec<_> = two.first().collect();
        assert_eq!(first, [(0, 99, "\u{fffd}[31mred\u{fffd}\u{fffd}"), (1, 20, "x"), (1, 30, "x")]);
    }
}
