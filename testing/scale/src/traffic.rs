//! The requests: for which partition, through which proxy and when.

use std::num::NonZeroU64;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use quotagate_protocol::{Fixed, Mode};
use quotagate_quota::evaluate::{Check, Counter};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp, Zipf};

use crate::setup::{Fleet, Setup, Spread};

const BEFORE: &str = "scale:per-caller:{jwt.sub=";

/// The requests of a fleet, one after another.
pub struct Traffic {
    random: Xoshiro256PlusPlus,
    fleet: Fleet,
    gap: Exp<f64>,
    /// Requests that still arrive at the moment of the previous one.
    at_once: u32,
    rank: Zipf<f64>,
    quota: u64,
    window: Fixed,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The proxy that gets it.
    pub proxy: usize,
    /// The partition that it counts for: the rank minus one.
    pub partition: usize,
}

impl Traffic {
    /// The traffic of a run.
    ///
    /// # Errors
    /// When the rate or the exponent is impossible.
    pub fn new(setup: &Setup, window: Fixed) -> Result<Self> {
        let fleet = setup.fleet;
        Ok(Self {
            random: Xoshiro256PlusPlus::seed_from_u64(setup.seed),
            fleet,
            gap: Exp::new(fleet.rate / f64::from(fleet.together.get()))
                .map_err(|e| anyhow!("the rate {}: {e}", fleet.rate))?,
            at_once: 0,
            rank: Zipf::new(fleet.partitions.get().into(), fleet.zipf)
                .map_err(|e| anyhow!("the exponent {}: {e}", fleet.zipf))?,
            quota: setup.quota,
            window,
        })
    }

    /// The time from the previous request to the next one, and the next one.
    pub fn draw(&mut self) -> (Duration, Request) {
        let gap = if let Some(rest) = self.at_once.checked_sub(1) {
            self.at_once = rest;
            Duration::ZERO
        } else {
            self.at_once = self.fleet.together.get() - 1;
            Duration::from_secs_f64(self.gap.sample(&mut self.random))
        };
        // The distribution is over the whole numbers from 1.
        let partition = self.rank.sample(&mut self.random) as usize - 1;
        let proxies = self.fleet.proxies.get();
        let proxy = match self.fleet.spread {
            Spread::All => self.random.random_range(0..proxies) as usize,
            Spread::Few(few) => {
                let index = self.random.random_range(0..few.get()) as usize;
                (scattered(partition) + index) % proxies as usize
            }
        };
        (gap, Request { proxy, partition })
    }

    /// What the filter would ask its worker for this request. Made anew for each, as from a real
    /// request.
    pub fn check(&self, partition: usize) -> Check {
        let key = format!("{BEFORE}{partition:010}}}").into();
        let counter = Counter { key, quota: self.quota, window: self.window.into() };
        Check { policy: 0, counter, cost: NonZeroU64::MIN, mode: Mode::Enforce }
    }
}

/// The partition that a key names.
///
/// # Errors
/// When the key does not come from [`Traffic::check`].
pub fn partition_of(key: &str) -> Result<usize> {
    let digits = key.strip_prefix(BEFORE).and_then(|rest| rest.strip_suffix('}'));
    digits
        .and_then(|digits| digits.parse().ok())
        .with_context(|| format!("no key of this fleet: {key}"))
}

/// A number below 2^32 that does not reveal the partition's rank (Knuth's multiplicative hashing).
fn scattered(partition: usize) -> usize {
    (partition as u32).wrapping_mul(2_654_435_761) as usize
}
