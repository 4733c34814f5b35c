//! The grants of a call until the caller has them. Grants that no caller gets are refunded.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use crate::server::endpoint::CallEndpoint;
use crate::server::hooks::Event;
use crate::server::reply::RefundOnDrop;
use crate::store::{Batch, Reserved};

/// The permit of a call under way, released with its last holder.
pub type Permit = Arc<OwnedSemaphorePermit>;

/// The grants of a call. Dropping them before they are handed out refunds them.
pub struct Held {
    endpoint: Arc<CallEndpoint>,
    batch: Arc<Batch>,
    _permit: Permit,
    reserved: Vec<Reserved>,
}

impl Held {
    /// Holds the outcomes of the reservations of `batch`, in their order, and the call's permit.
    pub const fn new(
        endpoint: Arc<CallEndpoint>,
        batch: Arc<Batch>,
        permit: Permit,
        reserved: Vec<Reserved>,
    ) -> Self {
        Self { endpoint, batch, _permit: permit, reserved }
    }

    /// The outcomes of the reservations, in their order.
    pub fn reserved(&self) -> &[Reserved] {
        &self.reserved
    }

    /// The domain of the call, from its first item: all items of a worker have the same domain.
    pub fn domain(&self) -> Option<&str> {
        let Batch { reservations, refunds, charges, .. } = &*self.batch;
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
        let granted = self.batch.reservations.iter().zip(&self.reserved);
        let refunds: Vec<_> =
            granted.filter_map(|(ask, outcome)| ask.refund_of(outcome.as_ref().ok()?)).collect();
        if !refunds.is_empty() {
            let endpoint = Arc::clone(&self.endpoint);
            endpoint.hooks.observe(Event::Undone(refunds.len()));
            self.endpoint.spawn(async move { endpoint.store.refund(&refunds).await });
        }
    }
}
