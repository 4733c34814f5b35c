//! A server's clock, predicted between its replies.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::RedisError;
use redis::aio::MultiplexedConnection;

/// The clock of a server, as last seen in its replies, run on by the local one. Before the first
/// reply it shows the local time.
pub struct ServerClock {
    start: Instant,
    /// The server's time at `start`, in milliseconds since the Unix epoch.
    at_start_ms: AtomicI64,
}

impl ServerClock {
    /// A clock that starts now.
    pub fn new() -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_start_ms = AtomicI64::new(i64::try_from(epoch.as_millis()).unwrap_or_default());
        Self { start: Instant::now(), at_start_ms }
    }

    /// The server's predicted time since the Unix epoch.
    pub fn now(&self) -> Duration {
        let now = self.elapsed_ms().saturating_add(self.at_start_ms.load(Relaxed));
        Duration::from_millis(u64::try_from(now).unwrap_or_default())
    }

    /// Learns the server's time from a reply that arrives now.
    pub fn observe(&self, now: Duration) {
        let server_ms = i64::try_from(now.as_millis()).unwrap_or_default();
        self.at_start_ms.store(server_ms.saturating_sub(self.elapsed_ms()), Relaxed);
    }

    fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.start.elapsed().as_millis()).unwrap_or_default()
    }
}

/// Asks a server for its time.
///
/// # Errors
/// When no time came.
pub async fn read_clock(connection: &mut MultiplexedConnection) -> Result<Duration, RedisError> {
    let (seconds, micros): (u64, u32) = redis::cmd("TIME").query_async(connection).await?;
    Ok(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros.into())))
}
