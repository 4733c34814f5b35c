//! Partitions in their current window, as of the last answered reservation.
//!
//! Bound: [`MAX_WATCHED`]. When the table is full, new partitions are not watched until a window
//! ends.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quotagate_protocol::{Grant, HOLDING, Kind, MAX_UNITS, SLICES};

use quotagate_store::store::CheckedReservation;

/// Most partitions watched at once.
pub const MAX_WATCHED: usize = 1 << 16;
/// Parts of the table, each with its own lock.
const SHARDS: usize = 16;
/// How long a request waits for slots without its worker saying so again.
const CLAIM: Duration = Duration::from_secs(1);

/// The watched partitions, by the key of their counter.
pub struct Table {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
}

type Shard = HashMap<Box<str>, Seen>;

/// The last known state of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Units used.
    pub used: u64,
    /// Slots that were asked for within a second before the answer and not granted; 0 of windows.
    pub waiting: u64,
    /// The quota in force.
    pub quota: u64,
    /// The quota that the reservation named, before any override; `None` once a dial has changed.
    pub asked: Option<u64>,
    /// The kind of the window.
    pub kind: Kind,
    /// Length of the window in seconds.
    pub window_s: u32,
    /// The number of the window; 0 for slots, which have none. Sliding windows have none either: a
    /// new number for each window's length.
    pub number: u64,
    /// When it ends. If the window is sliding: when the last unit has returned for sure.
    pub end: Instant,
    /// When the reservation was answered.
    pub at: Instant,
}

/// The result of [`Table::see`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observation {
    /// The partition is watched.
    Watched,
    /// The same, and its previous window is over: how full that window was.
    Ended(f64),
    /// The table is full.
    NoRoom,
}

impl Seen {
    fn new(ask: &CheckedReservation, grant: &Grant) -> Self {
        let at = Instant::now();
        let length = Duration::from_secs(ask.window_s.into());
        let (number, left) = match ask.kind {
            // The current slice reaches into the windows of one more slice.
            Kind::InFlight => (0, HOLDING),
            Kind::Sliding => (grant.window / u64::from(SLICES), length + length / SLICES),
            Kind::Fixed | Kind::Calendar(_) | Kind::Unknown => {
                (grant.window, Duration::from_millis(grant.reset_ms))
            }
        };
        let own = ask
            .holding
            .as_ref()
            .map_or(0, |of| of.waiting.max(ask.want).saturating_sub(grant.granted));
        Self {
            used: grant.used,
            waiting: grant.waiting.saturating_add(own),
            quota: grant.quota,
            asked: Some(ask.named_quota()),
            kind: ask.kind.clone(),
            window_s: if grant.window_s > 0 { grant.window_s } else { ask.window_s },
            number,
            end: at + left,
            at,
        }
    }

    fn has_window(&self) -> bool {
        self.kind != Kind::InFlight
    }

    /// Whether the policy has the same windows as then.
    fn is_alike(&self, other: &Self) -> bool {
        are_alike((&self.kind, self.window_s), (&other.kind, other.window_s))
    }

    /// The used part of its quota.
    pub fn fullness(&self) -> f64 {
        if self.quota == 0 { 1.0 } else { self.used as f64 / self.quota as f64 }
    }
}

