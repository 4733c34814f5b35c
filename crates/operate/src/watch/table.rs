//! Partitions in their current window, as of the last answered reservation.
//!
//! Bound: [`MAX_WATCHED`]. When the table is full, new partitions are not watched until a window
//! ends.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quotagate_quota::protocol::{Grant, MAX_UNITS, Window};

use quotagate_store::store::CheckedReservation;

/// Most partitions watched at once.
pub const MAX_WATCHED: usize = 1 << 16;
/// Parts of the table, each with its own lock.
const SHARDS: usize = 16;

/// The watched partitions, by the key of their counter.
pub struct Table {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
}

type Shard = HashMap<Box<str>, Seen>;

/// The last known state of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Units used.
    pub used: u64,
    /// The quota in force.
    pub quota: u64,
    /// The quota that the reservation named, before any override; `None` once a dial has changed.
    pub asked: Option<u64>,
    /// Length of the window in seconds.
    pub window_s: u32,
    /// The number of the window.
    pub number: u64,
    /// When it ends.
    pub end: Instant,
    /// When the reservation was answered.
    pub at: Instant,
}

/// The result of [`Table::see`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sight {
    /// The partition is watched.
    Watched,
    /// The same, and its previous window is over: how full that window was.
    Ended(f64),
    /// The table is full.
    NoRoom,
}

impl Seen {
    /// The used part of its quota.
    pub fn fullness(&self) -> f64 {
        if self.quota == 0 { 1.0 } else { self.used as f64 / self.quota as f64 }
    }
}

/// The number of every sliding window.
pub const SLIDING: u64 = 0;

/// A partition in the order of fullness, then of names.
struct Ranked {
    fullness: f64,
    key: Box<str>,
    seen: Seen,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.fullness.total_cmp(&other.fullness).then_with(|| other.key.cmp(&self.key))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked {}

impl Default for Table {
    fn default() -> Self {
        let shards = std::iter::repeat_with(Mutex::default).take(SHARDS).collect();
        Self { shards, hasher: RandomState::new() }
    }
}

impl Table {
    /// Records an answered reservation. A partition with an unlimited quota is not watched.
    pub fn see(&self, ask: &CheckedReservation, grant: &Grant) -> Sight {
        if grant.quota >= MAX_UNITS {
            return Sight::Watched;
        }
        let at = Instant::now();
        let (used, quota) = (grant.used, grant.quota);
        let (number, left, window_s) = match ask.window() {
            // It has no end. Without further requests, nothing is used after its length.
            window @ Window::Sliding(_) => (SLIDING, window.length(), window.seconds()),
            Window::Fixed(_) | Window::Calendar(_) => (
                grant.window,
                Duration::from_millis(grant.reset_ms),
                grant.window_s.max(ask.window_s),
            ),
        };
        let end = at + left;
        let asked = Some(ask.quota);
        let seen = Seen { used, quota, asked, window_s, number, end, at };
        let Some(mut shard) = self.shard(&ask.key) else { return Sight::NoRoom };
        let room = shard.len() < MAX_WATCHED / SHARDS;
        match shard.get_mut(ask.key.as_str()) {
            // An answer of the next window has overtaken this one.
            Some(old) if old.window_s == seen.window_s && old.number > number => {}
            Some(old) => {
                let old = std::mem::replace(old, seen);
                // A busy partition reaches its next window before the next sweep.
                if (old.window_s, old.number) != (seen.window_s, number) {
                    return Sight::Ended(old.fullness());
                }
            }
            None if room => drop(shard.insert(ask.key.as_str().into(), seen)),
            None => return Sight::NoRoom,
        }
        Sight::Watched
    }

    /// Removes partitions whose window is over, and reports how full it was.
    pub fn sweep(&self, now: Instant, mut ended: impl FnMut(&str, f64)) {
        for shard in &self.shards {
            lock(shard).retain(|key, seen| {
                let runs = now < seen.end;
                if !runs {
                    ended(key, seen.fullness());
                }
                runs
            });
        }
    }

    /// How many partitions are watched.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// The last known state of a key.
    pub fn get(&self, key: &str) -> Option<Seen> {
        self.shard(key)?.get(key).copied()
    }

    /// The quota that the last reservation of a key named in the window with this number.
    pub fn asked(&self, key: &str, number: u64) -> Option<u64> {
        self.get(key).filter(|seen| seen.number == number)?.asked
    }

    /// Forgets the quotas that reservations named for keys that are `meant`.
    pub fn forget_asked(&self, meant: impl Fn(&str) -> bool) {
        for shard in &self.shards {
            lock(shard)
                .iter_mut()
                .filter(|(key, _)| meant(key))
                .for_each(|(_, seen)| seen.asked = None);
        }
    }

