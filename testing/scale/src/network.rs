//! What becomes of a call on its way.

use std::time::Duration;

use anyhow::{Result, anyhow};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, LogNormal};

use crate::setup::{self, TIMEOUT};

/// Draws what becomes of calls.
pub struct Network {
    random: Xoshiro256PlusPlus,
    setup: setup::Network,
    round_trip: LogNormal<f64>,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// When the store gets it, from its dispatch; `None`: never.
    pub arrives: Option<Duration>,
    /// When its caller hears of it, from its dispatch.
    pub ends: End,
}

/// What a caller hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The reply.
    Reply(Duration),
    /// That the time is over; a reply that comes later is dropped, with what it grants.
    Timeout(Duration),
}

impl Network {
    /// A network with draws of its own, which do not change the traffic's.
    ///
    /// # Errors
    /// A round trip or a spread that there cannot be.
    pub fn new(setup: setup::Network, seed: u64) -> Result<Self> {
        let median = setup.round_trip.as_secs_f64();
        let round_trip = LogNormal::new(median.ln(), setup.sigma)
            .map_err(|e| anyhow!("a round trip of {median} s with sigma {}: {e}", setup.sigma))?;
        Ok(Self {
            random: Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x6e65_7477_6f72_6b21),
            setup,
            round_trip,
        })
    }

    /// What becomes of a call whose caller waits for `timeout`.
    pub fn call(&mut self, timeout: Duration) -> Fate {
        let round_trip = Duration::from_secs_f64(self.round_trip.sample(&mut self.random));
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
