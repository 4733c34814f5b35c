//! The reservations of a call while they are carried out, and until the caller has their grants.
//!
//! Outcomes arrive one by one, so a Redis node that hangs fails only its own. A grant is
//! refunded if it comes after its reservation was given up, after the caller got its answer, or
//! after the caller left.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use quotagate_protocol::Adjustment;
use tokio::sync::OwnedSemaphorePermit;

use crate::server::endpoint::CallEndpoint;
use crate::server::hooks::Event;
use crate::server::reply::RefundOnDrop;
use crate::store::{Batch, Reserved, StoreError};

/// A batch under way, shared by the work that carries it out and by the caller.
struct Pending {
    endpoint: Arc<CallEndpoint>,
    batch: Batch,
    state: Mutex<PendingState>,
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
pub struct Claim {
    call: Arc<Pending>,
    /// What carries out the batch, until it ends. The caller's own task runs it, because a second
    /// task would have to wake the first one. It goes on in a task of its own when the caller
    /// leaves.
    work: Option<BoxFuture<'static, ()>>,
}

/// Carries out `batch`: begins with the first [`Claim::done`], or when the claim is dropped. It
/// runs to its end and keeps its `permit`, even if the caller leaves.
pub fn start(endpoint: &Arc<CallEndpoint>, batch: Batch, permit: OwnedSemaphorePermit) -> Claim {
    let state = PendingState {
        reserved: vec![None; batch.reservations.len()],
        open: batch.reservations.len(),
        over: false,
        late: Vec::new(),
    };
    let (endpoint, state) = (Arc::clone(endpoint), Mutex::new(state));
    let call = Arc::new(Pending { endpoint, batch, state });
    let work = Pending::carry_out(Arc::clone(&call), permit).boxed();
    Claim { call, work: Some(work) }
}

impl Pending {
    /// Keeps the permit of the call until the work has ended. An answer that no one fetches keeps
    /// no other call out.
    async fn carry_out(self: Arc<Self>, _permit: OwnedSemaphorePermit) {
        let Self { endpoint, batch, .. } = &*self;
        endpoint.store.carry_out(batch, &|at, outcome| self.record(at, outcome)).await;
        let late = {
            let mut state = self.state();
            state.over = true;
            std::mem::take(&mut state.late)
        };
        if !late.is_empty() {
            endpoint.hooks.observe(Event::Undone(late.len()));
            endpoint.store.refund(&late).await;
        }
    }

    fn record(&self, at: usize, outcome: Reserved) {
        if let Some(ask) = self.batch.reservations.get(at) {
            self.endpoint.hooks.observe(Event::Reserved(ask, &outcome));
        }
        let mut state = self.state();
        if let Some(reserved @ None) = state.reserved.get_mut(at) {
            *reserved = Some(outcome);
            state.count(1);
        } else if let (Some(ask), Ok(grant)) = (self.batch.reservations.get(at), &outcome) {
            state.late.extend(ask.refund_of(grant));
        }
    }

    /// Nothing panics while the lock is held, so the content of a poisoned lock is intact.
    fn state(&self) -> MutexGuard<'_, PendingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingState {
    /// Counts `reserved` more outcomes. After the last one the caller no longer waits, even if
    /// refunds are still under way.
    const fn count(&mut self, reserved: usize) {
        self.open -= reserved;
        self.over |= self.open == 0 && reserved > 0;
    }
}

impl Claim {
    /// Carries out the batch until every reservation has an outcome. A batch without reservations
    /// is done when its refunds are carried out.
    pub async fn done(&mut self) {
        poll_fn(|context| self.poll_done(context)).await;
    }

    fn poll_done(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // It is taken out meanwhile, so that work that panics is not continued.
        if let Some(mut work) = self.work.take()
            && work.as_mut().poll(context).is_pending()
        {
            self.work = Some(work);
        }
        let is_over = self.work.is_none() || self.call.state().over;
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Fails the reservations that wait for a silent part of the store: one that has not answered
    /// for a good part of `budget`.
    pub fn give_up_silent(&self, budget: Duration) {
        let Pending { endpoint, batch, .. } = &*self.call;
        let mut state = self.call.state();
        let mut given_up = 0;
        for (reserved, ask) in state.reserved.iter_mut().zip(&batch.reservations) {
            if reserved.is_none() && endpoint.store.is_silent(&ask.key, budget) {
                *reserved =
                    Some(Err(StoreError::NoAnswer("its part of the backend is silent".to_owned())));
                given_up += 1;
            }
        }
        state.count(given_up);
    }

    /// Whether at least one reservation has an outcome.
    pub fn any(&self) -> bool {
        self.call.state().reserved.iter().any(Option::is_some)
    }

    /// The outcomes. To the caller, reservations without an outcome have failed.
    pub fn take(&self) -> Held {
        let reserved = std::mem::take(&mut self.call.state().reserved);
        let unanswered = || Err(StoreError::NoAnswer("not within the caller's budget".to_owned()));
        let reserved =
            reserved.into_iter().map(|outcome| outcome.unwrap_or_else(unanswered)).collect();
        Held { call: Arc::clone(&self.call), reserved }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // After `take`, nothing is left to refund.
        drop(self.take());
        if let Some(work) = self.work.take() {
            self.call.endpoint.spawn(work);
        }
    }
}

/// The grants of a call until the caller has them. Dropping them before they are handed out refunds
/// them.
pub struct Held {
    call: Arc<Pending>,
    reserved: Vec<Reserved>,
}

impl Held {
    /// The outcomes of the reservations, in their order.
    pub fn reserved(&self) -> &[Reserved] {
        &self.reserved
    }

    /// The domain of the call, from its first item: all items of a worker have the same domain.
    pub fn domain(&self) -> Option<&str> {
        let Batch { reservations, refunds, charges, .. } = &self.call.batch;
        let reserved = reservations.first().map(|reservation| &*reservation.key);
        let adjusted = || refunds.first().or(charges.first()).map(|item| &*item.key);
        let key = reserved.or_else(adjusted)?;
        key.split(':').next()
    }
}

impl RefundOnDrop for Held {
    fn hand_out(&mut self) {
        self.reserved.clear();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let granted = self.call.batch.reservations.iter().zip(&self.reserved);
        let refunds: Vec<_> =
            granted.filter_map(|(ask, outcome)| ask.refund_of(outcome.as_ref().ok()?)).collect();
        if !refunds.is_empty() {
            let endpoint = Arc::clone(&self.call.endpoint);
            endpoint.hooks.observe(Event::Undone(refunds.len()));
            self.call.endpoint.spawn(async move { endpoint.store.refund(&refunds).await });
        }
    }
}
