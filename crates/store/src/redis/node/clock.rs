//! A server's clock, predicted between its replies.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::RedisError;
use redis::aio::MultiplexedConnection;

/// The clock of a server, as last seen in its replies, run on by the local one. Before the first
/// reply it shows the local time.
///
/// Between replies it counts microseconds. With milliseconds, which is what replies say, it could
/// run ahead of the server by one: a call in the last moment of a window was then sent for the next
/// one, refused, and refused again because that window had begun meanwhile.
pub struct ServerClock {
    start: Instant,
    /// The server's time at `start`, in microseconds since the Unix epoch.
    at_start_us: AtomicI64,
}

impl ServerClock {
    /// A clock that starts now.
    pub fn new() -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), at_start_us: AtomicI64::new(micros(epoch)) }
    }

    /// The server's predicted time since the Unix epoch. It is not before the time of the last
    /// reply, and not after the server's own.
    pub fn now(&self) -> Duration {
        self.at(self.start.elapsed())
    }

    /// Learns the server's time from a reply that arrives now.
    pub fn observe(&self, now: Duration) {
        self.observe_at(self.start.elapsed(), now);
    }

    fn at(&self, elapsed: Duration) -> Duration {
        let now = micros(elapsed).saturating_add(self.at_start_us.load(Relaxed));
        Duration::from_micros(u64::try_from(now).unwrap_or_default())
    }

    fn observe_at(&self, elapsed: Duration, now: Duration) {
        self.at_start_us.store(micros(now).saturating_sub(micros(elapsed)), Relaxed);
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or_default()
}

/// Asks a server for its time.
///
/// # Errors
/// When no time came.
pub async fn read_clock(connection: &mut MultiplexedConnection) -> Result<Duration, RedisError> {
    let (seconds, micros): (u64, u32) = redis::cmd("TIME").query_async(connection).await?;
    Ok(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_is_between_the_last_reply_and_the_server() {
        let clock = ServerClock::new();
        // What a server whose clock began with the local one says in milliseconds.
        let reply = |at: Duration| Duration::from_millis(u64::try_from(at.as_millis()).unwrap());
        for seen in (5_000..7_000).step_by(90).map(Duration::from_micros) {
            clock.observe_at(seen, reply(seen));
            for passed in (0..3_000).step_by(70).map(Duration::from_micros) {
                let now = clock.at(seen + passed);
                assert!(
                    reply(seen) <= now && now <= seen + passed,
                    "{seen:?}, {passed:?}: {now:?}"
                );
            }
        }
    }
}
