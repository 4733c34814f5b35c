//! A histogram of sizes: exact, or rounded up by less than 0.05 % if there are very many sizes.
//!
//! Each size below 1,024 has a slot. Larger sizes are exact while there are at most 65,536
//! different ones. Beyond that, each is rounded up to its first 12 bits, which leaves fewer than
//! 45,056. Memory: about 3 MiB at most. A coarse tally rounds to 6 bits from the beginning: by less
//! than 3.2 %, with 40 KiB at most.

use std::collections::BTreeMap;

const SMALL: usize = 1024;
const DISTINCT: usize = 65_536;
const BITS: u32 = 12;
const COARSE_BITS: u32 = 6;

/// Sizes, with the number of each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    small: Vec<u64>,
    large: BTreeMap<u32, u64>,
    /// The bits that sizes from [`SMALL`] on are rounded up to.
    bits: Option<u32>,
}

impl Tally {
    /// A tally that rounds all but small sizes.
    pub(crate) fn coarse() -> Self {
        Self { bits: Some(COARSE_BITS), ..Self::default() }
    }

    /// A coarse copy.
    pub(crate) fn coarsened(&self) -> Self {
        let mut coarse = Self::coarse();
        self.iter().for_each(|(size, number)| coarse.add(size, number));
        coarse
    }

    /// Counts `number` occurrences of this size.
    pub(crate) fn add(&mut self, size: u32, number: u64) {
        let index = size as usize;
        if index < SMALL {
            if self.small.is_empty() {
                self.small.resize(SMALL, 0);
            }
            if let Some(count) = self.small.get_mut(index) {
                *count += number;
            }
            return;
        }
        let size = self.bits.map_or(size, |bits| round_up(size, bits));
        *self.large.entry(size).or_default() += number;
        if self.large.len() > DISTINCT {
            self.round(BITS);
        }
    }

    /// Adds the counts of another tally.
    pub(crate) fn merge(&mut self, other: &Self) {
        if let (Some(bits), None) = (other.bits, self.bits) {
            self.round(bits);
        }
        for (size, number) in other.iter() {
            self.add(size, number);
        }
    }

    /// The sizes that occurred, smallest first, with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        let small = (0_u32..).zip(&self.small).map(|(size, number)| (size, *number));
        small
            .chain(self.large.iter().map(|(size, number)| (*size, *number)))
            .filter(|(_, number)| *number > 0)
    }

    /// How many are larger than this, and how many there are.
    pub(crate) fn above(&self, size: u32) -> (u64, u64) {
        self.iter().fold((0, 0), |(above, all), (other, number)| {
            (above + if other > size { number } else { 0 }, all + number)
        })
    }

    /// Whether sizes of 1,024 and more are rounded up.
    pub(crate) fn is_rounded(&self) -> bool {
        self.bits.is_some()
    }

    fn round(&mut self, bits: u32) {
        self.bits = Some(bits);
        for (size, number) in std::mem::take(&mut self.large) {
            *self.large.entry(round_up(size, bits)).or_default() += number;
        }
    }
}

/// The next number that has only zeros after its first `bits`.
fn round_up(size: u32, bits: u32) -> u32 {
    let zeros = (u32::BITS - size.leading_zeros()).saturating_sub(bits);
    let grain = 1_u32 << zeros;
    size.checked_next_multiple_of(grain).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_sizes_are_exact() {
        let mut tally = Tally::default();
        for size in [3, 1, 1023, 1024, 3, u32::MAX] {
            tally.add(size, 2);
        }
        assert_eq!(
            tally.iter().collect::<Vec<_>>(),
            [(1, 2), (3, 4), (1023, 2), (1024, 2), (u32::MAX, 2)]
        );
        assert!(!tally.is_rounded());
    }

    #[test]
    fn a_coarse_tally_is_small_and_nearly_exact() {
        let mut tally = Tally::default();
        (0..200_000_u32).for_each(|step| tally.add(1 + step * 20_000, 1));
        let coarse = tally.coarsened();
        assert!(coarse.large.len() < 1024, "{}", coarse.large.len());
        let count = |tally: &Tally| tally.iter().map(|(_, number)| number).sum::<u64>();
        assert_eq!(count(&coarse), count(&tally));
        for size in [1024, 4097, 123_456_789, u32::MAX - 1] {
            let rounded = round_up(size, COARSE_BITS);
            assert!(
                rounded >= size && f64::from(rounded - size) < 0.032 * f64::from(size),
                "{size}"
            );
        }
    }

    #[test]
    fn many_sizes_are_rounded_up_slightly() {
        let mut tally = Tally::default();
        for step in 0..200_000_u32 {
            tally.add(1 + step * 20_000, 1);
        }
        assert!(tally.is_rounded() && tally.large.len() < 45_056, "{}", tally.large.len());
        assert_eq!(tally.iter().map(|(_, number)| number).sum::<u64>(), 200_000);
        for size in [1024, 4097, 123_456_789, u32::MAX - 1] {
            let rounded = round_up(size, BITS);
            assert!(
                rounded >= size && f64::from(rounded - size) < 0.0005 * f64::from(size),
                "{size} {rounded}"
            );
        }
        let mut other = Tally::default();
        other.add(4097, 1);
        other.merge(&tally);
        assert!(other.is_rounded() && other.iter().any(|(size, _)| size == 4098));
    }
}
