//! The grants of a call until the caller has them. Grants that no caller gets are refunded.

use std::sync::Arc;

use super::pending::Pending;
use crate::server::hooks::Event;
use crate::server::reply::RefundOnDrop;
use crate::store::{Batch, Reserved};

/// The grants of a call. Dropping them before they are handed out refunds them.
pub struct Held {
    /// Keeps the permit of the call, too.
    call: Arc<Pending>,
    reserved: Vec<Reserved>,
}

impl Held {
    /// Holds the outcomes of the reservations of `call`, in their order.
    pub const fn new(call: Arc<Pending>, reserved: Vec<Reserved>) -> Self {
        Self { call, reserved }
    }

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
