//! A shard of all users: their counts in each window, within a bound of memory.
//!
//! The shard keeps every count as long as there is room, so lines may come in any order. Then it
//! **closes** windows for which no more lines are expected: their counts go into a tally, and only
//! the largest count of each user stays. If that is not enough, it drops half of the users. The
//! others are a uniform **sample** by a hash of the name, and each stands for two, four, eight, ...
//! users.
//!
//! Memory: `budget` bytes of tables, and as much again for a short time while a table grows or
//! windows are closed, in one shard per thread. A count takes 17 bytes and a user 13. Tables are at
//! least three eighths full when they have grown.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use hashbrown::HashTable;

use super::sums::Sums;
use super::taken::{Taken, spread};
use super::tally::Tally;
use super::top::{Taker, Top};

/// The most halvings of the users. No sensible budget reaches it.
const MAX_LEVEL: u32 = 40;
/// The smallest table, for any budget.
const SMALLEST: usize = 64;

/// The largest count of a user in closed windows.
#[derive(Clone, Copy)]
struct Most {
    /// The user's hash in two halves, so that an entry has 12 bytes.
    user: [u32; 2],
    units: u32,
}

/// A shard of all users.
pub(crate) struct Shard {
    counts: HashTable<Taken>,
    /// How many windows before one count together with it: the slices of a sliding window.
    reach: u32,
    users: HashTable<Most>,
    /// Units of each user in each closed window, for the error of a sample.
    own: Tally,
    /// One user in 2^level is kept.
    level: u32,
    /// Windows below are closed.
    closed: u32,
    late: u64,
    budget: usize,
    top: Top,
}

/// The counts of one shard, or of all.
#[derive(Debug, Default)]
pub(crate) struct Result {
    /// Units of each user in each window that was not closed before.
    pub(crate) windows: Tally,
    /// Units of the largest window of each user.
    pub(crate) users: Tally,
    /// Users in the sample, or all users.
    pub(crate) kept: u64,
    /// One user in 2^level is in the sample.
    pub(crate) level: u32,
    /// Requests that came after their window was closed.
    pub(crate) late: u64,
    /// The shards with a sample of their users.
    pub(crate) sampled: Vec<Sampled>,
    /// The users with the largest windows, the largest first.
    pub(crate) top: Vec<Taker>,
    /// The same without some of them. None if that is not needed, or if windows were closed early.
    pub(crate) without: Option<Without>,
}

/// The counts of all users but some.
#[derive(Debug, Default)]
pub(crate) struct Without {
    /// Units of each user in each window.
    pub(crate) windows: Tally,
    /// Units of the largest window of each user.
    pub(crate) users: Tally,
}

/// A shard with a sample of its users, and its own coarse tallies.
#[derive(Debug)]
pub(crate) struct Sampled {
    /// Units of each user in each window.
    pub(crate) windows: Tally,
    /// Units of the largest window of each user.
    pub(crate) users: Tally,
    /// How many users each sampled one stands for.
    pub(crate) weight: u64,
}

impl Shard {
    /// A shard with tables of `budget` bytes at most, and the names of `top` users. Each window
    /// counts together with the `reach` windows before it.
    pub(crate) fn new(budget: usize, top: usize, reach: u32) -> Self {
        let (counts, users, own) = (HashTable::new(), HashTable::new(), Tally::coarse());
        let top = Top::new(top);
        Self { counts, reach, users, own, level: 0, closed: 0, late: 0, budget, top }
    }

    /// Adds units of the user with this name. If there is no room, it may close windows below
    /// `open` into `closed`. Returns true if the budget was too small.
    pub(crate) fn add(
        &mut self,
        taken: Taken,
        name: &[u8],
        open: u32,
        closed: &Mutex<Tally>,
    ) -> bool {
        if !sampled(taken.user, self.level) {
            return false;
        }
        if taken.window < self.closed {
            self.late += 1;
            if self.reach > 0 {
                // Its slice may still be in the table for those after it, and is tallied already.
                self.close(taken, &mut closed.lock().unwrap_or_else(PoisonError::into_inner));
                return false;
            }
        }
        let mut pressed = false;
        if self.counts.len() == self.counts.capacity() {
            pressed = self.make_room(open, closed);
            if !sampled(taken.user, self.level) {
                return pressed;
            }
        }
        let same = |other: &Taken| other.user == taken.user && other.window == taken.window;
        let entry = self.counts.entry(taken.hash(), same, Taken::hash);
        let count = entry.and_modify(|count| count.units = count.units.saturating_add(taken.units));
        let sum = *count.or_insert(taken).get();
        if self.reach == 0 {
            self.top.see(sum, name);
        } else if self.top.is_wanted() {
            self.top.see(self.largest_around(taken), name);
        }
        pressed
    }

    /// The largest sum of windows that this one is a part of.
    fn largest_around(&self, taken: Taken) -> Taken {
        let first = taken.window.saturating_sub(self.reach);
        let last = taken.window.saturating_add(self.reach);
        let around = (first..=last).filter_map(|window| self.find(taken.user, window));
        let around: Vec<Taken> = around.collect();
        let sums = Sums::new(&around, self.reach);
        sums.max_by_key(|sum| sum.units).unwrap_or(taken)
    }

