//! The fate of calls on their way.

use std::time::Duration;

use anyhow::{Result, anyhow};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, LogNormal};

use crate::setup::{self, TIMEOUT};

/// Draws the fate of calls.
pub struct Network {
    random: Xoshiro256PlusPlus,
    setup: setup::NetworkSetup,
    round_trip: LogNormal<f64>,
}

/// The fate of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// The time from dispatch until the store gets it; `None` if it never does.
    pub arrives: Option<Duration>,
    /// The time from dispatch until its caller gets an outcome.
    pub ends: End,
}

/// The outcome for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The reply.
    Reply(Duration),
    /// A timeout. A reply that comes later is dropped, with its grants.
    Timeout(Duration),
}

impl Network {
    /// A network with its own random draws, so that it does not change the traffic.
    ///
    /// # Errors
    /// When the round trip or the spread is impossible.
    pub fn new(setup: setup::NetworkSetup, seed: u64) -> Result<Self> {
        let median = setup.round_trip.as_secs_f64();
        let round_trip = LogNormal::new(median.ln(), setup.sigma)
            .map_err(|e| anyhow!("a round trip of {median} s with sigma {}: {e}", setup.sigma))?;
        Ok(Self {
            random: Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x6e65_7477_6f72_6b21),
            setup,
            round_trip,
        })
    }

    /// Draws the fate of a call whose caller waits for `timeout`.
    pub fn call(&mut self, timeout: Duration) -> Fate {
        let mut round_trip = Duration::from_secs_f64(self.round_trip.sample(&mut self.random));
        if let Some(slow) = self.setup.slow.filter(|_| self.random.random_bool(0.01)) {
            round_trip = slow;
        }
        let (there, back) = (self.message(round_trip / 2), self.message(round_trip / 2));
        let ends = match there.zip(back).map(|(there, back)| there + back) {
            Some(reply) if reply < timeout => End::Reply(reply),
            _ => End::Timeout(timeout),
        };
        Fate { arrives: there, ends }
    }

    fn message(&mut self, delay: Duration) -> Option<Duration> {
        if self.random.random_bool(self.setup.lost) {
            return None;
        }
        if self.random.random_bool(self.setup.late) {
            return Some(TIMEOUT.mul_f64(self.random.random_range(1.0..4.0)));
        }
        Some(delay)
    }
}
