//! A part of all users: what each took in which window, within a bound of memory.
//!
//! Every count is kept for as long as there is room, so lines may come in any order. Then windows are **closed** that no line
//! is expected for any more: their counts go into a tally, and of each user only the largest stays. If that is not
//! enough, half of the users are forgotten: those that remain are a uniform **sample** (by a hash of their names), and each stands
//! for two, four, eight, ...
//!
//! Memory: `budget` bytes of tables, and for a short time while a table grows or windows are closed as much again: one part of
//! 64 for each thread. A count takes 17 bytes, a user 13,
//! and tables are at least three eighths full when they have grown.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use hashbrown::HashTable;

use super::taken::{Taken, spread};
use super::tally::Tally;
use super::top::{Taker, Top};

/// The most halvings; never reached with a sensible budget.
const MAX_LEVEL: u32 = 40;
/// The smallest table, whatever the budget.
const SMALLEST: usize = 64;

/// The most that a user took in any closed window.
#[derive(Clone, Copy)]
struct Most {
    /// The user's hash in two halves, so that an entry has 12 bytes.
    user: [u32; 2],
    units: u32,
}

/// A part of all users.
pub(crate) struct Shard {
    counts: HashTable<Taken>,
    users: HashTable<Most>,
    /// Units of each user and window that is closed, for the error of a sample.
    own: Tally,
    /// One user in 2^level is kept.
    level: u32,
    /// Windows below are closed.
    closed: u32,
    late: u64,
    budget: usize,
    top: Top,
}

/// What became of a part.
#[derive(Debug, Default)]
pub(crate) struct Result {
    /// Units of each user and window that was not closed before.
    pub(crate) windows: Tally,
    /// The most units of each user in a window.
    pub(crate) users: Tally,
    /// Users that were really looked at.
    pub(crate) kept: u64,
    /// One user in 2^level was looked at.
    pub(crate) level: u32,
    /// Requests that came after their window was closed.
    pub(crate) late: u64,
    /// Of all parts, those of whose users a sample was looked at.
    pub(crate) sampled: Vec<Sampled>,
    /// The users who took most, the largest first.
    pub(crate) top: Vec<Taker>,
    /// The same without some of them; none where that was not asked for, or windows were closed before.
    pub(crate) without: Option<Without>,
}

/// What all took but some.
#[derive(Debug, Default)]
pub(crate) struct Without {
    /// Units of each user and window.
    pub(crate) windows: Tally,
    /// The most units of each user in a window.
    pub(crate) users: Tally,
}

/// A part of whose users a sample was looked at: its own numbers, coarse.
#[derive(Debug)]
pub(crate) struct Sampled {
    /// Units of each user and window.
    pub(crate) windows: Tally,
    /// The most units of each user in a window.
    pub(crate) users: Tally,
    /// How many users each that was looked at stands for.
    pub(crate) weight: u64,
}

impl Shard {
    /// A part with at most this many bytes of tables, which knows so many of the users who took most.
    pub(crate) fn new(budget: usize, top: usize) -> Self {
        let (counts, users, own) = (HashTable::new(), HashTable::new(), Tally::coarse());
        Self { counts, users, own, level: 0, closed: 0, late: 0, budget, top: Top::new(top) }
    }

    /// Adds units of the user with this name; where room is needed, windows below `open` may be closed, and are added to
    /// `closed`. True if it was.
    pub(crate) fn add(&mut self, taken: Taken, name: &[u8], open: u32, closed: &Mutex<Tally>) -> bool {
        if !sampled(taken.user, self.level) {
            return false;
        }
        self.late += u64::from(taken.window < self.closed);
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
        self.top.see(sum, name);
        pressed
    }

    /// The users who took most, as far as they are looked at; they are forgotten here.
    pub(crate) fn take_top(&mut self) -> Vec<Taker> {
        let level = self.level;
        std::mem::take(&mut self.top).into_users().filter(|taker| sampled(taker.user, level)).collect()
    }

    /// Closes all windows; where some users are given, it is also told what the others took.
    pub(crate) fn finish(mut self, but: &HashSet<u64>) -> Result {
        let counts = std::mem::take(&mut self.counts);
        // Each table is freed before the next part's turn comes: this one may grow.
        self.budget = usize::MAX;
        let mut windows = Tally::default();
        // Whose windows were closed before is not known any more.
        let mut without = (!but.is_empty() && self.closed == 0 && self.level == 0).then(Without::default);
        for taken in counts {
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
        let sampled = Sampled { windows: self.own, users: users.coarsened(), weight: 1 << self.level };
        let sampled = if self.level > 0 { vec![sampled] } else { Vec::new() };
        let top = Vec::new();
        Result { windows, users, kept, level: self.level, late: self.late, sampled, top, without }
    }

    /// Sees that one more count fits; true if the budget was in the way.
    fn make_room(&mut self, open: u32, closed: &Mutex<Tally>) -> bool {
        let grown = self.counts.allocation_size() * 2 + self.users.allocation_size();
        if self.counts.capacity() < SMALLEST || grown <= self.budget {
            self.counts.reserve(1, Taken::hash);
            return false;
        }
        if open > self.closed {
            self.closed = open;
            let closing: Vec<Taken> = self.counts.extract_if(|taken| taken.window < open).collect();
            let mut closed = closed.lock().unwrap_or_else(PoisonError::into_inner);
            closing.into_iter().for_each(|taken| self.close(taken, &mut closed));
        }
        // With fewer the table does not grow, but is put in order where it is.
        let few = self.counts.num_buckets() / 8 * 3;
        while self.counts.len() > few && self.level < MAX_LEVEL {
            self.halve();
        }
        self.counts.reserve(1, Taken::hash);
        true
    }

    fn close(&mut self, taken: Taken, windows: &mut Tally) {
        if !sampled(taken.user, self.level) {
            return;
        }
        windows.add(taken.units, 1 << self.level);
        self.own.add(taken.units, 1 << self.level);
        if self.users.len() == self.users.capacity() {
            let grown =
                self.users.allocation_size().saturating_mul(2).saturating_add(self.counts.allocation_size());
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

/// Whether a user belongs to the sample of this level, which is a part of that of every lower level. The bits are others
/// than those that choose the part.
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

    /// A part that is alone.
    struct Alone(Shard, Mutex<Tally>);

    impl Alone {
        fn new(budget: usize) -> Self {
            Self(Shard::new(budget, 0), Mutex::default())
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
                        Taken { user: user(number), window, units: 1 + u32::from(round == 0 && window == 3) },
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
    fn closed_windows_make_room_and_nothing_is_lost() {
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
        assert_eq!((total(&result.windows), result.kept, result.level, result.late), (100_000, 100, 0, 0));
        assert_eq!(result.users.iter().collect::<Vec<_>>(), [(3, 100)]);
    }

    #[test]
    fn what_comes_for_a_closed_window_is_told() {
        let mut shard = Alone::new(16 << 10);
        for window in 0..2000 {
            shard.add(Taken { user: user(1), window, units: 1 }, window);
        }
        shard.add(Taken { user: user(1), window: 0, units: 1 }, 1999);
        let result = shard.finish();
        assert_eq!((result.late, total(&result.windows), total(&result.users)), (1, 2001, 1));
    }

    #[test]
    fn of_too_many_users_a_sample_stands_for_all() {
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