    fn find(&self, user: u64, window: u32) -> Option<Taken> {
        let wanted = Taken { user, window, units: 0 };
        let same = |other: &Taken| other.user == user && other.window == window;
        self.counts.find(wanted.hash(), same).copied()
    }

    /// Takes the users with the largest windows, as far as they are in the sample.
    pub(crate) fn take_top(&mut self) -> Vec<Taker> {
        let level = self.level;
        std::mem::take(&mut self.top)
            .into_users()
            .filter(|taker| sampled(taker.user, level))
            .collect()
    }

    /// Closes all windows. Also tallies all users except `but`, unless that is empty.
    pub(crate) fn finish(mut self, but: &HashSet<u64>) -> Result {
        let counts = std::mem::take(&mut self.counts);
        // This table is freed before the next shard is closed, so it may grow.
        self.budget = usize::MAX;
        let mut windows = Tally::default();
        // The users of windows that were closed early are unknown.
        let mut without =
            (!but.is_empty() && self.closed == 0 && self.level == 0).then(Without::default);
        for taken in self.ended(counts.into_iter().collect()) {
            if let Some(without) = without.as_mut().filter(|_| !but.contains(&taken.user)) {
                without.windows.add(taken.units, 1);
            }
            self.close(taken, &mut windows);
        }
        let mut users = Tally::default();
        for most in &self.users {
            users.add(most.units, 1 << self.level);
            if let Some(without) = without.as_mut().filter(|_| !but.contains(&most.user())) {
                without.users.add(most.units, 1);
            }
        }
        let kept = self.users.len() as u64;
        let sampled =
            Sampled { windows: self.own, users: users.coarsened(), weight: 1 << self.level };
        let sampled = if self.level > 0 { vec![sampled] } else { Vec::new() };
        let top = Vec::new();
        Result { windows, users, kept, level: self.level, late: self.late, sampled, top, without }
    }

    /// Makes room for one more count. Returns true if the budget was too small.
    fn make_room(&mut self, open: u32, closed: &Mutex<Tally>) -> bool {
        let grown = self.counts.allocation_size() * 2 + self.users.allocation_size();
        if self.counts.capacity() < SMALLEST || grown <= self.budget {
            self.counts.reserve(1, Taken::hash);
            return false;
        }
        if open > self.closed {
            let ending = self.counts.iter().filter(|taken| taken.window < open).copied();
            let ended = self.ended(ending.collect());
            // The next windows still count together with the last of these.
            let kept = open.saturating_sub(self.reach);
            self.counts.retain(|taken| taken.window >= kept);
            self.closed = open;
            let mut closed = closed.lock().unwrap_or_else(PoisonError::into_inner);
            ended.into_iter().for_each(|taken| self.close(taken, &mut closed));
        }
        // With fewer the table does not grow, but is put in order where it is.
        let few = self.counts.num_buckets() / 8 * 3;
        while self.counts.len() > few && self.level < MAX_LEVEL {
            self.halve();
        }
        self.counts.reserve(1, Taken::hash);
        true
    }

    /// The use of each window that has not been closed before, from the counts of all windows that
    /// reach into it.
    fn ended(&self, mut counts: Vec<Taken>) -> Vec<Taken> {
        if self.reach == 0 {
            return counts;
        }
        counts.sort_unstable_by_key(|taken| (taken.user, taken.window));
        Sums::new(&counts, self.reach).filter(|sum| sum.window >= self.closed).collect()
    }

    fn close(&mut self, taken: Taken, windows: &mut Tally) {
        if !sampled(taken.user, self.level) {
            return;
        }
        windows.add(taken.units, 1 << self.level);
        self.own.add(taken.units, 1 << self.level);
        if self.users.len() == self.users.capacity() {
            let grown = self
                .users
                .allocation_size()
                .saturating_mul(2)
                .saturating_add(self.counts.allocation_size());
            while self.users.capacity() >= SMALLEST
                && grown > self.budget
                && self.users.len() > self.users.num_buckets() / 8 * 3
                && self.level < MAX_LEVEL
            {
                self.halve();
            }
            self.users.reserve(1, Most::hash);
        }
        let most = Most { user: halves(taken.user), units: taken.units };
        let entry = self.users.entry(most.hash(), |other| other.user == most.user, Most::hash);
        entry.and_modify(|other| other.units = other.units.max(most.units)).or_insert(most);
    }

    fn halve(&mut self) {
        self.level += 1;
        let level = self.level;
        self.counts.retain(|taken| sampled(taken.user, level));
        self.users.retain(|most| sampled(most.user(), level));
    }

    /// Bytes of the tables.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.counts.allocation_size() + self.users.allocation_size()
    }
}

impl Most {
    fn user(&self) -> u64 {
        let [high, low] = self.user;
        u64::from(high) << 32 | u64::from(low)
    }

    fn hash(&self) -> u64 {
        spread(self.user())
    }
}

