//! The reservations of a call while they are carried out.
//!
//! They settle one by one, so that one Redis node that hangs fails its own and no others. A grant
//! that comes after it was given up, or after the caller has its answer or has gone, is refunded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quotagate_quota::protocol::Refund;
use tokio::sync::Notify;

use super::endpoint::CallEndpoint;
use super::hooks::Event;
use super::reply::{Held, Permit};
use crate::store::{Batch, Settled, StoreError};

/// A batch under way, shared by the task that carries it out and the caller that waits.
struct Pending {
    endpoint: Arc<CallEndpoint>,
    batch: Arc<Batch>,
    /// Kept until the last reservation has settled, whether or not the caller waits.
    permit: Permit,
    state: Mutex<State>,
    done: Notify,
}

struct State {
    /// Empty once the caller no longer waits.
    settled: Vec<Option<Settled>>,
    /// How many of them are not settled yet.
    open: usize,
    /// The caller has nothing left to wait for.
    over: bool,
    /// The refunds of grants that came too late for the caller.
    late: Vec<Refund>,
}

/// The caller's side. When it is dropped, it refunds what was granted.
pub struct Claim(Arc<Pending>);

/// Starts to carry out `batch` in a task of its own: a caller that goes away does not end it
/// half-way, nor free its `permit`.
pub fn start(endpoint: &Arc<CallEndpoint>, batch: Batch, permit: Permit) -> Claim {
    let state = State {
        settled: vec![None; batch.reservations.len()],
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
    drop(endpoint.connections.spawn(async move {
        let Pending { endpoint, batch, done, .. } = &*working;
        endpoint.store.carry_out(batch, &|at, outcome| working.settle(at, outcome)).await;
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
    }));
    Claim(pending)
}

impl Pending {
    fn settle(&self, at: usize, outcome: Settled) {
        if let Some(ask) = self.batch.reservations.get(at) {
            self.endpoint.hooks.observe(Event::Settled(ask, &outcome));
        }
        let mut state = self.state();
        if let Some(settled @ None) = state.settled.get_mut(at) {
            *settled = Some(outcome);
            self.count(&mut state, 1);
        } else if let (Some(ask), Ok(grant)) = (self.batch.reservations.get(at), &outcome) {
            state.late.extend(ask.refund_of(grant));
        }
    }

    /// So many more are settled. The last one wakes the caller, whether or not refunds are still
    /// under way.
    fn count(&self, state: &mut State, settled: usize) {
        state.open -= settled;
        if state.open == 0 && settled > 0 {
            state.over = true;
            self.done.notify_one();
        }
    }

    /// No panic can happen while it is locked, so a poisoned lock guards nothing that is broken.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// Waits until every reservation is settled; without any, until the batch is carried out.
    pub async fn done(&self) {
        while !self.0.state().over {
            self.0.done.notified().await;
        }
    }

    /// Settles as failed what waits for a part of the store that has been silent for a good part of
    /// `budget`.
    pub fn give_up_silent(&self, budget: Duration) {
        let Pending { endpoint, batch, .. } = &*self.0;
        let mut state = self.0.state();
        let mut given_up = 0;
        for (settled, ask) in state.settled.iter_mut().zip(&batch.reservations) {
            if settled.is_none() && endpoint.store.is_silent(&ask.key, budget) {
                *settled =
                    Some(Err(StoreError::NoAnswer("its part of the backend is silent".to_owned())));
                given_up += 1;
            }
        }
        self.0.count(&mut state, given_up);
    }

    /// Whether at least one reservation is settled.
    pub fn any(&self) -> bool {
        self.0.state().settled.iter().any(Option::is_some)
    }

    /// What has settled; the others have failed, as far as the caller is concerned.
    pub fn take(&self) -> Held {
        let mut state = self.0.state();
        let unsettled = || Err(StoreError::NoAnswer("not within the caller's budget".to_owned()));
        let settled =
            state.settled.drain(..).map(|outcome| outcome.unwrap_or_else(unsettled)).collect();
        let Pending { endpoint, batch, permit, .. } = &*self.0;
        let CallEndpoint { store, hooks, connections, .. } = &**endpoint;
        Held::new(
            Arc::clone(store),
            Arc::clone(hooks),
            Arc::clone(connections),
            Arc::clone(batch),
            Arc::clone(permit),
            settled,
        )
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // After `take` there is nothing left in it.
        drop(self.take());
    }
}
