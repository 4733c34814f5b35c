//! Monotonic time as an argument.

use std::ops::Add;
use std::time::Duration;

/// A moment on the caller's monotonic clock, counted from an origin of the caller's choice. Later
/// moments than 584 years after it are the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic {
    /// Nanoseconds, because requests compare moments more often than they make them.
    since_origin: u64,
}

impl Monotonic {
    /// The moment `since_origin` after the caller's origin.
    pub const fn new(since_origin: Duration) -> Self {
        Self { since_origin: nanos(since_origin) }
    }

    /// How long after `earlier` this is; zero if it is not.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.since_origin.saturating_sub(earlier.since_origin))
    }
}

impl Add<Duration> for Monotonic {
    type Output = Self;

    fn add(self, length: Duration) -> Self {
        Self { since_origin: self.since_origin.saturating_add(nanos(length)) }
    }
}

const fn nanos(length: Duration) -> u64 {
    length.as_secs().saturating_mul(1_000_000_000).saturating_add(length.subsec_nanos() as u64)
}