fn halves(user: u64) -> [u32; 2] {
    [(user >> 32) as u32, user as u32]
}

/// Whether a user belongs to the sample of this level, which is a part of that of every lower
/// level. The bits are others than those that choose the part.
fn sampled(user: u64, level: u32) -> bool {
    user & ((1 << level) - 1) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash of a number as good as one of a name.
    fn user(number: u64) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes())
    }

    /// A shard without others.
    struct Alone(Shard, Mutex<Tally>);

    impl Alone {
        fn new(budget: usize) -> Self {
            Self::reaching(budget, 0)
        }

        fn reaching(budget: usize, reach: u32) -> Self {
            Self(Shard::new(budget, 0, reach), Mutex::default())
        }

        fn add(&mut self, taken: Taken, open: u32) -> bool {
            self.0.add(taken, b"", open, &self.1)
        }

        fn finish(self) -> Result {
            let mut result = self.0.finish(&HashSet::new());
            result.windows.merge(&self.1.into_inner().unwrap());
            result
        }
    }

    fn total(tally: &Tally) -> u64 {
        tally.iter().map(|(_, number)| number).sum()
    }

    #[test]
    fn counts_of_a_window_add_up_in_any_order() {
        let mut shard = Alone::new(1 << 20);
        for round in 0..3 {
            for window in [7, 3, 5] {
                for number in 0..100 {
                    shard.add(
                        Taken {
                            user: user(number),
                            window,
                            units: 1 + u32::from(round == 0 && window == 3),
                        },
                        0,
                    );
                }
            }
        }
        let result = shard.finish();
        assert_eq!(result.windows.iter().collect::<Vec<_>>(), [(3, 200), (4, 100)]);
        assert_eq!(result.users.iter().collect::<Vec<_>>(), [(4, 100)]);
        assert_eq!((result.kept, result.level, result.late), (100, 0, 0));
    }

    #[test]
    fn closed_windows_make_room_without_loss() {
        let mut shard = Alone::new(64 << 10);
        let mut pressed = false;
        for window in 0..1000 {
            for number in 0..100 {
                pressed |= shard.add(
                    Taken { user: user(number), window, units: 1 + window % 3 },
                    window.saturating_sub(2),
                );
            }
            assert!(shard.0.bytes() <= 64 << 10);
        }
        let result = shard.finish();
        assert!(pressed);
        assert_eq!(
            (total(&result.windows), result.kept, result.level, result.late),
            (100_000, 100, 0, 0)
        );
        assert_eq!(result.users.iter().collect::<Vec<_>>(), [(3, 100)]);
    }

    #[test]
    fn requests_for_a_closed_window_are_reported() {
        let mut shard = Alone::new(16 << 10);
        for window in 0..2000 {
            shard.add(Taken { user: user(1), window, units: 1 }, window);
        }
        shard.add(Taken { user: user(1), window: 0, units: 1 }, 1999);
        let result = shard.finish();
        assert_eq!((result.late, total(&result.windows), total(&result.users)), (1, 2001, 1));
    }

    #[test]
    fn slices_that_reach_into_later_ones_are_kept_when_they_are_closed() {
        let mut shard = Alone::reaching(64 << 10, 20);
        let mut pressed = false;
        for window in 0..1000 {
            for number in 0..30 {
                let taken = Taken { user: user(number), window, units: 1 + window % 3 };
                pressed |= shard.add(taken, window.saturating_sub(2));
            }
            assert!(shard.0.bytes() <= 64 << 10);
        }
        let result = shard.finish();
        assert!(pressed);
        assert_eq!((total(&result.windows), result.level, result.late), (30_000, 0, 0));
        // 21 slices of 1, 2 or 3 units.
        assert_eq!(result.users.iter().collect::<Vec<_>>(), [(42, 30)]);
        let full = result.windows.iter().find(|(size, _)| *size == 42).unwrap().1;
        assert_eq!(full, 30 * 980);
    }

    #[test]
    fn a_sample_stands_for_too_many_users() {
        for (users, windows) in [(200_000, 1), (20_000, 10)] {
            let mut shard = Alone::new(256 << 10);
            for window in 0..windows {
                for number in 0..users {
                    // One user in ten takes five.
                    let units = if number % 10 == 0 { 5 } else { 1 };
                    shard.add(Taken { user: user(number), window, units }, window);
                    assert!(shard.0.bytes() <= 256 << 10, "{}", shard.0.bytes());
                }
            }
            let result = shard.finish();
            assert!(result.level > 0 && result.kept >= 1000, "{result:?}");
            let five = result.users.iter().find(|(size, _)| *size == 5).unwrap().1 as f64;
            let all = total(&result.users) as f64;
            assert!((all / users as f64 - 1.0).abs() < 0.1, "{all}");
            assert!((five / all - 0.1).abs() < 0.03, "{five} of {all}");
            let counts = total(&result.windows) as f64;
            assert!((counts / (users * u64::from(windows)) as f64 - 1.0).abs() < 0.1, "{counts}");
        }
    }
}
