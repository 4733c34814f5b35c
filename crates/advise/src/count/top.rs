//! The users with the largest windows, with their names: exact, in memory for that many users and
//! names.
//!
//! Counts only grow. So a user enters the list with the request that reaches its largest count, and
//! that request has the name.

use std::collections::HashMap;

use super::taken::Taken;

/// Longest part of a name that is kept, in bytes.
const NAME: usize = 256;

/// A user and its largest window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taker {
    pub(crate) user: u64,
    pub(crate) units: u32,
    /// The number of the window.
    pub(crate) window: u32,
    /// The beginning of its name.
    pub(crate) name: Box<[u8]>,
}

/// The users with the largest windows.
#[derive(Debug, Default)]
pub(crate) struct Top {
    wanted: usize,
    users: HashMap<u64, Taker>,
    /// The units and the hash of the last of them. Among equals, the smaller hash comes later.
    least: Option<(u32, u64)>,
}

impl Top {
    /// A list of this many users.
    pub(crate) fn new(wanted: usize) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Whether any user is wanted.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted > 0
    }

    /// Sees the sum of a user in a window so far.
    pub(crate) fn see(&mut self, sum: Taken, name: &[u8]) {
        if self.wanted == 0 || self.least.is_some_and(|least| (sum.units, sum.user) <= least) {
            return;
        }
        let taker = || Taker {
            user: sum.user,
            units: 0,
            window: sum.window,
            name: name.get(..NAME).unwrap_or(name).into(),
        };
        let held = self.users.entry(sum.user).or_insert_with(taker);
        if sum.units > held.units {
            (held.units, held.window) = (sum.units, sum.window);
        }
        if self.users.len() > self.wanted
            && let Some((_, user)) = self.last()
        {
            self.users.remove(&user);
        }
        self.least = if self.users.len() < self.wanted { None } else { self.last() };
    }

    /// All of them, in no order.
    pub(crate) fn into_users(self) -> impl Iterator<Item = Taker> {
        self.users.into_values()
    }

    fn last(&self) -> Option<(u32, u64)> {
        self.users.values().map(|taker| (taker.units, taker.user)).min()
    }
}

/// The first `wanted` of all, the largest first.
pub(crate) fn first(mut all: Vec<Taker>, wanted: usize) -> Vec<Taker> {
    all.sort_unstable_by_key(|taker| std::cmp::Reverse((taker.units, taker.user)));
    all.truncate(wanted);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_users_are_kept_for_any_order() {
        let mut sums: Vec<(u64, u32, u32)> = (0..50)
            .flat_map(|user| (1..=20).map(move |units| (user, units * (user as u32 % 7), units)))
            .collect();
        for round in 0..3 {
            let mut top = Top::new(5);
            // Sums of one user and window only grow.
            sums.sort_by_key(|(user, units, _)| (*units, user.wrapping_mul(round * 7919 + 1) % 53));
            for (user, units, window) in &sums {
                let sum = Taken { user: *user, window: *window, units: *units };
                top.see(sum, format!("u{user}").as_bytes());
            }
            let found = first(top.into_users().collect(), 3);
            let found: Vec<_> =
                found.iter().map(|taker| (taker.user, taker.units, &*taker.name)).collect();
            assert_eq!(found, [(48, 120, &b"u48"[..]), (41, 120, b"u41"), (34, 120, b"u34")]);
        }
        let mut none = Top::new(0);
        none.see(Taken { user: 1, window: 1, units: 1 }, b"x");
        assert_eq!(none.into_users().count(), 0);
    }

    #[test]
    fn long_names_are_cut() {
        let mut top = Top::new(1);
        top.see(Taken { user: 1, window: 1, units: 1 }, &[b'x'; 100_000]);
        assert_eq!(top.into_users().next().unwrap().name.len(), NAME);
    }
}
