//! The slices of a sliding window: how many units each of them granted.
//!
//! The script in Redis does the same on the same form: the number of the first slice and the units
//! of it and of each one after it, as doubles of eight bytes, little-endian.

use std::collections::VecDeque;

use quotagate_protocol::{MAX_UNITS, SLICES, Sliding};

/// How many slices a slice is before or after the current one, if it counts at most. Slices after
/// the current one come from a server whose clock was ahead.
const REACH: u64 = SLICES as u64;

/// The units of every slice that still counts: at most 41 slices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slices {
    /// The number of the first slice.
    first: u64,
    units: VecDeque<u64>,
}

impl Slices {
    /// Reads what Redis holds. `None` if it is something else.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks();
        let numbers: Vec<_> = numbers.iter().map(|number| f64::from_le_bytes(*number)).collect();
        let (first, units) = numbers.split_first().filter(|_| rest.is_empty())?;
        // Negative numbers and NaN become 0.
        let whole = |number: &f64| (*number as u64).min(MAX_UNITS);
        Some(Self { first: whole(first), units: units.iter().map(whole).collect() })
    }

    /// Forgets the slices that no longer count at slice `now`. Forgets all of them if the clock
    /// went back by more than the window.
    pub fn advance(&mut self, now: u64) {
        let last = self.first.saturating_add(self.len()).saturating_sub(1);
        if last > now.saturating_add(REACH) {
            self.units.clear();
        }
        while self.first < now.saturating_sub(REACH) && self.units.pop_front().is_some() {
            self.first += 1;
        }
    }

    /// The units of all slices.
    pub fn used(&self) -> u64 {
        self.units.iter().fold(0, |sum: u64, units| sum.saturating_add(*units)).min(MAX_UNITS)
    }

    /// The units of one slice, if it counts at slice `now`. Then forgets those that do not.
    pub fn slice(&mut self, number: u64, now: u64) -> Option<&mut u64> {
        if number.abs_diff(now) > REACH {
            return None;
        }
        self.advance(now);
        if self.units.is_empty() {
            self.first = number;
        }
        while number < self.first {
            self.units.push_front(0);
            self.first -= 1;
        }
        while number >= self.first.saturating_add(self.len()) {
            self.units.push_back(0);
        }
        self.units.get_mut(usize::try_from(number - self.first).ok()?)
    }

    /// When the last of them leaves, in milliseconds since the Unix epoch.
    pub fn end_ms(&self, window: Sliding) -> u64 {
        leaves_ms(self.first.saturating_add(self.len()).saturating_sub(1), window)
    }

    /// When so many units fit in again, in milliseconds since the Unix epoch: with `None` when the
    /// first ones return. That is when the current slice leaves if no slice before it helps.
    pub fn retry_at_ms(&self, window: Sliding, now: u64, fit: Option<(u64, u64)>) -> u64 {
        let mut used = self.used();
        for (number, units) in (self.first..).zip(&self.units).filter(|(_, units)| **units > 0) {
            used = used.saturating_sub(*units);
            if fit.is_none_or(|(min, quota)| used.saturating_add(min) <= quota) {
                return leaves_ms(number, window);
            }
        }
        leaves_ms(now, window)
    }

    fn len(&self) -> u64 {
        u64::try_from(self.units.len()).unwrap_or(u64::MAX)
    }
}

/// When a slice no longer reaches into the window, in milliseconds since the Unix epoch.
const fn leaves_ms(slice: u64, window: Sliding) -> u64 {
    slice.saturating_add(REACH).saturating_add(1).saturating_mul(window.slice_ms())
}

#[cfg(test)]
mod tests {
    use quotagate_protocol::Window;

    use super::*;

    #[test]
    fn slice_counts_until_it_no_longer_reaches_into_the_window() {
        let mut slices = Slices::default();
        *slices.slice(100, 100).unwrap() += 3;
        *slices.slice(105, 105).unwrap() += 4;
        for (now, used) in [(105, 7), (120, 7), (121, 4), (125, 4), (126, 0)] {
            slices.advance(now);
            assert_eq!(slices.used(), used, "{now}");
        }
    }

    #[test]
    fn clock_that_goes_back_keeps_what_was_counted_unless_a_window_lies_between() {
        let mut slices = Slices::default();
        *slices.slice(100, 100).unwrap() += 3;
        slices.advance(80);
        *slices.slice(80, 80).unwrap() += 2;
        assert_eq!((slices.used(), slices.units.len()), (5, 21));
        slices.advance(79);
        assert_eq!(slices.used(), 0);
    }

    #[test]
    fn clock_that_goes_back_keeps_the_wait_within_the_longest_that_filters_accept() {
        let window = Sliding::new(20).unwrap();
        let mut slices = Slices::default();
        *slices.slice(100, 100).unwrap() += 3;
        slices.advance(80);
        let left_ms = slices.retry_at_ms(window, 80, Some((1, 3))) - 80_000;
        assert_eq!(left_ms, 41_000);
        assert_eq!(left_ms, Window::Sliding(window).longest_reset_ms());
    }

    #[test]
    fn units_return_with_the_first_slice_or_when_enough_fit() {
        let window = Sliding::new(20).unwrap();
        let mut slices = Slices::default();
        for (slice, units) in [(10, 1), (12, 2), (13, 3)] {
            *slices.slice(slice, 13).unwrap() += units;
        }
        let at = |fit| slices.retry_at_ms(window, 13, fit) / 1000;
        assert_eq!(at(None), 31);
        assert_eq!(at(Some((1, 6))), 31);
        assert_eq!(at(Some((2, 6))), 33);
        assert_eq!(at(Some((6, 6))), 34);
        assert_eq!(at(Some((7, 6))), 34, "never: until all have left");
        assert_eq!(slices.end_ms(window), 34_000);
    }

    #[test]
    fn any_text_is_read_without_a_panic() {
        for bytes in [&b""[..], b"12", b"12345678", &[255; 16], &[255; 4096]] {
            if let Some(mut slices) = Slices::parse(bytes) {
                slices.advance(7);
                assert!(slices.used() <= MAX_UNITS);
            }
        }
    }
}
