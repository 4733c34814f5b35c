//! How long load runs around a fault, how often the fault comes, and the seed of all random draws.

use std::time::Duration;

/// One plan for all faults.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Load before the first fault.
    pub before: Duration,
    /// How long a fault lasts if it has no length of its own.
    pub during: Duration,
    /// Load after each fault.
    pub after: Duration,
    /// How often the same fault comes: growth shows between two equal rounds.
    pub rounds: u32,
    /// Requests of an experiment that sends as fast as it can.
    pub burst: usize,
    /// The same seed draws the same moments and victims.
    pub seed: u64,
    /// How much longer than its bound recovery or an answer may take, because other tests make the
    /// machine slow.
    pub slack: Duration,
    /// Of the requests sent after recovery, one in so many may fail: on a busy machine a call can
    /// be late, with all requests that wait for it. One worker of four that has not recovered fails
    /// one in four.
    pub strays: usize,
    /// Of the requests that a fault must not affect, fewer than one in so many may be lost.
    pub spared: usize,
    /// At least one in so many requests of a run must be decided by its quota.
    pub decided: usize,
}

impl Plan {
    /// The plan of the report: two rounds, with so many seconds each before, during and after the
    /// fault.
    #[must_use]
    pub fn long(seconds: u32, seed: u64) -> Self {
        let length = Duration::from_secs(seconds.into());
        Self {
            before: length,
            during: length,
            after: length,
            rounds: 2,
            burst: 20_000,
            seed,
            slack: Duration::ZERO,
            strays: 20,
            spared: 100,
            decided: 2,
        }
    }

    /// The plan of the tests: one round of a few seconds.
    #[must_use]
    pub fn short(seed: u64) -> Self {
        Self {
            before: Duration::from_secs(1),
            during: Duration::from_secs(1),
            after: Duration::from_secs(5),
            rounds: 1,
            burst: 2_000,
            seed,
            slack: Duration::from_secs(1),
            // Tests run beside others. One decided request shows that the filter called the store.
            strays: 5,
            spared: 20,
            decided: usize::MAX,
        }
    }
}
