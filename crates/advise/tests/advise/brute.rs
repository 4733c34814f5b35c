//! The same numbers by a plain computation.

use std::collections::HashMap;

use quotagate_advise::{Advice, Limits};

/// All user-windows: the smallest quota, and for a quota the users, windows and units above it.
pub struct Brute {
    pub windows: Vec<u64>,
    pub users: Vec<u64>,
    /// Whether the advice sums the units above a quota.
    units: bool,
}

impl Brute {
    /// Sums requests: user, number of the window, cost.
    pub fn of(requests: impl Iterator<Item = (u32, u64, u32)>) -> Self {
        let mut windows: HashMap<(u32, u64), u64> = HashMap::new();
        for (user, window, cost) in requests {
            *windows.entry((user, window)).or_default() += u64::from(cost);
        }
        Self::from(windows, true)
    }

    /// The same for slices: each counts together with the twenty before it.
    pub fn of_slices(requests: impl Iterator<Item = (u32, u64, u32)>) -> Self {
        let requests: Vec<(u32, u64, u32)> = requests.collect();
        let mut slices: HashMap<(u32, u64), u64> = HashMap::new();
        for (user, slice, _) in &requests {
            let counts = |other: &&(u32, u64, u32)| {
                other.0 == *user && (slice.saturating_sub(20)..=*slice).contains(&other.1)
            };
            slices.entry((*user, *slice)).or_insert_with(|| {
                requests.iter().filter(counts).map(|(.., cost)| u64::from(*cost)).sum()
            });
        }
        Self::from(slices, false)
    }

    fn from(windows: HashMap<(u32, u64), u64>, units: bool) -> Self {
        let mut users: HashMap<u32, u64> = HashMap::new();
        for ((user, _), units) in &windows {
            let most = users.entry(*user).or_default();
            *most = (*most).max(*units);
        }
        let (windows, users) = (windows.into_values().collect(), users.into_values().collect());
        Self { windows, users, units }
    }

    pub fn above(list: &[u64], quota: u64) -> u64 {
        list.iter().filter(|units| **units > quota).count() as u64
    }

    fn smallest(&self, limits: Limits) -> u64 {
        let little = |list: &[u64], quota, limit| {
            (Self::above(list, quota) as f64 / list.len() as f64) < limit
        };
        (1..)
            .find(|quota| {
                little(&self.users, *quota, limits.users)
                    && little(&self.windows, *quota, limits.windows)
            })
            .unwrap()
    }

    pub fn check(&self, advice: &Advice) {
        let [window] = advice.windows.as_slice() else { panic!("{advice:?}") };
        assert_eq!(
            (window.users, window.user_windows),
            (self.users.len() as u64, self.windows.len() as u64)
        );
        assert_eq!(u64::from(window.recommended.quota), self.smallest(advice.limits));
        for of in &window.percentiles {
            let at_most = |list: &[u64], units: u32| {
                (list.len() as u64 - Self::above(list, units.into())) as f64
                    >= list.len() as f64 * of.share - 1e-6
            };
            for (list, units) in [(&self.windows, of.user_windows), (&self.users, of.users)] {
                assert!(at_most(list, units) && !at_most(list, units - 1), "{of:?}");
            }
        }
        for candidate in
            window.candidates.iter().chain([&window.recommended]).chain(&window.one_less)
        {
            let quota = candidate.quota.into();
            let units = self.windows.iter().map(|units| units.saturating_sub(quota)).sum::<u64>();
            let units = self.units.then_some(units);
            let expected =
                (Self::above(&self.users, quota), Self::above(&self.windows, quota), units);
            assert_eq!(
                (candidate.users, candidate.user_windows, candidate.units),
                expected,
                "{quota}"
            );
        }
    }
}