/// Whether two windows are of one policy that has not changed: their kinds and their lengths in
/// seconds. Windows of a calendar differ in length.
pub fn are_alike(one: (&Kind, u32), other: (&Kind, u32)) -> bool {
    one.0 == other.0 && (one.1 == other.1 || matches!(one.0, Kind::Calendar(_)))
}

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
    pub fn see(&self, ask: &CheckedReservation, grant: &Grant) -> Observation {
        if grant.quota >= MAX_UNITS {
            return Observation::Watched;
        }
        let seen = Seen::new(ask, grant);
        let Some(mut shard) = self.shard(&ask.key) else { return Observation::NoRoom };
        let room = shard.len() < MAX_WATCHED / SHARDS;
        match shard.get_mut(&*ask.key) {
            // An answer of the next window has overtaken this one.
            Some(old) if old.is_alike(&seen) && old.number > seen.number => {}
            Some(old) => {
                // A busy partition reaches its next window before the next sweep.
                let ended = !old.is_alike(&seen) || old.number != seen.number;
                let old = std::mem::replace(old, seen);
                if ended && old.has_window() {
                    return Observation::Ended(old.fullness());
                }
            }
            None if room => drop(shard.insert(ask.key.as_ref().into(), seen)),
            None => return Observation::NoRoom,
        }
        Observation::Watched
    }

    /// Removes partitions whose window is over, and reports how full it was. Slots have no window:
    /// they are removed 9 s after the last message about them.
    pub fn sweep(&self, now: Instant, mut ended: impl FnMut(&str, f64)) {
        for shard in &self.shards {
            lock(shard).retain(|key, seen| {
                let runs = now < seen.end;
                if !runs && seen.has_window() {
                    ended(key, seen.fullness());
                }
                runs
            });
        }
    }

    /// Names the partitions that have used more than their quota, and how many units more.
    pub fn each_over(&self, mut over: impl FnMut(&str, u64)) {
        for shard in &self.shards {
            for (key, seen) in lock(shard).iter().filter(|(_, seen)| seen.used > seen.quota) {
                over(key, seen.used - seen.quota);
            }
        }
    }

    /// Names the partitions of concurrency limits: how many slots are held, and how many are waited
    /// for.
    pub fn each_in_flight(&self, now: Instant, mut of: impl FnMut(&str, u64, u64)) {
        for shard in &self.shards {
            for (key, seen) in lock(shard).iter() {
                if seen.kind == Kind::InFlight && now < seen.end {
                    let waits = now.saturating_duration_since(seen.at) <= CLAIM;
                    of(key, seen.used, if waits { seen.waiting } else { 0 });
                }
            }
        }
    }

    /// Names the partitions whose keys begin so. Calls wait for a part of the table only while its
    /// keys are copied.
    pub fn each_key(&self, start: &str, mut key_of: impl FnMut(&str)) {
        for shard in &self.shards {
            let shard = lock(shard);
            let own = shard.keys().filter(|key| key.starts_with(start));
            let keys: Vec<Box<str>> = own.cloned().collect();
            drop(shard);
            keys.iter().for_each(|key| key_of(key));
        }
    }

    /// How many partitions are watched.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// The last known state of a key.
    pub fn get(&self, key: &str) -> Option<Seen> {
        self.shard(key)?.get(key).cloned()
    }

    /// The quota that the last reservation of a key named in the window with this number, or in a
    /// sliding window.
    pub fn asked(&self, key: &str, number: u64) -> Option<u64> {
        let is_current = |seen: &Seen| seen.kind == Kind::Sliding || seen.number == number;
        self.get(key).filter(is_current)?.asked
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
                best.push(Reverse(Ranked { fullness, key: key.clone(), seen: seen.clone() }));
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
    use quotagate_protocol::{Calendar, Holding, Reservation, Unit};

    use super::*;

    fn ask(partition: &str) -> Reservation {
        Reservation {
            key: format!("d:p:{{{partition}}}").into(),
            window_s: 60,
            quota: 10,
            want: 1,
            min: 1,
            ..Reservation::default()
        }
    }

    fn grant(used: u64, window: u64) -> Grant {
        Grant { granted: 1, used, quota: 10, reset_ms: 60_000, window, ..Grant::default() }
    }

    fn see(table: &Table, partition: &str, used: u64, window: u64) -> Observation {
        let ask = CheckedReservation::new(ask(partition));
        table.see(&ask.unwrap(), &grant(used, window))
    }

    #[test]
    fn the_fullest_come_first_and_windows_end() {
        let (table, now) = (Table::default(), Instant::now());
        for (partition, used, window) in
            [("a", 3, 7), ("b", 10, 7), ("c", 5, 7), ("a", 4, 7), ("b", 1, 6)]
        {
            assert_eq!(see(&table, partition, used, window), Observation::Watched);
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
        assert_eq!(see(&table, "a", 9, 7), Observation::Watched);
        assert_eq!(see(&table, "a", 1, 8), Observation::Ended(0.9));
        assert_eq!(
            see(&table, "a", 9, 7),
            Observation::Watched,
            "an answer of the next window came first"
        );
        assert_eq!(see(&table, "a", 2, 8), Observation::Watched);
    }

    #[test]
    fn sliding_window_is_seen_until_its_last_unit_has_returned() {
        let (table, now) = (Table::default(), Instant::now());
        let see = |used, slice| {
            let ask = CheckedReservation::new(Reservation { kind: Kind::Sliding, ..ask("a") });
            // The first unit returns soon.
            let grant = Grant { reset_ms: 10, window: slice, ..grant(used, slice) };
            table.see(&ask.unwrap(), &grant)
        };
        assert_eq!(see(3, 100), Observation::Watched);
        assert_eq!(see(9, 119), Observation::Watched, "the next slice is no other window");
        assert_eq!(see(5, 120), Observation::Ended(0.9), "fullness is recorded once a window");
        assert_eq!(table.asked("d:p:{a}", 7), Some(10));
        let after = |seconds| now + Duration::from_secs(seconds);
        table.sweep(after(62), |_, _| panic!("its units may still count"));
        assert_eq!(table.fullest(1, after(62), |_| true).len(), 1);
        let mut ended = None;
        table.sweep(after(64), |_, fullness| ended = Some(fullness));
        assert_eq!((ended, table.len()), (Some(0.5), 0));
    }

    #[test]
    fn slots_are_seen_until_no_worker_has_said_that_it_holds_some() {
        let (table, now) = (Table::default(), Instant::now());
        let see = |used, serial| {
            let holding = Holding { worker: "w".into(), serial, ..Holding::default() };
            let of = Reservation { kind: Kind::InFlight, window_s: 0, ..ask("a") };
            let ask = CheckedReservation::new(Reservation { holding: Some(holding), ..of });
            table.see(&ask.unwrap(), &Grant { reset_ms: 9_000, ..grant(used, serial) })
        };
        assert_eq!(see(3, 100), Observation::Watched);
        assert_eq!(see(9, 7), Observation::Watched, "serials of two workers have no order");
        assert_eq!(table.get("d:p:{a}").map(|seen| seen.used), Some(9));
        assert_eq!(table.asked("d:p:{a}", 0), Some(10));
        table.sweep(now + Duration::from_secs(8), |_, _| panic!("a worker may hold them"));
        table.sweep(now + Duration::from_secs(10), |_, _| panic!("slots have no window"));
        assert_eq!(table.len(), 0);
        see(9, 1);
        let window = CheckedReservation::new(ask("a")).unwrap();
        assert_eq!(table.see(&window, &grant(1, 7)), Observation::Watched, "no window has ended");
    }

    #[test]
    fn slots_are_waited_for_until_a_second_after_the_last_message_that_says_so() {
        let (table, now) = (Table::default(), Instant::now());
        let holding = Holding { worker: "w".into(), serial: 1, waiting: 5, ..Holding::default() };
        let of = Reservation { kind: Kind::InFlight, window_s: 0, want: 4, min: 1, ..ask("a") };
        let ask = CheckedReservation::new(Reservation { holding: Some(holding), ..of }).unwrap();
        let of_others = 2;
        table.see(&ask, &Grant { granted: 3, waiting: of_others, ..grant(10, 1) });
        see(&table, "of_a_window", 9, 1);
        let at = |ms| {
            let mut found = Vec::new();
            let now = now + Duration::from_millis(ms);
            table.each_in_flight(now, |key, held, waiting| {
                found.push((key.to_owned(), held, waiting));
            });
            found
        };
        assert_eq!(at(900), [("d:p:{a}".to_owned(), 10, 4)]);
        assert_eq!(at(2_000), [("d:p:{a}".to_owned(), 10, 0)]);
        assert_eq!(at(10_000), []);
    }

    #[test]
    fn day_is_followed_by_one_of_another_length() {
        let table = Table::default();
        let see = |used, number, window_s| {
            let kind =
                Kind::Calendar(Calendar { unit: Unit::Day, time_zone: "Europe/Berlin".into() });
            let ask = CheckedReservation::new(Reservation { kind, window_s: 0, ..ask("a") });
            table.see(&ask.unwrap(), &Grant { window_s, ..grant(used, number) })
        };
        assert_eq!(see(9, 1_000_000, 90_000), Observation::Watched);
        assert_eq!(see(1, 1_090_000, 86_400), Observation::Ended(0.9));
        assert_eq!(see(9, 1_000_000, 90_000), Observation::Watched, "an overtaken answer");
        let seen = table.get("d:p:{a}").unwrap();
        assert_eq!((seen.used, seen.window_s), (1, 86_400));
    }

    #[test]
    fn names_are_looked_at_without_a_lock() {
        let table = Table::default();
        for n in 0..100 {
            assert_eq!(see(&table, &n.to_string(), 1, 1), Observation::Watched);
        }
        let mut names = 0;
        table.each_key("d:p:{", |key| {
            assert!(table.shards.iter().all(|shard| shard.try_lock().is_ok()), "{key}");
            names += 1;
        });
        table.each_key("d:q:{", |key| panic!("{key} is of another policy"));
        assert_eq!(names, 100);
    }

    #[test]
    fn the_table_is_bounded() {
        let table = Table::default();
        let finds_room = |name: &str| see(&table, name, 1, 1) != Observation::NoRoom;
        let watched = (0..MAX_WATCHED + 5000).filter(|n| finds_room(&n.to_string())).count();
        assert!(
            watched == table.len() && watched <= MAX_WATCHED && watched > MAX_WATCHED / 2,
            "{watched}"
        );
        assert!(!(0..50_000).all(|n| finds_room(&format!("x{n}"))));
    }
}
