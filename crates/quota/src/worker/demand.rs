//! How many units were wanted of a counter within a recent span, from two slots of that span's length: the
//! one that runs counts in full, the one before as far as the span still reaches into it.

use std::time::Duration;

use crate::time::Monotonic;

/// So much is counted in a slot at most: two of them times the microseconds of the longest span fit 64 bits.
const MOST: u64 = 1 << 36;
/// The longest span that is told apart.
const LONGEST: Duration = Duration::from_secs(60);

/// The demand for one counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    span: Duration,
    start: Monotonic,
    current: u64,
    previous: u64,
}

impl Demand {
    /// No demand yet, over a span of 1 ms to 60 s.
    pub(super) fn new(span: Duration, now: Monotonic) -> Self {
        let span = span.clamp(Duration::from_millis(1), LONGEST);
        Self { span, start: now, current: 0, previous: 0 }
    }

    /// So many units are wanted now.
    pub(super) fn add(&mut self, units: u64, now: Monotonic) {
        let age = now.since(self.start);
        if age >= self.span {
            let next = age < self.span * 2;
            self.previous = if next { self.current } else { 0 };
            self.start = if next { self.start + self.span } else { now };
            self.current = 0;
        }
        self.current = self.current.saturating_add(units).min(MOST);
    }

    /// So many units, wanted a moment ago, are not.
    pub(super) fn withdraw(&mut self, units: u64) {
        self.current = self.current.saturating_sub(units);
    }

    /// Units wanted within the last span.
    pub(super) fn recent(&self, now: Monotonic) -> u64 {
        let age = now.since(self.start);
        if age < self.span {
            self.current + self.part(self.previous, self.span.saturating_sub(age))
        } else {
            self.part(self.current, (self.span * 2).saturating_sub(age))
        }
    }

    /// As much of `units` as `time` is of the span, which it does not exceed; at most twice [`MOST`] units.
    pub(super) fn part(&self, units: u64, time: Duration) -> u64 {
        let micros = |time: Duration| time.as_micros() as u64;
        units.min(2 * MOST) * micros(time.min(self.span)) / micros(self.span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Monotonic {
        Monotonic::new(Duration::from_millis(ms))
    }

    #[test]
    fn it_slides_over_two_slots_and_fades_to_nothing() {
        let mut demand = Demand::new(Duration::from_millis(100), at(1_000));
        demand.add(8, at(1_000));
        assert_eq!(demand.recent(at(1_099)), 8);
        for (ms, expected) in [(1_100, 8), (1_150, 4), (1_199, 0), (1_200, 0), (9_000, 0)] {
            assert_eq!(demand.recent(at(ms)), expected, "{ms}");
        }
        demand.add(4, at(1_125));
        for (ms, expected) in [(1_125, 10), (1_150, 8), (1_200, 4), (1_250, 2), (1_300, 0)] {
            assert_eq!(demand.recent(at(ms)), expected, "{ms}");
        }
        demand.add(1, at(5_000));
        assert_eq!((demand.recent(at(5_050)), demand.recent(at(5_150))), (1, 0));
    }

    #[test]
    fn a_steady_stream_is_what_it_is() {
        let mut demand = Demand::new(Duration::from_millis(100), at(0));
        for ms in 0..1_000 {
            demand.add(3, at(ms));
            assert!(ms < 100 || (297..=303).contains(&demand.recent(at(ms))), "{}", demand.recent(at(ms)));
        }
        demand.withdraw(3);
        assert_eq!(demand.recent(at(999)), 300);
    }

    #[test]
    fn no_number_overflows() {
        let mut demand = Demand::new(Duration::from_secs(1_000_000), at(0));
        for ms in [0, 1, 60_000, 60_001, 90_000] {
            demand.add(u64::MAX, at(ms));
        }
        assert_eq!(demand.recent(at(90_000)), MOST + MOST / 2);
        assert_eq!(demand.part(u64::MAX, Duration::MAX), 2 * MOST);
    }
}
