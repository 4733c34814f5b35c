//! What a quota would have refused, and which quotas are judged.

use std::collections::BTreeSet;

use super::model::{Candidate, Percentile};
use crate::count::Tally;
use crate::options::{Limits, Options};

/// Points of the picture.
const POINTS: u32 = 200;

/// Judges the quotas of the options, or a ladder of quotas, and the recommended one.
pub(crate) fn candidates(options: &Options, judge: &Judge, recommended: u32) -> Vec<Candidate> {
    if !options.quotas.is_empty() {
        let quotas: BTreeSet<u32> = options.quotas.iter().copied().chain([recommended]).collect();
        return quotas.into_iter().map(|quota| judge.candidate(quota)).collect();
    }
    let most = judge.windows.most();
    let mut quotas: BTreeSet<u32> = ladder().take_while(|quota| *quota < most).collect();
    quotas.extend(ladder().find(|quota| *quota >= most));
    quotas.insert(recommended);
    let all: Vec<Candidate> = quotas.into_iter().map(|quota| judge.candidate(quota)).collect();
    // Of the quotas that refuse most users, one row is enough.
    let hopeless = all.iter().take_while(|candidate| candidate.users_share > 0.5).count();
    all.into_iter().skip(hopeless.saturating_sub(1)).collect()
}

/// Judges quotas at small distances, from 1 to the largest user-window.
pub(crate) fn curve(judge: &Judge) -> Vec<Candidate> {
    let most = judge.windows.most().max(1);
    let quotas = (0..=POINTS)
        .map(|step| f64::from(most).powf(f64::from(step) / f64::from(POINTS)).round() as u32);
    let quotas: BTreeSet<u32> = quotas.collect();
    quotas.into_iter().map(|quota| judge.candidate(quota.min(most))).collect()
}

/// 1, 2, 3, 5, 7, 10, 20, ...
fn ladder() -> impl Iterator<Item = u32> {
    let decades = std::iter::successors(Some(1_u32), |decade| decade.checked_mul(10));
    decades.flat_map(|decade| {
        [1, 2, 3, 5, 7].into_iter().filter_map(move |step| decade.checked_mul(step))
    })
}

/// Sorted sizes, with the number and the sum of the larger ones.
pub(crate) struct Sizes {
    /// A size, how many are larger, and by how much in sum.
    steps: Vec<(u32, u64, u128)>,
    number: u64,
    sum: u128,
}

impl Sizes {
    /// Sorts the sizes of a tally.
    pub(crate) fn of(tally: &Tally) -> Self {
        let sizes: Vec<(u32, u64)> = tally.iter().collect();
        let mut steps = Vec::with_capacity(sizes.len());
        let (mut number, mut sum) = (0_u64, 0_u128);
        for (size, count) in sizes.into_iter().rev() {
            steps.push((size, number, sum - u128::from(number) * u128::from(size)));
            number += count;
            sum += u128::from(count) * u128::from(size);
        }
        steps.reverse();
        Self { steps, number, sum }
    }

    /// How many there are.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The largest size.
    pub(crate) fn most(&self) -> u32 {
        self.steps.last().map_or(0, |(size, ..)| *size)
    }

    /// How many sizes are larger than this, and by how much in sum.
    fn above(&self, quota: u32) -> (u64, u128) {
        let next = self.steps.partition_point(|(size, ..)| *size <= quota);
        match next.checked_sub(1).and_then(|last| self.steps.get(last)) {
            Some((size, number, excess)) => {
                (*number, excess - u128::from(*number) * u128::from(quota - size))
            }
            None => (self.number, self.sum - u128::from(self.number) * u128::from(quota)),
        }
    }

    /// The smallest size that `per_mille` thousandths do not exceed.
    fn percentile(&self, per_mille: u16) -> u32 {
        let enough = |above: u64| {
            u128::from(self.number - above) * 1000
                >= u128::from(self.number) * u128::from(per_mille)
        };
        let found = self.steps.iter().find(|(_, above, _)| enough(*above));
        found.map_or(self.most(), |(size, ..)| *size)
    }

    /// The smallest size with a share below `limit` above it; at least 1.
    fn smallest(&self, limit: f64) -> u32 {
        let little = |above: u64| share(above, self.number) < limit;
        let found = self.steps.iter().find(|(_, above, _)| little(*above));
        found.map_or(self.most(), |(size, ..)| *size).max(1)
    }
}

/// The users and the user-windows, by their sizes.
pub(crate) struct Judge {
    pub(crate) users: Sizes,
    pub(crate) windows: Sizes,
    /// Whether a unit counts in one user-window only, so that units add up.
    pub(crate) sums: bool,
}

impl Judge {
    /// The smallest quota that stays below both limits.
    pub(crate) fn smallest(&self, limits: Limits) -> u32 {
        self.users.smallest(limits.users).max(self.windows.smallest(limits.windows))
    }

    /// The units that `per_mille` thousandths did not exceed.
    pub(crate) fn percentile(&self, per_mille: u16) -> Percentile {
        Percentile {
            share: f64::from(per_mille) / 1000.0,
            user_windows: self.windows.percentile(per_mille),
            users: self.users.percentile(per_mille),
        }
    }

    /// What this quota would have refused.
    pub(crate) fn candidate(&self, quota: u32) -> Candidate {
        let (users, _) = self.users.above(quota);
        let (user_windows, units) = self.windows.above(quota);
        Candidate {
            quota,
            users,
            users_share: share(users, self.users.number),
            user_windows,
            user_windows_share: share(user_windows, self.windows.number),
            units: self.sums.then(|| u64::try_from(units).unwrap_or(u64::MAX)),
            units_share: self.sums.then(|| match self.windows.sum {
                0 => 0.0,
                sum => units as f64 / sum as f64,
            }),
        }
    }
}

fn share(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(list: &[(u32, u64)]) -> Sizes {
        let mut tally = Tally::default();
        list.iter().for_each(|(size, number)| tally.add(*size, *number));
        Sizes::of(&tally)
    }

    #[test]
    fn larger_sizes_are_counted_and_summed() {
        let sizes = sizes(&[(2, 10), (5, 3), (2000, 1)]);
        assert_eq!((sizes.number(), sizes.most()), (14, 2000));
        let above: Vec<_> =
            [0, 1, 2, 3, 5, 1999, 2000, u32::MAX].map(|quota| sizes.above(quota)).into();
        let expected =
            [(14, 2035), (14, 2021), (4, 2007), (4, 2003), (1, 1995), (1, 1), (0, 0), (0, 0)];
        assert_eq!(above, expected);
    }

    #[test]
    fn the_smallest_quota_stays_below_the_limit() {
        let sizes = sizes(&[(1, 998), (7, 1), (9, 1)]);
        // Two of a thousand are above 1, one above 7: not less than a thousandth.
        assert_eq!(
            [0.01, 0.0021, 0.002, 0.0011, 0.001, 0.0].map(|limit| sizes.smallest(limit)),
            [1, 1, 7, 7, 9, 9]
        );
    }

    #[test]
    fn percentiles_are_sizes_that_a_share_does_not_exceed() {
        let sizes = sizes(&[(1, 5), (2, 4), (7, 1)]);
        assert_eq!([500, 900, 990, 999].map(|per_mille| sizes.percentile(per_mille)), [1, 2, 7, 7]);
    }

    #[test]
    fn the_ladder_climbs_by_small_steps() {
        assert_eq!(ladder().take(7).collect::<Vec<_>>(), [1, 2, 3, 5, 7, 10, 20]);
        assert_eq!(ladder().last(), Some(3_000_000_000));
    }
}
