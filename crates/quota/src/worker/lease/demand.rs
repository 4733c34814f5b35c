//! The expected demand for a counter within the next `ahead`, estimated from the requests of a
//! recent span.
//!
//! The span is four times `ahead`, at least a second, so that a few requests close together do not
//! look like a stream. The last request is not counted, since it does not announce the next. Two
//! slots of the span's length count the units: the current one in full, the previous one as far as
//! the span still reaches into it. A counter that is younger than a quarter of the span is judged
//! as if it were that old.
//!
//! The end of a stream shows sooner: after a silence of `n` mean gaps, a stream still runs only
//! with probability `e^-n`. So the estimate allows at most [`GAPS`] requests in the time since the
//! last one. Clients that wait for responses send in bursts, though, with many mean gaps between
//! two bursts. So a pause no longer than recent pauses does not end the lease. Pauses longer than
//! `ahead` are not among the recent ones.

use std::time::Duration;

use crate::time::Monotonic;

/// The length of the span, as a multiple of `ahead`.
const SPAN: u32 = 4;
/// The shortest span.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest `ahead`; a longer one counts as this.
const LONGEST_AHEAD: Duration = Duration::from_secs(60);
/// Most units of a slot. Two of them times the microseconds of the longest span fit 64 bits.
const MOST: u64 = 1 << 34;
/// A silence of up to this many mean gaps may be chance.
const GAPS: u64 = 4;

/// The demand for one counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    ahead: Duration,
    since: Monotonic,
    /// The start of the current slot.
    start: Monotonic,
    current: u64,
    previous: u64,
    /// The longest silences within these slots, of those that last at most `ahead`.
    silence: Duration,
    previous_silence: Duration,
    /// The last request, and its units.
    last: Monotonic,
    last_units: u64,
    /// Eight times the moving average of a request's units.
    cost_8: u64,
}

impl Demand {
    /// No demand yet. `ahead` is 1 ms to 60 s.
    pub(super) fn new(ahead: Duration, now: Monotonic) -> Self {
        let ahead = ahead.clamp(Duration::from_millis(1), LONGEST_AHEAD);
        Self {
            ahead,
            since: now,
            start: now,
            current: 0,
            previous: 0,
            silence: Duration::ZERO,
            previous_silence: Duration::ZERO,
            last: now,
            last_units: 0,
            cost_8: 0,
        }
    }

    /// A request needs `units` now.
    pub(super) fn add(&mut self, units: u64, now: Monotonic) {
        let (age, span) = (now.since(self.start), self.span());
        if age >= span {
            let next = age < span * 2;
            self.previous = if next { self.current } else { 0 };
            self.previous_silence = if next { self.silence } else { Duration::ZERO };
            self.start = if next { self.start + span } else { now };
            (self.current, self.silence) = (0, Duration::ZERO);
        }
        let silence = now.since(self.last);
        if silence <= self.ahead {
            self.silence = self.silence.max(silence);
        }
        let units = units.min(MOST);
        self.current = (self.current + units).min(MOST);
        (self.last, self.last_units) = (now, units);
        self.cost_8 =
            if self.cost_8 == 0 { 8 * units } else { self.cost_8 - self.cost_8 / 8 + units };
    }

    /// A request that was just added does not need its units after all.
    pub(super) fn withdraw(&mut self, units: u64) {
        self.current = self.current.saturating_sub(units);
    }

    /// Units that requests will need within `ahead`; 0 if that is less than one request.
    pub(super) fn expected(&self, now: Monotonic) -> u64 {
        let span = self.span();
        let watched = now.since(self.since).clamp(span / SPAN, span);
        let before = self.recent(now).saturating_sub(self.last_units);
        let usual = before * micros(self.ahead) / micros(watched);
        let silence = now.since(self.last);
        let cost = self.cost_8 / 8;
        let expected = if silence <= self.silence.max(self.previous_silence) {
            usual
        } else {
            usual.min(GAPS * cost * micros(self.ahead) / micros(silence).max(1))
        };
        if expected < cost { 0 } else { expected }
    }

    /// `units` times `time` / `ahead`, at most `units`.
    pub(super) fn part(&self, units: u64, time: Duration) -> u64 {
        part(units, time, self.ahead)
    }

    /// How long `units` last if requests need `expected` within `ahead`; at most `ahead`.
    pub(super) fn lasts(&self, units: u64, expected: u64) -> Duration {
        Duration::from_micros(units.min(expected) * micros(self.ahead) / expected.max(1))
    }

    /// Whether no request came for longer than `ahead`.
    pub(super) fn is_quiet(&self, now: Monotonic) -> bool {
        now.since(self.last) > self.ahead
    }

    fn span(&self) -> Duration {
        (self.ahead * SPAN).max(SHORTEST)
    }

