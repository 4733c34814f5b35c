//! What a worker says of its slots, and what becomes of the answers.

use std::sync::Arc;

use quotagate_protocol::{Grant, MAX_ITEMS, MAX_WORKER, Reservation};

use super::Slots;
use super::pool::EARLY;
use crate::decision::HeldSlots;
use crate::time::Monotonic;
use crate::worker::call::Batch;
use crate::worker::call::faults::CallOutcome;
use crate::worker::{GATHER, Worker};

impl<W> Slots<W> {
    /// Whether a message is due.
    fn is_due(&self, now: Monotonic) -> bool {
        self.agenda.first().is_some_and(|(due, _)| *due <= now)
    }
}

impl<W> Worker<W> {
    /// Whether a call that leaves now says something of slots.
    pub(in crate::worker) fn slots_may_join(&self, now: Monotonic) -> bool {
        self.slots.is_due(now) && self.calls.breaker.lets_through(now)
    }

    /// Whether a call leaves now for what is to be said of slots. Messages gather, as requests do,
    /// while another call that says something of slots is under way. A message with a request that
    /// none has carried yet gathers only while a call that asks for slots is under way: otherwise
    /// each end of a stream would delay the next request.
    pub(in crate::worker) fn slots_are_due(&self, now: Monotonic) -> bool {
        let gathers = GATHER.min(self.config.store.timeout / 4);
        let is_behind = |such| self.calls.has_young_call(gathers, such, now);
        let has_fresh_requests = !self.slots.fresh.is_empty();
        self.slots_may_join(now)
            && (!is_behind(Batch::says_slots)
                || has_fresh_requests && !is_behind(Batch::asks_for_slots))
    }

    /// Adds to a call what is due, as far as there is room beside `others` items.
    pub(in crate::worker) fn say_slots(
        &mut self,
        batch: &mut Batch,
        others: usize,
        now: Monotonic,
    ) {
        let name = self.slots_name();
        let soon = now + EARLY;
        let agenda = self.slots.agenda.iter().take_while(|(due, _)| *due <= soon);
        let keys: Vec<Arc<str>> = agenda.take(MAX_ITEMS).map(|(_, key)| Arc::clone(key)).collect();
        for key in keys {
            if !batch.has_room_for_slots(&key, others) {
                return;
            }
            let serial = self.next_serial();
            if let Some(pool) = self.slots.pools.get_mut(&key)
                && !pool.is_over(now)
                && (pool.next_due(now).is_some_and(|due| due <= now) || pool.may_beat_early(now))
            {
                batch.say(pool.message(&key, &name, serial, now));
            }
            self.slots.reschedule(&key, now);
        }
    }

    /// The name of this worker: its process, its index there, and what differs for each start.
    fn slots_name(&mut self) -> Arc<str> {
        if let Some(name) = &self.slots.name {
            return Arc::clone(name);
        }
        let allowed = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let process: String = self.config.process.chars().filter(allowed).take(16).collect();
        let mut name = format!("{process:0>16}.{}.{:x}", self.index, self.slots.life);
        name.truncate(MAX_WORKER);
        let name: Arc<str> = name.into();
        self.slots.name = Some(Arc::clone(&name));
        name
    }

    /// A call returned with these grants.
    pub(in crate::worker) fn slots_answered(
        &mut self,
        said: Vec<Reservation>,
        grants: Vec<Result<Grant, String>>,
        now: Monotonic,
    ) {
        let timeout = self.config.store.timeout;
        for (Reservation { key, .. }, grant) in said.into_iter().zip(grants) {
            if let Err(why) = &grant {
                let secret = self.config.store.reach.token();
                self.telemetry.count_call(CallOutcome::ItemFailed);
                self.telemetry.notices.item_failed(&key, why, secret, now);
            }
            let Some(pool) = self.slots.pools.get_mut(&key) else { continue };
            let served = match grant {
                Ok(grant) => pool.answered(&grant, timeout, now),
                Err(_) => pool.failed(timeout, now),
            };
            self.slots.reschedule(&key, now);
            self.served(&key, served, now);
        }
    }

    /// A call failed.
    pub(in crate::worker) fn slots_failed(&mut self, said: Vec<Reservation>, now: Monotonic) {
        for Reservation { key, .. } in said {
            let Some(pool) = self.slots.pools.get_mut(&key) else { continue };
            let served = pool.failed(self.config.store.timeout, now);
            self.slots.reschedule(&key, now);
            self.served(&key, served, now);
        }
    }

    /// Slots of a request whose stream has ended, or that will not run, are free. Pass each
    /// [`HeldSlots`] only once.
    pub fn free(&mut self, slots: HeldSlots, now: Monotonic) {
        if slots.is_empty() {
            return;
        }
        for held in slots.iter().filter(|held| held.worker == self.slots.life) {
            if let Some(pool) = self.slots.pools.get_mut(&held.key) {
                pool.free(held.units, held.since);
                self.slots.freed.push_back(Arc::clone(&held.key));
            }
        }
        self.serve_freed(now);
    }

    /// Gives slots that became free to requests that wait. A request that gets some may free
    /// others: that does not begin anew here, so that a long queue needs no deep stack.
    #[inline]
    pub(in crate::worker) fn serve_freed(&mut self, now: Monotonic) {
        if !self.slots.freed.is_empty() {
            self.serve_all_freed(now);
        }
    }

    fn serve_all_freed(&mut self, now: Monotonic) {
        // Requests are served under their own configurations, so not while another one is decided
        // under its own.
        if self.slots.is_serving || self.live.arrived_under().is_some() {
            return;
        }
        self.slots.is_serving = true;
        while let Some(key) = self.slots.freed.pop_front() {
            let Some(pool) = self.slots.pools.get_mut(&key) else { continue };
            let served = pool.serve_idle(now);
            self.slots.reschedule(&key, now);
            self.served(&key, served, now);
        }
        self.slots.is_serving = false;
    }
}
