//! Counts by user and window, shared by all threads: the users in 64 parts, each behind a lock of its own.

mod shard;
mod tally;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

pub(crate) use self::shard::{Result as Counted, Taken};
pub(crate) use self::tally::Tally;

use self::shard::Shard;

/// Parts of the users.
const SHARDS: usize = 64;

/// What all users took.
pub(crate) struct Counts {
    shards: Vec<Mutex<Shard>>,
    /// Counts of windows that were closed to save memory.
    closed: Mutex<Tally>,
    pressed: AtomicBool,
}

/// What one thread has read and not yet handed over, by part.
pub(crate) struct Batch(Vec<Vec<Taken>>);

impl Counts {
    /// Tables of at most this many bytes in all.
    pub(crate) fn new(budget: usize) -> Self {
        let shard = || Mutex::new(Shard::new(budget / SHARDS));
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            closed: Mutex::default(),
            pressed: AtomicBool::new(false),
        }
    }

    /// Counts a batch, and empties it. No line is expected any more for windows below `open`.
    pub(crate) fn add(&self, batch: &mut Batch, open: u32) {
        for (shard, taken) in self.shards.iter().zip(&mut batch.0) {
            if taken.is_empty() {
                continue;
            }
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let mut pressed = false;
            for taken in taken.drain(..) {
                pressed |= shard.add(taken, open, &self.closed);
            }
            if pressed {
                self.pressed.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether memory was scarce.
    pub(crate) fn pressed(&self) -> bool {
        self.pressed.load(Ordering::Relaxed)
    }

    /// All windows closed, with so many threads.
    pub(crate) fn finish(self, threads: usize) -> Counted {
        let mut parts: Vec<Vec<Shard>> = (0..threads.max(1)).map(|_| Vec::new()).collect();
        for (place, shard) in self.shards.into_iter().enumerate() {
            let shard = shard.into_inner().unwrap_or_else(PoisonError::into_inner);
            let part = place % parts.len();
            if let Some(part) = parts.get_mut(part) {
                part.push(shard);
            }
        }
        let finished = thread::scope(|scope| {
            let handles: Vec<_> = parts.into_iter().map(|part| scope.spawn(|| gather(part))).collect();
            // A thread that panicked is a fault of ours; nothing of it is kept.
            handles.into_iter().filter_map(|handle| handle.join().ok()).collect::<Vec<_>>()
        });
        let closed = self.closed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut all = Counted { windows: closed, ..Counted::default() };
        for part in finished {
            all.merge(&part);
            all.sampled.extend(part.sampled);
        }
        all
    }
}

fn gather(part: Vec<Shard>) -> Counted {
    let mut all = Counted::default();
    for shard in part {
        let one = shard.finish();
        all.merge(&one);
        all.sampled.extend(one.sampled);
    }
    all
}

impl Counted {
    fn merge(&mut self, other: &Self) {
        self.windows.merge(&other.windows);
        self.users.merge(&other.users);
        self.kept += other.kept;
        self.level = self.level.max(other.level);
        self.late += other.late;
    }
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self((0..SHARDS).map(|_| Vec::new()).collect())
    }

    /// Keeps it for the part that the user belongs to.
    pub(crate) fn push(&mut self, taken: Taken) {
        let part = usize::try_from(taken.user >> 58).unwrap_or_default();
        if let Some(part) = self.0.get_mut(part) {
            part.push(taken);
        }
    }
}
