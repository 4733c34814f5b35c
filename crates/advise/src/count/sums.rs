//! Sums of consecutive windows: what a sliding window counts at the end of each of its slices.

use super::taken::Taken;

/// For each count, the sum of its window and of the `reach` windows before it, of the same user.
///
/// The counts are in the order of users and windows, with one count for each user and window.
pub(super) struct Sums<'c> {
    /// The counts after the last sum.
    rest: &'c [Taken],
    /// The counts in the last sum, and those that left it since.
    begin: &'c [Taken],
    sum: u64,
    reach: u32,
}

impl<'c> Sums<'c> {
    pub(super) fn new(counts: &'c [Taken], reach: u32) -> Self {
        Self { rest: counts, begin: counts, sum: 0, reach }
    }
}

impl Iterator for Sums<'_> {
    type Item = Taken;

    fn next(&mut self) -> Option<Taken> {
        let (last, rest) = self.rest.split_first()?;
        self.rest = rest;
        self.sum += u64::from(last.units);
        while let Some((first, later)) = self.begin.split_first()
            && (first.user != last.user || last.window - first.window > self.reach)
        {
            self.sum -= u64::from(first.units);
            self.begin = later;
        }
        Some(Taken { units: u32::try_from(self.sum).unwrap_or(u32::MAX), ..*last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sum_is_that_of_the_windows_within_reach() {
        let counts: Vec<Taken> = (0..40_u32)
            .flat_map(|user| {
                let windows = (0..100_u32).filter(move |window| window * window % (user + 2) < 2);
                windows.map(move |window| Taken {
                    user: user.into(),
                    window,
                    units: if user == 7 { u32::MAX - 1 } else { 1 + (user + window) % 5 },
                })
            })
            .collect();
        for reach in [0, 1, 20, u32::MAX] {
            let expected = counts.iter().map(|last| {
                let within = |first: &&Taken| {
                    first.user == last.user
                        && first.window <= last.window
                        && last.window - first.window <= reach
                };
                let sum: u64 =
                    counts.iter().filter(within).map(|taken| u64::from(taken.units)).sum();
                Taken { units: u32::try_from(sum).unwrap_or(u32::MAX), ..*last }
            });
            assert!(Sums::new(&counts, reach).eq(expected), "{reach}");
        }
    }
}
