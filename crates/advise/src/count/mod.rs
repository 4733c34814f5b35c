//! Counts by user and window, shared by all threads: the users in 64 shards, each behind a lock of
//! its own.

mod shard;
mod sums;
mod taken;
mod tally;
mod top;

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

pub(crate) use self::shard::Result as Counted;
pub(crate) use self::taken::Taken;
pub(crate) use self::tally::Tally;
pub(crate) use self::top::Taker;

use self::shard::Shard;

/// Shards of the users.
const SHARDS: usize = 64;

/// The units of all users in all windows.
pub(crate) struct Counts {
    shards: Vec<Mutex<Shard>>,
    /// Counts of windows that were closed to save memory.
    closed: Mutex<Tally>,
    pressed: AtomicBool,
    top: usize,
}

/// Requests that one thread has read and not yet counted, by shard.
pub(crate) struct Batch(Vec<ShardBatch>);

#[derive(Default)]
struct ShardBatch {
    taken: Vec<Taken>,
    /// The name of each user; empty if names are not needed.
    names: Vec<Rc<[u8]>>,
}

impl Counts {
    /// Tables of `budget` bytes at most, and the names of the `top` users with the largest windows.
    /// Each window counts together with the `reach` windows before it.
    pub(crate) fn new(budget: usize, top: usize, reach: u32) -> Self {
        let shard = || Mutex::new(Shard::new(budget / SHARDS, top, reach));
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            closed: Mutex::default(),
            pressed: AtomicBool::new(false),
            top,
        }
    }

    /// Counts a batch and empties it. No more lines are expected for windows below `open`.
    pub(crate) fn add(&self, batch: &mut Batch, open: u32) {
        for (shard, part) in self.shards.iter().zip(&mut batch.0) {
            if part.taken.is_empty() {
                continue;
            }
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let mut pressed = false;
            let mut names = part.names.drain(..);
            for taken in part.taken.drain(..) {
                let name = names.next();
                pressed |=
                    shard.add(taken, name.as_deref().unwrap_or_default(), open, &self.closed);
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

    /// Whether the names of users are needed.
    pub(crate) fn wants_names(&self) -> bool {
        self.top > 0
    }

    /// Closes all windows on this many threads. Also tallies all users but the first `but` with the
    /// largest windows.
    pub(crate) fn finish(self, threads: usize, but: usize) -> Counted {
        let mut top = Vec::new();
        let mut parts: Vec<Vec<Shard>> = (0..threads.max(1)).map(|_| Vec::new()).collect();
        for (index, shard) in self.shards.into_iter().enumerate() {
            let mut shard = shard.into_inner().unwrap_or_else(PoisonError::into_inner);
            top.extend(shard.take_top());
            let part = index % parts.len();
            if let Some(part) = parts.get_mut(part) {
                part.push(shard);
            }
        }
        let top = top::first(top, self.top);
        let but: HashSet<u64> = top.iter().take(but).map(|taker| taker.user).collect();
        let finished = thread::scope(|scope| {
            let start = |part| scope.spawn(|| gather(part, &but));
            let handles: Vec<_> = parts.into_iter().map(start).collect();
            // A thread panics only on a bug; its counts are dropped.
            handles.into_iter().filter_map(|handle| handle.join().ok()).collect::<Vec<_>>()
        });
        let closed = self.closed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let without = (!but.is_empty()).then(shard::Without::default);
        let mut all = Counted { windows: closed, top, without, ..Counted::default() };
        for part in finished {
            all.merge(&part);
            all.sampled.extend(part.sampled);
        }
        all
    }
}

fn gather(part: Vec<Shard>, but: &HashSet<u64>) -> Counted {
    let without = (!but.is_empty()).then(shard::Without::default);
    let mut all = Counted { without, ..Counted::default() };
    for shard in part {
        let one = shard.finish(but);
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
        self.without = self.without.take().zip(other.without.as_ref()).map(|(mut all, other)| {
            all.windows.merge(&other.windows);
            all.users.merge(&other.users);
            all
        });
    }
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self((0..SHARDS).map(|_| ShardBatch::default()).collect())
    }

    /// Adds units to the shard of the user.
    pub(crate) fn push(&mut self, taken: Taken, name: Option<Rc<[u8]>>) {
        let part = usize::try_from(taken.user >> 58).unwrap_or_default();
        if let Some(part) = self.0.get_mut(part) {
            part.taken.push(taken);
            part.names.extend(name);
        }
    }
}
