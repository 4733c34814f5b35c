//! The idle timeout of a connection, and the time that it has to fetch its answers.
//!
//! A caller that does not fetch its answer would hold memory and a call permit for ever. Each
//! connection has one timer, so that no call needs a timer of its own.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

/// The longest time from the connection to its first request.
const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// The idle timeout: from an answer until the whole head of the next request has arrived.
const IDLE: Duration = Duration::from_secs(60);
/// The longest time to fetch bytes of an answer. The server notices within twice that time.
const FETCH: Duration = Duration::from_secs(5);

/// What the server waits for on one connection.
pub struct Connection {
    state: Mutex<ConnectionState>,
    /// Holds a permit once the connection has made an HTTP/2 request.
    http2: Notify,
    /// Cancelled when others need what the connection holds.
    closed: CancellationToken,
}

struct ConnectionState {
    /// Requests that are being answered.
    under_way: usize,
    /// Whether there was one.
    has_requested: bool,
    /// Requests among them whose bodies have not arrived.
    arriving: usize,
    /// Since when there are some.
    arriving_since: Instant,
    /// When the next request must have arrived, unless one is under way.
    next_request: Instant,
    /// When each unfetched answer became ready, and a number that keeps equal times apart.
    unfetched: BTreeSet<(Instant, u64)>,
    number: u64,
}

/// A request that is being answered, until this is dropped.
pub struct Answering(Arc<Connection>);

/// A body that the server waits for, until this is dropped.
pub struct Arrival(Arc<Connection>);

/// Unfetched bytes of an answer, until this is dropped.
pub struct Unfetched {
    connection: Arc<Connection>,
    since: (Instant, u64),
}

impl Connection {
    /// A connection that was just made.
    pub fn new() -> Self {
        let now = Instant::now();
        let state = ConnectionState {
            under_way: 0,
            has_requested: false,
            arriving: 0,
            arriving_since: now,
            next_request: now + FIRST_REQUEST,
            unfetched: BTreeSet::new(),
            number: 0,
        };
        let closed = CancellationToken::new();
        Self { state: Mutex::new(state), http2: Notify::new(), closed }
    }

    /// Records that the connection speaks HTTP/2.
    pub fn speaks_http2(&self) {
        self.http2.notify_one();
    }

    /// Returns once the connection is known to speak HTTP/2. One task may wait.
    pub async fn http2(&self) {
        self.http2.notified().await;
    }

    /// Records a request. The server is answering it until the result is dropped.
    pub fn answering(self: &Arc<Self>) -> Answering {
        let mut state = self.state();
        state.under_way += 1;
        state.has_requested = true;
        drop(state);
        Answering(Arc::clone(self))
    }

    /// Records that the server waits for the body of a request until the result is dropped.
    pub fn arrival(self: &Arc<Self>) -> Arrival {
        let mut state = self.state();
        state.arriving += 1;
        if state.arriving == 1 {
            state.arriving_since = Instant::now();
        }
        drop(state);
        Arrival(Arc::clone(self))
    }

    /// Cancelled when the connection must be closed at once, because others need what it holds.
    pub const fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// The order in which connections are closed when there are too many: first those without any
    /// request, then those without one now, then those that keep the server waiting, each time the
    /// oldest first. `None` if the server works for the connection.
    pub fn dispensable(&self) -> Option<(u8, Instant)> {
        let state = self.state();
        if state.under_way == 0 {
            return Some((u8::from(state.has_requested), state.next_request));
        }
        let unfetched = state.unfetched.first().map(|&(since, _)| since);
        let since = unfetched.or_else(|| (state.arriving > 0).then_some(state.arriving_since));
        since.map(|since| (2, since))
    }

    /// Records that bytes of an answer are ready to be fetched.
    pub fn unfetched(self: &Arc<Self>) -> Unfetched {
        let mut state = self.state();
        state.number = state.number.wrapping_add(1);
        let since = (Instant::now(), state.number);
        state.unfetched.insert(since);
        Unfetched { connection: Arc::clone(self), since }
    }

    /// Returns when the connection has kept the server waiting for too long.
    pub async fn timed_out(&self) {
        loop {
            let now = Instant::now();
            let limit = self.state().limit();
            match limit {
                Some(limit) if limit <= now => return,
                limit => {
                    // There may be an unfetched answer by then.
                    let check = now + FETCH;
                    sleep_until(limit.map_or(check, |limit| limit.min(check)).into()).await;
                }
            }
        }
    }

    /// Nothing panics while the lock is held, so the content of a poisoned lock is intact.
    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionState {
    /// When the connection must be closed, if nothing changes.
    fn limit(&self) -> Option<Instant> {
        match self.unfetched.first() {
            Some(&(since, _)) => Some(since + FETCH),
            None => (self.under_way == 0).then_some(self.next_request),
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.under_way = state.under_way.saturating_sub(1);
        state.next_request = Instant::now() + IDLE;
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.arriving = state.arriving.saturating_sub(1);
    }
}

impl Drop for Unfetched {
    fn drop(&mut self) {
        let mut state = self.connection.state();
        state.unfetched.remove(&self.since);
        state.next_request = Instant::now() + IDLE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_for_which_the_server_does_not_work_are_closed_first() {
        let [silent, idle, slow, deaf, busy] = std::array::from_fn(|_| Arc::new(Connection::new()));
        drop(idle.answering());
        let (_slow, arrival) = (slow.answering(), slow.arrival());
        let (_deaf, _unfetched) = (deaf.answering(), deaf.unfetched());
        let _busy = busy.answering();
        let rank = |connection: &Connection| connection.dispensable().map(|(rank, _)| rank);
        assert_eq!(
            [&silent, &idle, &slow, &deaf, &busy].map(|connection| rank(connection)),
            [Some(0), Some(1), Some(2), Some(2), None]
        );
        drop(arrival);
        assert_eq!(rank(&slow), None);
    }

    #[test]
    fn connection_stays_open_while_it_makes_requests_and_fetches_answers() {
        let connection = Arc::new(Connection::new());
        let limit = || {
            let limit = connection.state().limit();
            limit.map(|limit| limit.saturating_duration_since(Instant::now()))
        };
        let about = |expected: Duration| {
            limit().is_some_and(|left| left <= expected && left + FETCH > expected)
        };
        assert!(about(FIRST_REQUEST));
        let (one, two) = (connection.answering(), connection.answering());
        assert_eq!(limit(), None, "it waits for the server");
        let old = connection.unfetched();
        let young = connection.unfetched();
        let since = |answer: &Unfetched| Some(answer.since.0 + FETCH);
        assert_eq!(connection.state().limit(), since(&old), "whatever else is under way");
        drop(one);
        drop(old);
        assert_eq!(connection.state().limit(), since(&young));
        drop(young);
        assert_eq!(limit(), None);
        drop(two);
        assert!(about(IDLE));
    }
}
