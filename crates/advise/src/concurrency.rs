//! How many units of each user run at once: a sweep over the starts and ends of requests.
//!
//! A request runs from its start until its duration is over, and for a millisecond at least. One
//! that ends in the millisecond in which another begins is not counted with it. Each arrival is
//! measured: the units that run at that moment, its own included.
//!
//! Requests are kept and swept at the end, so all numbers are exact for any order of lines while
//! the requests fit into memory. A shard that is full sweeps the requests that began before `open`,
//! where no more lines are expected, and keeps those that still run. If that does not free half of
//! it, it forgets half of the users, as often as needed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::count::Tally;

/// Shards of the users.
const SHARDS: usize = 64;
/// Bytes for each request at most: the request itself with 24, and the peak of its user with 16 in
/// a vector that may have twice the capacity that it needs.
const BYTES: usize = 56;

/// A request of a user. The order is by user, then by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    /// A hash of the user's name, evenly spread.
    pub(crate) user: u64,
    pub(crate) start_ms: i64,
    pub(crate) duration_ms: u32,
    pub(crate) units: u32,
}

impl Span {
    fn end_ms(&self) -> i64 {
        self.start_ms.saturating_add(i64::from(self.duration_ms.max(1)))
    }

    fn shard(&self) -> usize {
        usize::try_from(self.user >> 58).unwrap_or_default()
    }
}

/// The requests of all users, shared by all threads.
pub(crate) struct Spans {
    shards: Vec<Mutex<SpanShard>>,
    /// The units that ran at each arrival that was swept. All shards share it, because a tally of
    /// large costs takes more memory than the requests of a shard.
    arrivals: Mutex<Tally>,
    /// The most requests and peaks in a shard.
    most: usize,
    pressed: AtomicBool,
}

/// How many units ran at once.
#[derive(Debug, Default)]
pub(crate) struct Concurrent {
    /// The units that ran when a request arrived, its own included, for each request.
    pub(crate) arrivals: Tally,
    /// The most of them for each user.
    pub(crate) peaks: Tally,
    /// Requests that came after their time had been swept. They are no arrivals.
    pub(crate) late: u64,
    /// One in so many users was looked at: 1 for all.
    pub(crate) one_in: u64,
}

impl Spans {
    /// Requests in `budget` bytes at most, while this many threads add some.
    pub(crate) fn new(budget: usize, threads: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            arrivals: Mutex::default(),
            // A thread that sweeps or enlarges a shard needs as much again.
            most: budget / (SHARDS + threads) / BYTES,
            pressed: AtomicBool::new(false),
        }
    }

    /// Adds a batch and empties it. No more requests are expected that began before `open`.
    pub(crate) fn add(&self, batch: &mut Vec<Span>, open: i64) {
        batch.sort_unstable();
        for part in batch.chunk_by(|one, two| one.shard() == two.shard()) {
            let shard = part.first().and_then(|span| self.shards.get(span.shard()));
            let Some(shard) = shard else { continue };
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for span in part {
                if shard.add(*span, self.most, open, &self.arrivals) {
                    self.pressed.store(true, Ordering::Relaxed);
                }
            }
        }
        batch.clear();
    }

    /// Whether memory was scarce.
    pub(crate) fn pressed(&self) -> bool {
        self.pressed.load(Ordering::Relaxed)
    }

    /// Sweeps all requests on this many threads.
    pub(crate) fn finish(self, threads: usize) -> Concurrent {
        let (rest, arrivals) = (Mutex::new(self.shards.into_iter()), self.arrivals);
        let next = || rest.lock().unwrap_or_else(PoisonError::into_inner).next();
        let sweep = || {
            let mut swept = Vec::new();
            while let Some(shard) = next() {
                let mut shard = shard.into_inner().unwrap_or_else(PoisonError::into_inner);
                shard.sweep(i64::MAX, &arrivals);
                shard.spans = Vec::new();
                swept.push(shard);
            }
            swept
        };
        let shards: Vec<SpanShard> = thread::scope(|scope| {
            let handles: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(sweep)).collect();
            // A thread panics only on a bug; its peaks are dropped.
            handles.into_iter().filter_map(|handle| handle.join().ok()).flatten().collect()
        });
        let forgotten = shards.iter().map(|shard| shard.forgotten).max().unwrap_or_default();
        let arrivals = arrivals.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut all = Concurrent { arrivals, one_in: forgotten + 1, ..Concurrent::default() };
        for shard in shards {
            all.late += shard.late;
            let sampled = shard.peaks.iter().filter(|(user, _)| user & forgotten == 0);
            sampled.for_each(|(_, peak)| all.peaks.add(*peak, all.one_in));
        }
        all
    }
}

