//! The store: the effect of its one script on a counter, in virtual time. It is written from the
//! contract, not from the product's code. A test compares it with the store's own memory backend.

use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_protocol::{Adjustment, Fixed, Grant, Reservation, ReserveReply, ReserveRequest};

use crate::traffic::partition_of;

/// All counters, by partition: one policy, one window.
pub struct Store {
    window: Fixed,
    counters: Vec<Counter>,
    /// The work since it was last taken.
    pub work: Work,
}

/// The work of the store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Reservations: one script each.
    pub reservations: u64,
    /// Refunds: one script each.
    pub refunds: u64,
    /// Reservations and refunds for the partition of rank one.
    pub hottest: u64,
}

/// A counter, with the last window in which units were granted.
#[derive(Clone, Copy, Default)]
struct Counter {
    number: u64,
    used: u64,
}

impl Store {
    /// A store without counters.
    pub fn new(partitions: usize, window: Fixed) -> Self {
        Self { window, counters: vec![Counter::default(); partitions], work: Work::default() }
    }

    /// Carries out the body of a call at `now` since the Unix epoch, and answers it.
    ///
    /// # Errors
    /// When the store would refuse the body. Workers send no such body.
    pub fn carry_out(&mut self, body: &[u8], now: Duration) -> Result<Vec<u8>> {
        let request: ReserveRequest = serde_json::from_slice(body).context("the body of a call")?;
        for refund in &request.refunds {
            self.refund(refund, now)?;
        }
        let grants = request.reservations.iter().map(|ask| self.take(ask, now).map(Ok));
        let reply = ReserveReply { dials: 0, grants: grants.collect::<Result<_>>()? };
        Ok(serde_json::to_vec(&reply)?)
    }

    fn take(&mut self, ask: &Reservation, now: Duration) -> Result<Grant> {
        ask.check()?;
        let number = self.window.number_at(now);
        let counter = self.counter(&ask.key)?;
        if counter.number != number {
            *counter = Counter { number, used: 0 };
        }
        let left = ask.quota.saturating_sub(counter.used);
        let needed = if left < ask.min { 0 } else { ask.want.min(left) };
        let spare = if needed == ask.want { ask.spare.min((left - needed) / 8) } else { 0 };
        counter.used += needed + spare;
        let used = counter.used;
        self.work.reservations += 1;
        // The script reads whole milliseconds of its clock.
        let reset = self.window.remaining_at(Duration::from_millis(now.as_millis() as u64));
        Ok(Grant {
            granted: needed + spare,
            used,
            quota: ask.quota,
            reset_ms: reset.as_millis() as u64,
            window: number,
            ..Grant::default()
        })
    }

    fn refund(&mut self, refund: &Adjustment, now: Duration) -> Result<()> {
        refund.check()?;
        let current = self.window.number_at(now);
        let counter = self.counter(&refund.key)?;
        if (counter.number, refund.window) == (current, current) {
            counter.used = counter.used.saturating_sub(refund.units);
        }
        self.work.refunds += 1;
        Ok(())
    }

    fn counter(&mut self, key: &str) -> Result<&mut Counter> {
        let partition = partition_of(key)?;
        self.work.hottest += u64::from(partition == 0);
        self.counters
            .get_mut(partition)
            .with_context(|| format!("no partition of this fleet: {key}"))
    }
}
