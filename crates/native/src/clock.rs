//! The clock of all shards.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use quotagate_quota::response::Now;
use quotagate_quota::time::Monotonic;

/// The time for workers.
pub fn now() -> Monotonic {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    Monotonic::new(ORIGIN.get_or_init(Instant::now).elapsed())
}

/// The time for response headers.
pub fn response_time() -> Now {
    let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Now { monotonic: now(), epoch }
}

/// A moment, in milliseconds.
pub fn millis(moment: Monotonic) -> u64 {
    millis_of(moment.since(Monotonic::default()))
}

/// A length of time, in milliseconds.
pub fn millis_of(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