    /// The fullest among those `wanted`, the fullest first. Calls wait for a part of the table only
    /// while it is scanned, and the scan sorts nothing.
    pub fn fullest(
        &self,
        limit: usize,
        now: Instant,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<(Box<str>, Seen)> {
        // The least full of the best is on top.
        let mut best: BinaryHeap<Reverse<Ranked>> = BinaryHeap::new();
        for shard in &self.shards {
            let shard = lock(shard);
            for (key, seen) in shard.iter().filter(|(key, seen)| now < seen.end && wanted(key)) {
                let fullness = seen.fullness();
                let full = best.len() >= limit;
                let beaten = |least: &Reverse<Ranked>| match fullness.total_cmp(&least.0.fullness) {
                    Ordering::Equal => *key < least.0.key,
                    order => order.is_gt(),
                };
                if full && !best.peek().is_some_and(beaten) {
                    continue;
                }
                if full {
                    best.pop();
                }
                best.push(Reverse(Ranked { fullness, key: key.clone(), seen: *seen }));
            }
        }
        let best = best.into_sorted_vec().into_iter();
        best.map(|Reverse(Ranked { key, seen, .. })| (key, seen)).collect()
    }

    fn shard(&self, key: &str) -> Option<MutexGuard<'_, Shard>> {
        let index = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).ok()?;
        self.shards.get(index).map(lock)
    }
}

/// No panic can happen while it is locked, so a poisoned lock guards consistent data.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use quotagate_quota::protocol::{Kind, Reservation};

    use super::*;

    fn see(table: &Table, partition: &str, used: u64, window: u64) -> Sight {
        let ask = CheckedReservation::new(Reservation {
            key: format!("d:p:{{{partition}}}"),
            kind: Kind::Fixed,
            window_s: 60,
            offset_s: 0,
            quota: 10,
            want: 1,
            min: 1,
            spare: 0,
            count_denied: false,
            shadow: false,
        });
        table.see(
            &ask.unwrap(),
            &Grant { window_s: 0, granted: 1, used, quota: 10, reset_ms: 60_000, window },
        )
    }

    #[test]
    fn the_fullest_come_first_and_windows_end() {
        let (table, now) = (Table::default(), Instant::now());
        for (partition, used, window) in
            [("a", 3, 7), ("b", 10, 7), ("c", 5, 7), ("a", 4, 7), ("b", 1, 6)]
        {
            assert_eq!(see(&table, partition, used, window), Sight::Watched);
        }
        let found = table.fullest(2, now, |_| true);
        let found: Vec<_> = found.iter().map(|(key, seen)| (&**key, seen.used)).collect();
        assert_eq!(found, [("d:p:{b}", 10), ("d:p:{c}", 5)]);
        assert_eq!((table.asked("d:p:{a}", 7), table.asked("d:p:{a}", 8)), (Some(10), None));
        let mut ended = Vec::new();
        table.sweep(now, |key, fullness| ended.push((key.to_owned(), fullness)));
        assert!(ended.is_empty() && table.len() == 3);
        table.sweep(now + Duration::from_secs(61), |key, fullness| {
            ended.push((key.to_owned(), fullness))
        });
        ended.sort_by(|one, other| one.0.cmp(&other.0));
        let expected =
            [("a", 0.4), ("b", 1.0), ("c", 0.5)].map(|(p, f)| (format!("d:p:{{{p}}}"), f));
        assert_eq!((ended.as_slice(), table.len()), (&expected[..], 0));
    }

    #[test]
    fn sight_reports_a_window_that_the_next_one_follows_at_once() {
        let table = Table::default();
        assert_eq!(see(&table, "a", 9, 7), Sight::Watched);
        assert_eq!(see(&table, "a", 1, 8), Sight::Ended(0.9));
        assert_eq!(
            see(&table, "a", 9, 7),
            Sight::Watched,
            "an answer of the next window came first"
        );
        assert_eq!(see(&table, "a", 2, 8), Sight::Watched);
    }

    #[test]
    fn the_table_is_bounded() {
        let table = Table::default();
        let finds_room = |name: &str| see(&table, name, 1, 1) != Sight::NoRoom;
        let watched = (0..MAX_WATCHED + 5000).filter(|n| finds_room(&n.to_string())).count();
        assert!(
            watched == table.len() && watched <= MAX_WATCHED && watched > MAX_WATCHED / 2,
            "{watched}"
        );
        assert!(!(0..50_000).all(|n| finds_room(&format!("x{n}"))));
    }
}
