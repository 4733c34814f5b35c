//! A store that answers nothing while it is closed, as a frozen Redis does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::{BoxFuture, FutureExt};
use quotagate_protocol::Adjustment;
use quotagate_store::control::ControlStore;
use quotagate_store::store::{Batch, Health, OnReserved, Store};
use tokio::sync::watch;

use crate::bench::memory;

/// A store in memory behind a gate.
pub struct FrozenStore {
    memory: Arc<dyn Store>,
    is_open: watch::Sender<bool>,
    is_open_for_looks: watch::Sender<bool>,
    calls: AtomicU64,
}

impl FrozenStore {
    pub fn new() -> Arc<Self> {
        let [is_open, is_open_for_looks] = [(); 2].map(|()| watch::Sender::new(true));
        Arc::new(Self { memory: memory(), is_open, is_open_for_looks, calls: AtomicU64::new(0) })
    }

    pub fn freeze(&self) {
        self.is_open.send_replace(false);
    }

    /// Only for batches that look at counters.
    pub fn freeze_looks(&self) {
        self.is_open_for_looks.send_replace(false);
    }

    pub fn thaw(&self) {
        self.is_open.send_replace(true);
        self.is_open_for_looks.send_replace(true);
    }

    /// How many batches it has carried out.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    async fn opened(&self) {
        open(&self.is_open).await;
    }
}

async fn open(gate: &watch::Sender<bool>) {
    gate.subscribe().wait_for(|is_open| *is_open).await.unwrap();
}

impl Store for FrozenStore {
    fn carry_out<'a>(
        &'a self,
        batch: &'a Batch,
        on_reserved: &'a OnReserved<'a>,
    ) -> BoxFuture<'a, ()> {
        async move {
            self.opened().await;
            if batch.reservations.iter().any(|reservation| reservation.want == 0) {
                open(&self.is_open_for_looks).await;
            }
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.memory.carry_out(batch, on_reserved).await;
        }
        .boxed()
    }

    fn refund<'a>(&'a self, refunds: &'a [Adjustment]) -> BoxFuture<'a, ()> {
        async move {
            self.opened().await;
            self.memory.refund(refunds).await;
        }
        .boxed()
    }

    fn health(&self) -> Health {
        self.memory.health()
    }

    fn control(&self) -> &(dyn ControlStore + 'static) {
        self.memory.control()
    }
}
