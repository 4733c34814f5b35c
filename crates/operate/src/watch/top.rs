//! The most refused keys in about the last five minutes: a sketch of bounded memory.
//!
//! Five slices of a minute, each a Space-Saving sketch (Metwally, Agrawal, El Abbadi 2005) of
//! [`KEPT`] keys. If a slice is full, a new key replaces the key with the smallest count, and
//! starts from that count, which is its error. So a slice that counted `n` refusals overstates no
//! key by more than `n / KEPT`, and keeps every key with more refusals than that. A slice may lack
//! a key with fewer refusals; the key's sum is too low by that number.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Keys of a slice.
pub const KEPT: usize = 512;
/// The length of a slice.
const SLICE: Duration = Duration::from_secs(60);
/// How many slices are kept.
const SLICES: usize = 5;

/// Refusals by the key of their counter.
#[derive(Default)]
pub struct Sketch {
    /// The newest last, each with the time it began.
    slices: VecDeque<(Instant, SketchCounts)>,
}

type SketchCounts = HashMap<Box<str>, Tally>;

/// The refusals of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// How many were counted.
    pub count: u64,
    /// How many of them may belong to other keys.
    pub error: u64,
    /// When the first of them was counted. A key that occurs in an older slice keeps its time, so
    /// this may be longer ago than the oldest slice.
    pub since: Instant,
}

impl Tally {
    fn plus(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            error: self.error.saturating_add(other.error),
            since: self.since.min(other.since),
        }
    }
}

impl Sketch {
    /// Counts refusals of a key.
    pub fn add(&mut self, key: &str, requests: u64, now: Instant) {
        if requests == 0 {
            return;
        }
        self.age(now);
        if self
            .slices
            .back()
            .is_none_or(|(begun, _)| now.saturating_duration_since(*begun) >= SLICE)
        {
            self.slices.push_back((now, SketchCounts::new()));
            if self.slices.len() > SLICES {
                self.slices.pop_front();
            }
        }
        let known = self.slices.iter().filter_map(|(_, counts)| counts.get(key));
        let since = known.map(|tally| tally.since).min().unwrap_or(now);
        let Some((_, counts)) = self.slices.back_mut() else { return };
        if let Some(tally) = counts.get_mut(key) {
            tally.count = tally.count.saturating_add(requests);
            return;
        }
        let mut error = 0;
        if counts.len() >= KEPT {
            let least = counts.iter().min_by_key(|(_, tally)| tally.count);
            if let Some((least, count)) = least.map(|(least, tally)| (least.clone(), tally.count)) {
                counts.remove(&least);
                error = count;
            }
        }
        let count = error.saturating_add(requests);
        counts.insert(key.into(), Tally { count, error, since });
    }

    /// The most refused keys among those `wanted`.
    pub fn most(
        &mut self,
        limit: usize,
        now: Instant,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<(Box<str>, Tally)> {
        self.age(now);
        let mut sums: HashMap<&str, Tally> = HashMap::new();
        for (key, tally) in self.slices.iter().flat_map(|(_, counts)| counts) {
            if wanted(key) {
                sums.entry(key).and_modify(|sum| *sum = sum.plus(*tally)).or_insert(*tally);
            }
        }
        let mut all: Vec<(Box<str>, Tally)> =
            sums.into_iter().map(|(key, tally)| (Box::from(key), tally)).collect();
        all.sort_by(|one, other| other.1.count.cmp(&one.1.count).then_with(|| one.0.cmp(&other.0)));
        all.truncate(limit);
        all
    }

    /// The refusals of one key.
    pub fn of(&mut self, key: &str, now: Instant) -> Option<Tally> {
        self.age(now);
        let tallies = self.slices.iter().filter_map(|(_, counts)| counts.get(key).copied());
        tallies.reduce(Tally::plus)
    }

    fn age(&mut self, now: Instant) {
        let old = SLICE * u32::try_from(SLICES).unwrap_or(1);
        self.slices.retain(|(begun, _)| now.saturating_duration_since(*begun) < old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_refused_keys_are_found_among_many() {
        let (mut sketch, now) = (Sketch::default(), Instant::now());
        let heavy = 40;
        for round in 0..300 {
            (0..heavy).for_each(|n| sketch.add(&format!("d:p:{{heavy{n:02}}}"), n + 20, now));
            (0..10).for_each(|n| sketch.add(&format!("d:p:{{light{}}}", round * 10 + n), 1, now));
        }
        let total: u64 = 300 * ((0..heavy).map(|n| n + 20).sum::<u64>() + 10);
        let found = sketch.most(10, now, |_| true);
        for (rank, (key, Tally { count, error, .. })) in found.iter().enumerate() {
            let n = heavy - 1 - rank as u64;
            assert_eq!(&**key, format!("d:p:{{heavy{n:02}}}"));
            let exact = 300 * (n + 20);
            assert!(
                *count >= exact && count - error <= exact && *error <= total / KEPT as u64,
                "{count} {error}"
            );
        }
        assert!(sketch.slices.iter().all(|(_, counts)| counts.len() <= KEPT));
        assert!(sketch.most(9, now, |key| key.contains("nobody")).is_empty());
    }

    #[test]
    fn refusals_older_than_five_minutes_are_dropped() {
        let (mut sketch, now) = (Sketch::default(), Instant::now());
        let at = |minute: u64| now + Duration::from_secs(60 * minute);
        (0..20).for_each(|minute| sketch.add("d:p:{a}", 1, at(minute)));
        let first = Tally { count: 5, error: 0, since: now };
        assert_eq!(
            (sketch.of("d:p:{a}", at(19)), sketch.of("d:p:{b}", at(19))),
            (Some(first), None)
        );
        assert_eq!(sketch.most(1, at(19), |_| true), [("d:p:{a}".into(), first)]);
        assert_eq!(sketch.slices.len(), SLICES);
        assert!(sketch.most(1, at(25), |_| true).is_empty());
        sketch.add("d:p:{a}", 1, at(26));
        let again = Tally { count: 1, error: 0, since: at(26) };
        assert_eq!(sketch.most(1, at(26), |_| true), [("d:p:{a}".into(), again)]);
    }
}
