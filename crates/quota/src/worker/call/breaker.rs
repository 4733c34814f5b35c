//! The circuit breaker: when to stop calling a store that does not answer, and when to try it
//! again.
//!
//! The breaker opens for 250 ms once [`LIMIT`] calls in a row have failed as a whole and no call
//! has succeeded for [`SILENCE`]. Then it lets a single probe through. Each probe that fails
//! doubles the pause, up to 1 s. Pauses vary by a quarter, so that the workers of a fleet do not
//! all come back at once.
//!
//! Every readable reply is a success, even if single reservations failed. A store that lost a part
//! of its counters still serves the others, and an open breaker would fail those, too. Nor do
//! failures in a row mean that nothing counts: a dead store beside a healthy one fails calls faster
//! than the other answers, and so attracts most of them.

use std::time::Duration;

use crate::time::Monotonic;

/// This many failed calls in a row open the breaker, if none succeeded for [`SILENCE`].
pub const LIMIT: u32 = 5;
/// A store that answered a call within this time is not given up.
pub const SILENCE: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The breaker of one worker.
#[derive(Clone, Debug)]
pub struct Breaker {
    state: BreakerState,
    /// When the last call brought a reply.
    answered: Option<Monotonic>,
    random: u64,
}

#[derive(Clone, Copy, Debug)]
enum BreakerState {
    Closed { failures: u32 },
    Open { until: Monotonic, pause: Duration },
    Probing { pause: Duration },
}

/// What the end of a call changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerChange {
    /// Nothing.
    None,
    /// The worker gives the store up for a while.
    Opened,
    /// The store answers again.
    Healed,
}

impl Breaker {
    /// A closed breaker whose jitter comes from `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { state: BreakerState::Closed { failures: 0 }, answered: None, random: seed | 1 }
    }

    /// Whether a request may wait for a call at `now`.
    pub fn lets_through(&self, now: Monotonic) -> bool {
        match self.state {
            BreakerState::Closed { .. } => true,
            BreakerState::Open { until, .. } => until <= now,
            BreakerState::Probing { .. } => false,
        }
    }

    /// Whether a probe is under way.
    pub const fn is_probing(&self) -> bool {
        matches!(self.state, BreakerState::Probing { .. })
    }

    /// A call leaves. Returns whether it is the probe.
    pub fn calling(&mut self, now: Monotonic) -> bool {
        match self.state {
            BreakerState::Open { until, pause } if until <= now => {
                self.state = BreakerState::Probing { pause };
                true
            }
            _ => false,
        }
    }

    /// A call brought a readable reply.
    pub fn succeeded(&mut self, now: Monotonic) -> BreakerChange {
        self.answered = Some(now);
        match std::mem::replace(&mut self.state, BreakerState::Closed { failures: 0 }) {
            BreakerState::Closed { .. } => BreakerChange::None,
            BreakerState::Open { .. } | BreakerState::Probing { .. } => BreakerChange::Healed,
        }
    }

    /// A call brought no readable reply. `probe` is what [`Breaker::calling`] returned for it.
    pub fn failed(&mut self, probe: bool, now: Monotonic) -> BreakerChange {
        match self.state {
            BreakerState::Closed { failures } if failures + 1 < LIMIT || self.answers(now) => {
                self.state = BreakerState::Closed { failures: failures.saturating_add(1) };
                BreakerChange::None
            }
            BreakerState::Closed { .. } => {
                self.open(FIRST_PAUSE, now);
                BreakerChange::Opened
            }
            BreakerState::Probing { pause } if probe => {
                self.open((pause * 2).min(LONGEST_PAUSE), now);
                BreakerChange::None
            }
            // The call left before the breaker opened.
            BreakerState::Open { .. } | BreakerState::Probing { .. } => BreakerChange::None,
        }
    }

    /// Whether a call succeeded a short time ago.
    fn answers(&self, now: Monotonic) -> bool {
        self.answered.is_some_and(|answered| now.since(answered) < SILENCE)
    }

    fn open(&mut self, pause: Duration, now: Monotonic) {
        // xorshift64 (Marsaglia 2003) is good enough for jitter.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let quarter = pause.as_micros() as u64 / 4;
        let jitter = Duration::from_micros(self.random % (quarter + 1));
        self.state = BreakerState::Open { until: now + pause.saturating_sub(jitter), pause };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Monotonic {
        Monotonic::new(Duration::from_millis(ms))
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::new(7);
        for _ in 1..LIMIT {
            assert_eq!(breaker.failed(false, at(0)), BreakerChange::None);
            assert!(breaker.lets_through(at(0)));
        }
        assert_eq!(breaker.failed(false, at(0)), BreakerChange::Opened);
        breaker
    }

    #[test]
    fn five_failures_in_a_row_open_the_breaker() {
        let breaker = opened();
        assert!(!breaker.lets_through(at(180)));
        assert!(breaker.lets_through(at(250)));
    }

    #[test]
    fn success_between_failures_keeps_the_breaker_closed() {
        let mut breaker = Breaker::new(7);
        for s in 0..20 {
            for _ in 1..LIMIT {
                breaker.failed(false, at(s * 2_000));
            }
            assert_eq!(breaker.succeeded(at(s * 2_000)), BreakerChange::None);
        }
        assert!(breaker.lets_through(at(40_000)));
    }

    #[test]
    fn store_that_answered_within_a_second_is_not_given_up() {
        let mut breaker = Breaker::new(7);
        breaker.succeeded(at(100));
        for ms in 100..1_100 {
            assert_eq!(breaker.failed(false, at(ms)), BreakerChange::None, "{ms}");
        }
        assert_eq!(breaker.failed(false, at(1_100)), BreakerChange::Opened);
        assert!(breaker.calling(at(1_350)));
        assert_eq!(breaker.succeeded(at(1_350)), BreakerChange::Healed);
        assert_eq!(breaker.failed(false, at(1_351)), BreakerChange::None);
    }

    #[test]
    fn pauses_differ_between_workers() {
        for openings in [1, 2] {
            let mut pauses: Vec<_> = (0..100)
                .map(|seed| {
                    let mut breaker = Breaker::new(seed * 2 + 1);
                    for _ in 0..openings {
                        breaker.open(FIRST_PAUSE, at(0));
                    }
                    let BreakerState::Open { until, .. } = breaker.state else {
                        panic!("it is open")
                    };
                    until.since(at(0))
                })
                .collect();
            pauses.sort_unstable();
            assert!(pauses[99] <= FIRST_PAUSE && pauses[0] >= FIRST_PAUSE * 3 / 4);
            pauses.dedup();
            assert!(pauses.len() > 90, "{} pauses", pauses.len());
        }
    }

    #[test]
    fn one_probe_at_a_time_and_pauses_double_up_to_a_second() {
        let mut breaker = opened();
        let mut now = 0;
        for longest in [250, 500, 1000, 1000] {
            assert!(!breaker.lets_through(at(now + longest * 3 / 4 - 1)));
            now += longest;
            assert!(breaker.lets_through(at(now)));
            assert!(breaker.calling(at(now)));
            assert!(!breaker.lets_through(at(now + 5_000)), "a second probe");
            assert_eq!(breaker.failed(false, at(now)), BreakerChange::None);
            assert!(
                breaker.is_probing(),
                "a call from before it opened says nothing about the probe"
            );
            assert_eq!(breaker.failed(true, at(now)), BreakerChange::None);
        }
        assert!(breaker.calling(at(now + 1000)));
        assert_eq!(breaker.succeeded(at(now + 1000)), BreakerChange::Healed);
        assert!(breaker.lets_through(at(now + 1000)));
    }
}