/// Requests and peaks of some users.
#[derive(Default)]
struct SpanShard {
    spans: Vec<Span>,
    /// The most units that ran at once, by user.
    peaks: Vec<(u64, u32)>,
    /// Arrivals before this time are counted.
    swept: i64,
    late: u64,
    /// Users with any of these bits are forgotten: 0b11 leaves one in four.
    forgotten: u64,
}

impl SpanShard {
    /// Adds a request; true if memory is scarce. A sweep for room counts into `arrivals`.
    fn add(&mut self, span: Span, most: usize, open: i64, arrivals: &Mutex<Tally>) -> bool {
        let full = self.spans.len() + self.peaks.len() >= most;
        if full {
            self.sweep(open, arrivals);
            while self.spans.len() + self.peaks.len() > most / 2 && self.forgotten < u64::MAX >> 6 {
                self.forgotten = self.forgotten << 1 | 1;
                self.spans.retain(|span| span.user & self.forgotten == 0);
                self.peaks.retain(|(user, _)| user & self.forgotten == 0);
            }
        }
        if span.user & self.forgotten == 0 {
            self.late += u64::from(span.start_ms < self.swept);
            let (len, capacity) = (self.spans.len(), self.spans.capacity());
            if len == capacity {
                self.spans.reserve_exact(len.max(64).min(most.saturating_sub(len)).max(1));
            }
            self.spans.push(span);
        }
        full
    }