    /// Units of the requests within the last span.
    fn recent(&self, now: Monotonic) -> u64 {
        let (age, span) = (now.since(self.start), self.span());
        if age < span {
            self.current + part(self.previous, span.saturating_sub(age), span)
        } else {
            part(self.current, (span * 2).saturating_sub(age), span)
        }
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

/// `units` times `time` / `whole`, at most `units` and at most twice [`MOST`].
fn part(units: u64, time: Duration, whole: Duration) -> u64 {
    units.min(2 * MOST) * micros(time.min(whole)) / micros(whole).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Monotonic {
        Monotonic::new(Duration::from_millis(ms))
    }

    /// `units` every `every_ms` until 10 s.
    fn steady(ahead_ms: u64, units: u64, every_ms: usize) -> Demand {
        let mut demand = Demand::new(Duration::from_millis(ahead_ms), at(0));
        for ms in (0..=10_000).step_by(every_ms) {
            demand.add(units, at(ms));
        }
        demand
    }

    #[test]
    fn steady_stream_is_expected_to_continue() {
        for (ahead, units, every, expected) in [
            (100, 3, 1, 300),
            (100, 1, 50, 2),
            (100, 1, 250, 0),
            (1_000, 1, 250, 4),
            (2_000, 5, 250, 40),
            (300, 5, 250, 5),
            (200, 5, 250, 0),
        ] {
            let demand = steady(ahead, units, every);
            assert_eq!(demand.expected(at(10_000)), expected, "{units} each {every} ms");
        }
    }

    #[test]
    fn burst_after_silence_is_not_taken_for_a_stream() {
        for (ahead, requests, expected) in [(100, 1, 0), (100, 6, 2), (1_000, 1, 0), (1_000, 6, 5)]
        {
            let mut demand = Demand::new(Duration::from_millis(ahead), at(0));
            for _ in 0..requests {
                demand.add(1, at(0));
            }
            assert_eq!(demand.expected(at(0)), expected, "{requests} requests");
        }
    }

    #[test]
    fn cost_of_the_first_request_bounds_an_early_estimate() {
        let mut demand = Demand::new(Duration::from_millis(100), at(0));
        for _ in 0..6 {
            demand.add(10, at(0));
        }
        assert_eq!(demand.expected(at(300)), 13, "four requests of 10 in 300 ms at most");
    }

    #[test]
    fn stream_is_learnt_in_a_quarter_of_the_span() {
        let mut demand = Demand::new(Duration::from_millis(100), at(0));
        for ms in 0..=1_000 {
            demand.add(1, at(ms));
            assert!(ms < 250 || (99..=101).contains(&demand.expected(at(ms))), "{ms}");
        }
        assert_eq!(steady(100, 1, 1).expected(at(10_000)), 100);
    }

    #[test]
    fn stream_is_over_after_a_silence_of_four_gaps_per_request() {
        let demand = steady(100, 1, 1);
        for (ms, expected) in [(3, 99), (8, 50), (40, 10), (400, 1), (401, 0)] {
            assert_eq!(demand.expected(at(10_000 + ms)), expected, "{ms}");
        }
        assert!(!demand.is_quiet(at(10_100)) && demand.is_quiet(at(10_101)));
    }

    #[test]
    fn silence_between_two_bursts_is_not_the_end_of_a_stream() {
        let mut demand = Demand::new(Duration::from_millis(100), at(0));
        for burst in 0..=100 {
            (0..20).for_each(|_| demand.add(1, at(burst * 25)));
        }
        for (ms, expected) in [(0, 81), (25, 79), (26, 15), (100, 4)] {
            assert_eq!(demand.expected(at(2_500 + ms)), expected, "{ms}");
        }
        demand.add(1, at(2_601));
        assert_eq!(demand.expected(at(2_627)), 15, "101 ms are more than what is ahead");
    }

    #[test]
    fn small_request_among_large_ones_is_not_taken_for_silence() {
        let mut demand = steady(100, 100, 1);
        demand.add(1, at(10_001));
        assert_eq!(
            demand.expected(at(10_006)),
            4 * 87 * 100 / 5,
            "uses the mean cost, not the last one"
        );
    }

    #[test]
    fn old_demand_fades_to_zero() {
        let mut demand = Demand::new(Duration::from_millis(100), at(0));
        demand.add(8, at(0));
        for (ms, expected) in [(999, 8), (1_500, 4), (1_999, 0), (9_000, 0)] {
            assert_eq!(demand.recent(at(ms)), expected, "{ms}");
        }
        demand.add(4, at(1_250));
        assert_eq!(demand.recent(at(1_250)), 10);
        demand.withdraw(4);
        assert_eq!(demand.recent(at(1_500)), 4);
        demand.add(1, at(9_000));
        assert_eq!(demand.recent(at(9_500)), 1);
    }

    #[test]
    fn units_last_in_proportion_to_the_expected_demand() {
        let demand = Demand::new(Duration::from_millis(100), at(0));
        for (units, expected, ms) in [(5, 10, 50), (0, 10, 0), (20, 10, 100), (0, 0, 0), (3, 0, 0)]
        {
            assert_eq!(
                demand.lasts(units, expected),
                Duration::from_millis(ms),
                "{units} of {expected}"
            );
        }
    }

    #[test]
    fn no_number_overflows() {
        let mut demand = Demand::new(Duration::from_secs(1_000_000), at(0));
        for ms in [0, 1, 240_000, 240_001, 400_000] {
            demand.add(u64::MAX, at(ms));
            assert!(demand.expected(at(ms)) <= 8 * MOST);
        }
        assert_eq!(demand.part(u64::MAX, Duration::MAX), 2 * MOST);
        assert_eq!(demand.lasts(u64::MAX, 8 * MOST), Duration::from_secs(60));
    }
}
