//! How long a connection may say nothing, and leave its answers where they are.
//!
//! Whoever takes no answer would hold its memory, and its place among the calls under way, for ever. Each connection
//! is looked at now and then, so that no call costs a timer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep_until;

/// The longest that a connection may take to its first request.
const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// The longest that it may take from an answer to the next request, of which the whole head has arrived.
const IDLE: Duration = Duration::from_secs(60);
/// The longest that it may take to fetch an answer; noticed within twice that.
const FETCH: Duration = Duration::from_secs(5);

/// What a connection keeps the server waiting for.
pub struct Caller {
    state: Mutex<State>,
    /// Holds a permit once the connection made a request of HTTP/2.
    http2: Notify,
}

struct State {
    /// Requests that are being answered.
    under_way: usize,
    /// When it must have made its next request, unless one is under way.
    next_request: Instant,
    /// Since when there are answers that it has not fetched, and a number that keeps equal times apart.
    unfetched: BTreeSet<(Instant, u64)>,
    number: u64,
}

/// A request that is being answered, until it is dropped.
pub struct Turn(Arc<Caller>);

/// An answer that is not fetched, until it is dropped.
pub struct Unfetched {
    caller: Arc<Caller>,
    since: (Instant, u64),
}

impl Caller {
    /// A connection that was just made.
    pub fn new() -> Self {
        let next_request = Instant::now() + FIRST_REQUEST;
        let state = State { under_way: 0, next_request, unfetched: BTreeSet::new(), number: 0 };
        Self { state: Mutex::new(state), http2: Notify::new() }
    }

    /// It speaks HTTP/2.
    pub fn speaks_http2(&self) {
        self.http2.notify_one();
    }

    /// Returns once the connection is known to speak HTTP/2. One task may wait.
    pub async fn http2(&self) {
        self.http2.notified().await;
    }

    /// It has made a request.
    pub fn turn(self: &Arc<Self>) -> Turn {
        self.state().under_way += 1;
        Turn(Arc::clone(self))
    }

    /// There is an answer for it.
    pub fn unfetched(self: &Arc<Self>) -> Unfetched {
        let mut state = self.state();
        state.number = state.number.wrapping_add(1);
        let since = (Instant::now(), state.number);
        state.unfetched.insert(since);
        Unfetched { caller: Arc::clone(self), since }
    }

    /// Returns when the connection has kept the server waiting for too long.
    pub async fn outstays(&self) {
        loop {
            let now = Instant::now();
            let limit = self.state().limit();
            match limit {
                Some(limit) if limit <= now => return,
                limit => {
                    // An answer may be left meanwhile.
                    let look = now + FETCH;
                    sleep_until(limit.map_or(look, |limit| limit.min(look)).into()).await;
                }
            }
        }
    }

    /// No panic can happen while it is locked, so a poisoned lock guards nothing that is broken.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// When the connection is to be ended as things stand.
    fn limit(&self) -> Option<Instant> {
        match self.unfetched.first() {
            Some(&(since, _)) => Some(since + FETCH),
            None => (self.under_way == 0).then_some(self.next_request),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.under_way = state.under_way.saturating_sub(1);
        state.next_request = Instant::now() + IDLE;
    }
}

impl Drop for Unfetched {
    fn drop(&mut self) {
        let mut state = self.caller.state();
        state.unfetched.remove(&self.since);
        state.next_request = Instant::now() + IDLE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_waited_for_while_it_makes_requests_and_fetches_answers() {
        let caller = Arc::new(Caller::new());
        let limit = || {
            let limit = caller.state().limit();
            limit.map(|limit| limit.saturating_duration_since(Instant::now()))
        };
        let about =
            |expected: Duration| limit().is_some_and(|left| left <= expected && left + FETCH > expected);
        assert!(about(FIRST_REQUEST));
        let (one, two) = (caller.turn(), caller.turn());
        assert_eq!(limit(), None, "it waits for the server");
        let old = caller.unfetched();
        let young = caller.unfetched();
        let since = |answer: &Unfetched| Some(answer.since.0 + FETCH);
        assert_eq!(caller.state().limit(), since(&old), "whatever else is under way");
        drop(one);
        drop(old);
        assert_eq!(caller.state().limit(), since(&young));
        drop(young);
        assert_eq!(limit(), None);
        drop(two);
        assert!(about(IDLE));
    }
}
