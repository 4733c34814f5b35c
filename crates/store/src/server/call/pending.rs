//! The reservations of a call while they are carried out.
//!
//! Outcomes arrive one by one, so a Redis node that hangs fails only its own. A grant is
//! refunded if it comes after its reservation was given up, after the caller got its answer, or
//! after the caller left.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quotagate_protocol::Adjustment;
use tokio::sync::Notify;

use super::held::{Held, Permit};
use crate::server::endpoint::CallEndpoint;
use crate::server::hooks::Event;
use crate::store::{Batch, Reserved, StoreError};

/// A batch under way, shared by the task that carries it out and the caller that waits.
struct Pending {
    endpoint: Arc<CallEndpoint>,
    batch: Arc<Batch>,
    /// Kept until the last reservation has an outcome, whether or not the caller waits.
    permit: Permit,
    state: Mutex<PendingState>,
    done: Notify,
}

struct PendingState {
    /// Empty once the caller no longer waits.
    reserved: Vec<Option<Reserved>>,
    /// How many of them have no outcome yet.
    open: usize,
    /// Whether the caller has nothing left to wait for.
    over: bool,
    /// The refunds of grants that came too late for the caller.
    late: Vec<Adjustment>,
}

/// The caller's side. Dropping it refunds what was granted.
pub struct Claim(Arc<Pending>);

/// Starts a task that carries out `batch`. The task runs to its end and keeps its `permit`, even if
/// the caller leaves.
pub fn start(endpoint: &Arc<CallEndpoint>, batch: Batch, permit: Permit) -> Claim {
    let state = PendingState {
        reserved: vec![None; batch.reservations.len()],
        open: batch.reservations.len(),
        over: false,
        late: Vec::new(),
    };
    let pending = Arc::new(Pending {
        endpoint: Arc::clone(endpoint),
        batch: Arc::new(batch),
        permit,
        state: Mutex::new(state),
        done: Notify::new(),
    });
    let working = Arc::clone(&pending);
    endpoint.spawn(async move {
        let Pending { endpoint, batch, done, .. } = &*working;
        endpoint.store.carry_out(batch, &|at, outcome| working.record(at, outcome)).await;
        let late = {
            let mut state = working.state();
            state.over = true;
            std::mem::take(&mut state.late)
        };
        done.notify_one();
        if !late.is_empty() {
            endpoint.hooks.observe(Event::Undone(late.len()));
            endpoint.store.refund(&late).await;
        }
    });
    Claim(pending)
}

impl Pending {
    fn record(&self, at: usize, outcome: Reserved) {
        if let Some(ask) = self.batch.reservations.get(at) {
            self.endpoint.hooks.observe(Event::Reserved(ask, &outcome));
        }
        let mut state = self.state();
        if let Some(reserved @ None) = state.reserved.get_mut(at) {
            *reserved = Some(outcome);
            self.count(&mut state, 1);
        } else if let (Some(ask), Ok(grant)) = (self.batch.reservations.get(at), &outcome) {
            state.late.extend(ask.refund_of(grant));
        }
    }

    /// Counts `reserved` more outcomes. The last one wakes the caller, even if refunds are still
    /// under way.
    fn count(&self, state: &mut PendingState, reserved: usize) {
        state.open -= reserved;
        if state.open == 0 && reserved > 0 {
            state.over = true;
            self.done.notify_one();
        }
    }

    /// Nothing panics while the lock is held, so the content of a poisoned lock is intact.
    fn state(&self) -> MutexGuard<'_, PendingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// Waits until every reservation has an outcome. A batch without reservations is done when its
    /// refunds are carried out.
    pub async fn done(&self) {
        while !self.0.state().over {
            self.0.done.notified().await;
        }
    }

    /// Fails the reservations that wait for a silent part of the store: one that has not answered
    /// for a good part of `budget`.
    pub fn give_up_silent(&self, budget: Duration) {
        let Pending { endpoint, batch, .. } = &*self.0;
        let mut state = self.0.state();
        let mut given_up = 0;
        for (reserved, ask) in state.reserved.iter_mut().zip(&batch.reservations) {
            if reserved.is_none() && endpoint.store.is_silent(&ask.key, budget) {
                *reserved =
                    Some(Err(StoreError::NoAnswer("its part of the backend is silent".to_owned())));
                given_up += 1;
            }
        }
        self.0.count(&mut state, given_up);
    }

    /// Whether at least one reservation has an outcome.
    pub fn any(&self) -> bool {
        self.0.state().reserved.iter().any(Option::is_some)
    }

    /// The outcomes. To the caller, reservations without an outcome have failed.
    pub fn take(&self) -> Held {
        let mut state = self.0.state();
        let unanswered = || Err(StoreError::NoAnswer("not within the caller's budget".to_owned()));
        let reserved =
            state.reserved.drain(..).map(|outcome| outcome.unwrap_or_else(unanswered)).collect();
        let Pending { endpoint, batch, permit, .. } = &*self.0;
        Held::new(Arc::clone(endpoint), Arc::clone(batch), Arc::clone(permit), reserved)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // After `take`, nothing is left to refund.
        drop(self.take());
    }
}
