//! A call to the store: when it leaves, what it asks for, which requests get its units, and how it
//! fails.

mod adjustments;
pub(super) mod allocation;
mod batch;
pub(crate) mod breaker;
pub(super) mod faults;
mod flight;

pub(super) use batch::Batch;
#[cfg(test)]
pub(super) use batch::{MAX_ADJUSTMENTS, MAX_COSTS};
pub(super) use flight::LOST_AFTER;

use std::time::Duration;

use super::{CallId, Ticket};
use crate::time::Monotonic;
use adjustments::Adjustments;
use breaker::Breaker;

/// The calls of a worker, and what waits for one.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    under_way: Vec<Call>,
    pub(super) breaker: Breaker,
    pub(super) refunds: Adjustments,
    pub(super) charges: Adjustments,
    /// A tick has passed since the first of the refunds and charges came.
    pub(super) adjustments_due: bool,
    /// The refills of leases have gathered long enough.
    pub(super) refills_due: bool,
    /// Whether several requests shared the last call that requests waited for.
    pub(super) last_was_shared: bool,
}

/// A call under way.
#[derive(Clone, Debug)]
pub(super) struct Call {
    id: CallId,
    /// In the order in which their requests arrived.
    tickets: Vec<Ticket>,
    batch: Batch,
    /// Whether the breaker sent it to probe a store that was given up.
    probe: bool,
    sent: Monotonic,
    /// When the worker gives it up, if the host never reports its end.
    lost_at: Monotonic,
}

impl Calls {
    /// No calls; `seed` varies the pauses of the breaker.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            under_way: Vec::new(),
            breaker: Breaker::new(seed),
            refunds: Adjustments::default(),
            charges: Adjustments::default(),
            adjustments_due: false,
            refills_due: false,
            last_was_shared: false,
        }
    }

    /// Whether no call is under way, and nothing is left to refund or to charge.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty() && !self.has_adjustments()
    }

    /// Whether something is left to refund or to charge.
    pub(super) fn has_adjustments(&self) -> bool {
        !self.refunds.is_empty() || !self.charges.is_empty()
    }

    /// Whether a call has not ended.
    pub(super) fn is_under_way(&self, id: CallId) -> bool {
        self.under_way.iter().any(|call| call.id == id)
    }

    /// Whether a call with such a batch left within `time` and has not ended.
    pub(super) fn has_young_call(
        &self,
        time: Duration,
        is_such: fn(&Batch) -> bool,
        now: Monotonic,
    ) -> bool {
        self.under_way.iter().any(|call| now < call.sent + time && is_such(&call.batch))
    }

    /// Takes out a call that has ended. `None` if it is unknown or has ended before.
    fn take(&mut self, id: CallId) -> Option<Call> {
        let index = self.under_way.iter().position(|call| call.id == id)?;
        Some(self.under_way.swap_remove(index))
    }

    /// The calls that the host should have reported by now.
    fn lost(&self, now: Monotonic) -> Vec<CallId> {
        self.under_way.iter().filter(|call| call.lost_at <= now).map(|call| call.id).collect()
    }

    /// The batch of the call that asks for a request.
    fn batch_of(&mut self, ticket: Ticket) -> Option<&mut Batch> {
        let asks = |call: &&mut Call| call.tickets.binary_search(&ticket).is_ok();
        self.under_way.iter_mut().find(asks).map(|call| &mut call.batch)
    }
}
