//! The requests whose bodies are read for their cost, and how long each is waited for.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::exchange::READS_REQUEST_FOR;
use crate::time::Monotonic;

/// A small buffer for a request in Envoy, in bytes. A client that has sent as much and then sends
/// nothing more may have been stopped because the buffer is full. With smaller buffers, a request
/// still waits for the whole of [`READS_REQUEST_FOR`].
const SMALL_BUFFER: usize = 16 * 1024;
/// How long nothing more may come of such a body: longer than it takes to send a lost packet again.
const SILENCE: Duration = Duration::from_millis(500);

/// These requests, by the id of their stream. The host has at most as many as streams.
#[derive(Clone, Debug)]
pub(super) struct Bodies<K, W>(BTreeMap<K, (Patience, W)>);

impl<K, W> Default for Bodies<K, W> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, W> Bodies<K, W> {
    /// A body is read from now on.
    pub(super) fn begin(&mut self, id: K, who: W, now: Monotonic) {
        self.0.insert(id, (Patience::new(now), who));
    }

    /// A piece of a body has come.
    pub(super) fn came(&mut self, id: &K, bytes: usize, now: Monotonic) {
        if let Some((patience, _)) = self.0.get_mut(id) {
            patience.came(bytes, now);
        }
    }

    /// A body is not read any more.
    pub(super) fn end(&mut self, id: &K) {
        self.0.remove(id);
    }

    /// Whether none is read.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this one takes too long.
    pub(super) fn is_late(&self, id: &K, now: Monotonic) -> bool {
        self.0.get(id).is_some_and(|(patience, _)| patience.is_over(now))
    }

    /// Those that take too long.
    pub(super) fn late(&self, now: Monotonic) -> impl Iterator<Item = &W> {
        self.0.values().filter(move |(patience, _)| patience.is_over(now)).map(|(_, who)| who)
    }
}

/// How long a body is waited for, where a host does not say that its buffer is full.
#[derive(Clone, Copy, Debug)]
struct Patience {
    since: Monotonic,
    last: Monotonic,
    bytes: usize,
}

impl Patience {
    /// The body is read from now on.
    const fn new(now: Monotonic) -> Self {
        Self { since: now, last: now, bytes: 0 }
    }

    /// A piece of this many bytes has come.
    const fn came(&mut self, bytes: usize, now: Monotonic) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.last = now;
    }

    /// Whether the request is decided without the rest.
    fn is_over(&self, now: Monotonic) -> bool {
        now.since(self.since) >= READS_REQUEST_FOR
            || (self.bytes >= SMALL_BUFFER && now.since(self.last) >= SILENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_ends_only_the_wait_for_a_body_that_may_fill_a_buffer() {
        let at = |ms| Monotonic::new(Duration::from_millis(ms));
        let mut patience = Patience::new(at(100));
        patience.came(SMALL_BUFFER - 1, at(200));
        assert!(!patience.is_over(at(1099)) && patience.is_over(at(1100)));
        patience.came(1, at(300));
        assert!(!patience.is_over(at(799)) && patience.is_over(at(800)));
        patience.came(1, at(500));
        assert!(!patience.is_over(at(999)) && patience.is_over(at(1000)));
    }
}