    /// Counts the arrivals before this time, and drops the requests that ended before it.
    fn sweep(&mut self, until: i64, arrivals: &Mutex<Tally>) {
        let until = until.max(self.swept);
        self.spans.sort_unstable();
        let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ends = BinaryHeap::new();
        for spans in self.spans.chunk_by(|one, two| one.user == two.user) {
            ends.clear();
            let (mut running, mut peak) = (0_u64, (0, 0));
            for span in spans.iter().take_while(|span| span.start_ms < until) {
                while let Some(Reverse((end_ms, units))) = ends.peek().copied()
                    && end_ms <= span.start_ms
                {
                    running -= u64::from(units);
                    ends.pop();
                }
                running += u64::from(span.units);
                ends.push(Reverse((span.end_ms(), span.units)));
                let now = u32::try_from(running).unwrap_or(u32::MAX);
                if span.start_ms >= self.swept {
                    arrivals.add(now, self.forgotten + 1);
                }
                peak = (span.user, now.max(peak.1));
            }
            self.peaks.extend((peak.1 > 0).then_some(peak));
        }
        drop(arrivals);
        self.spans.retain(|span| span.start_ms >= until || span.end_ms() > until);
        // The largest peak of each user comes first, and stays.
        self.peaks.sort_unstable_by_key(|peak| Reverse(*peak));
        self.peaks.dedup_by_key(|(user, _)| *user);
        self.swept = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of one user: start, duration, units.
    fn of(user: u64, list: &[(i64, u32, u32)]) -> Vec<Span> {
        let span = |(start_ms, duration_ms, units): &(i64, u32, u32)| Span {
            user,
            start_ms: *start_ms,
            duration_ms: *duration_ms,
            units: *units,
        };
        list.iter().map(span).collect()
    }

    fn all(mut batch: Vec<Span>) -> [Vec<(u32, u64)>; 2] {
        let spans = Spans::new(1 << 20, 1);
        spans.add(&mut batch, 0);
        let Concurrent { arrivals, peaks, late, one_in } = spans.finish(2);
        assert_eq!((late, one_in), (0, 1));
        [arrivals, peaks].map(|tally| tally.iter().collect())
    }

    #[test]
    fn requests_that_overlap_run_at_once_in_any_order_of_lines() {
        // At 0 one runs, at 5 two; at 10 the first has ended, at 12 three run.
        let mut list = [(0, 10, 1), (5, 10, 1), (10, 10, 1), (12, 1, 1)];
        let expected = [vec![(1, 1), (2, 2), (3, 1)], vec![(3, 1)]];
        assert_eq!(all(of(7, &list)), expected);
        list.reverse();
        assert_eq!(all(of(7, &list)), expected);
        // Another user does not count with them.
        let both = [of(7, &list), of(8, &[(6, 100, 1)])].concat();
        assert_eq!(all(both), [vec![(1, 2), (2, 2), (3, 1)], vec![(1, 1), (3, 1)]]);
    }

    #[test]
    fn zero_durations_take_a_millisecond_and_costs_take_slots() {
        let list = [(0, 0, 1), (0, 0, 1), (1, 0, 1)];
        assert_eq!(all(of(7, &list)), [vec![(1, 2), (2, 1)], vec![(2, 1)]]);
        let list = [(0, 10, 4), (5, 1, 2)];
        assert_eq!(all(of(7, &list)), [vec![(4, 1), (6, 1)], vec![(6, 1)]]);
    }

    #[test]
    fn huge_values_saturate() {
        let list = [(0, u32::MAX, u32::MAX), (1, u32::MAX, u32::MAX), (i64::MAX - 1, u32::MAX, 1)];
        let [arrivals, peaks] = all(of(7, &list));
        assert_eq!((&arrivals[1], &peaks[..]), (&(u32::MAX, 2), &[(u32::MAX, 1)][..]));
    }

    #[test]
    fn scarce_memory_sweeps_early_and_stays_exact() {
        // Each request overlaps with the two after it, and one runs all the time.
        let spans = Spans::new(1 << 20, 1);
        let mut batch = of(7, &[(0, u32::MAX, 1)]);
        for start in 1..100_000_i64 {
            batch.extend(of(7, &[(start * 10, 25, 1)]));
            if start % 50 == 0 {
                spans.add(&mut batch, start * 10 - 600);
            }
        }
        spans.add(&mut batch, 0);
        assert!(spans.pressed());
        let all = spans.finish(2);
        assert_eq!((all.late, all.one_in), (0, 1));
        assert_eq!(all.arrivals.iter().collect::<Vec<_>>(), [(1, 1), (2, 1), (3, 1), (4, 99_997)]);
        assert_eq!(all.peaks.iter().collect::<Vec<_>>(), [(4, 1)]);
    }

    #[test]
    fn late_requests_are_reported() {
        let (mut shard, arrivals) = (SpanShard::default(), Mutex::default());
        let mut add = |span| shard.add(span, 2, 18, &arrivals);
        let [one, two, late] = [(10, 5, 1), (20, 5, 1), (12, 1, 1)].map(|span| of(0, &[span])[0]);
        assert!(!add(one) && !add(two));
        assert!(add(late));
        assert_eq!((shard.late, shard.swept), (1, 18));
    }

    #[test]
    fn without_memory_for_open_requests_users_are_sampled() {
        // Twenty thousand users with two requests at once each, in one millisecond.
        let spans = Spans::new(1 << 20, 1);
        for user in 0..20_000_u64 {
            let user = user.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            spans.add(&mut of(user, &[(0, 10, 1), (1, 10, 1)]), 0);
        }
        let all = spans.finish(2);
        let (users, requests) = (all.peaks.above(1).0, all.arrivals.above(0).1);
        assert!(all.one_in >= 4 && all.peaks.above(2).0 == 0, "{}", all.one_in);
        assert!((15_000..25_000).contains(&users), "{users}");
        assert!((30_000..50_000).contains(&requests), "{requests}");
    }
}
