//! Slots: what running requests hold of counters whose policies have `in_flight`.
//!
//! | part | owns |
//! | --- | --- |
//! | `pool` | the slots of one counter, and the requests that want some |
//! | `messages` | what the worker says of its slots, and what becomes of the answers |
//! | `requests` | requests from their arrival until they hold the slots of all their policies |
//!
//! A request takes the slots of all its policies first, and then the units of its quotas. If it is
//! not admitted, its slots are free at once. An admitted request holds them until its stream ends.
//!
//! The store sums what workers say that they hold. A worker says it when requests want slots, when
//! slots become free, and every 3 s. At most one message of a counter is under way, so a worker's
//! messages arrive in their order or are stale.

mod messages;
mod pool;
mod requests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use super::{MAX_WAITING, Ticket};
use crate::config::Config;
use crate::time::Monotonic;
use pool::SlotPool;
use requests::SlotWaiter;

/// Most counters whose slots a worker holds. Beyond that, `on_failure` decides.
const MAX_POOLS: usize = 64 * 1024;
/// Most requests that wait for slots of one counter, so that one partition does not take the room
/// of all others.
pub(super) const MAX_QUEUED: usize = MAX_WAITING / 2;
/// Most requests that wait for slots of one counter behind one that the store found too few slots
/// for.
pub(super) const MAX_QUEUED_BEHIND: usize = MAX_WAITING / 4;

/// The slots of a worker.
#[derive(Clone, Debug)]
pub(super) struct Slots<W> {
    pools: HashMap<Arc<str>, SlotPool>,
    /// When the next message of each counter is due.
    agenda: BTreeSet<(Monotonic, Arc<str>)>,
    /// Counters with a request that no message has carried and that none before it holds up. Their
    /// next message is due.
    fresh: BTreeSet<Arc<str>>,
    /// Requests that want slots.
    waiting: BTreeMap<Ticket, SlotWaiter<W>>,
    /// When these are decided at the latest.
    deadlines: BTreeSet<(Monotonic, Ticket)>,
    /// Requests that hold their slots and wait for units: the ticket that their host knows, and the
    /// one under which they wait.
    moved: BTreeMap<Ticket, Ticket>,
    /// Counters with slots that became free while others are served.
    freed: VecDeque<Arc<str>>,
    is_serving: bool,
    /// Distinguishes this worker from its predecessors, which held other slots.
    life: u64,
    /// The name that the store knows it by.
    name: Option<Arc<str>>,
    /// When counters that are over are looked for again.
    sweep_at: Monotonic,
}

impl<W> Slots<W> {
    /// No slots. `life` differs between workers, and between a worker and its successor.
    pub(super) fn new(life: u64) -> Self {
        Self {
            pools: HashMap::new(),
            agenda: BTreeSet::new(),
            fresh: BTreeSet::new(),
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            moved: BTreeMap::new(),
            freed: VecDeque::new(),
            is_serving: false,
            life,
            name: None,
            sweep_at: Monotonic::default(),
        }
    }

    /// Whether nothing is held, and no request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.pools.is_empty() && self.waiting.is_empty()
    }

    /// Whether a request waits that no message has carried.
    #[cfg(test)]
    pub(super) fn has_unasked_requests(&self) -> bool {
        self.pools.values().any(|pool| pool.queue.iter().any(|queued| !queued.asked))
    }

    /// Another document replaces this configuration, under which all requests that wait arrived.
    pub(super) fn arrived_under(&mut self, config: &Arc<Config>) {
        for waiter in self.waiting.values_mut() {
            waiter.arrived_under.get_or_insert_with(|| Arc::clone(config));
        }
    }

    /// The slots of a counter. `None` if there are too many counters.
    fn pool(&mut self, key: &Arc<str>) -> Option<&mut SlotPool> {
        if self.pools.len() >= MAX_POOLS && !self.pools.contains_key(key) {
            return None;
        }
        let seed = self.life.wrapping_add(self.pools.len() as u64);
        Some(self.pools.entry(Arc::clone(key)).or_insert_with(|| SlotPool::new(seed)))
    }

    /// Something has changed: puts the next message of the counter on the agenda, or forgets it.
    fn reschedule(&mut self, key: &Arc<str>, now: Monotonic) {
        let Some(pool) = self.pools.get_mut(key) else { return };
        if let Some(due) = pool.due.take() {
            self.agenda.remove(&(due, Arc::clone(key)));
            self.fresh.remove(key);
        }
        if pool.is_over(now) {
            self.pools.remove(key);
        } else if let Some(due) = pool.next_due(now) {
            pool.due = Some(due);
            self.agenda.insert((due, Arc::clone(key)));
            // If the next message is due later, no request is fresh: one would make it due at once.
            if due <= now && pool.has_fresh_requests(now) {
                self.fresh.insert(Arc::clone(key));
            }
        }
    }

    /// Takes out a request that waits. It does not want any slots any more.
    fn take_waiter(&mut self, ticket: Ticket, now: Monotonic) -> Option<SlotWaiter<W>> {
        let waiter = self.waiting.remove(&ticket)?;
        self.deadlines.remove(&(waiter.deadline, ticket));
        for key in waiter.open() {
            if let Some(pool) = self.pools.get_mut(key) {
                pool.leaves(ticket);
                // Those behind it may go on.
                self.freed.push_back(Arc::clone(key));
            }
            self.reschedule(key, now);
        }
        Some(waiter)
    }
}
