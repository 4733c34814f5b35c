//! The requests of one Envoy worker whose bodies are read for their cost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quotagate_quota::exchange::READS_REQUEST_FOR;
use quotagate_quota::time::Monotonic;

use crate::stream::Stream;

/// These requests, by their number, and since when they are read. Its lock is taken before that of
/// a stream's scheduler, and after all others of a shard.
#[derive(Default)]
pub struct Bodies(Mutex<BTreeMap<u64, (Monotonic, Arc<Stream>)>>);

impl Bodies {
    /// A body is read from now on.
    pub fn begin(&self, stream: &Arc<Stream>, now: Monotonic) {
        self.lock().insert(stream.number(), (now, Arc::clone(stream)));
    }

    /// A body is not read any more.
    pub fn end(&self, stream: &Stream) {
        self.lock().remove(&stream.number());
    }

    /// Whether none is read.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Whether this one takes too long.
    pub fn is_late(&self, stream: &Stream, now: Monotonic) -> bool {
        self.lock().get(&stream.number()).is_some_and(|(since, _)| late(*since, now))
    }

    /// Wakes the streams whose bodies take too long. Forgets those that Envoy has destroyed.
    pub fn wake_late(&self, now: Monotonic) {
        self.lock().retain(|_, (since, stream)| !late(*since, now) || stream.wake());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (Monotonic, Arc<Stream>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn late(since: Monotonic, now: Monotonic) -> bool {
    now.since(since) >= READS_REQUEST_FOR
}
