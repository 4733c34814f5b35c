//! A store that answers when a test lets it.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use quotagate_protocol::Adjustment;
use quotagate_store::control::ControlStore;
use quotagate_store::memory::{Memory, steady_clock};
use quotagate_store::store::{Batch, Health, OnReserved, Store};
use tokio::sync::Semaphore;

use crate::common::{one, take, until};

/// A store that counts at once and answers when the gate opens.
pub struct Gated {
    pub memory: Memory,
    gate: Semaphore,
    /// Calls that it has counted.
    pub entered: AtomicUsize,
    /// What it says of itself.
    pub health: Mutex<Health>,
}

impl Gated {
    /// A store with an open gate.
    pub fn open() -> Arc<Self> {
        let memory = Memory::new(steady_clock());
        Arc::new(Self {
            memory,
            gate: Semaphore::new(1000),
            entered: AtomicUsize::new(0),
            health: Mutex::default(),
        })
    }

    pub fn close_gate(&self) {
        self.gate.forget_permits(1000);
    }

    /// Lets so many calls pass.
    pub fn open_gate(&self, calls: usize) {
        self.gate.add_permits(calls);
    }

    /// Waits until so many calls are at the gate, or behind it.
    pub async fn entered(&self, count: usize) {
        until("the call reaches the store", Duration::from_secs(20), async || {
            (self.entered.load(SeqCst) >= count).then_some(())
        })
        .await;
    }

    /// The units used of a counter.
    pub async fn used(&self, key: &str) -> u64 {
        one(&self.memory, &take(key, 0, 1)).await.used
    }
}

impl Store for Gated {
    fn carry_out<'a>(
        &'a self,
        batch: &'a Batch,
        on_reserved: &'a OnReserved<'a>,
    ) -> BoxFuture<'a, ()> {
        async move {
            let reserved = self.memory.reserve(batch).await;
            self.entered.fetch_add(1, SeqCst);
            // The gate delays all items except those marked as quick.
            let quick = |at: &usize| batch.reservations[*at].key.contains(":quick:");
            (0..reserved.len()).filter(quick).for_each(|at| on_reserved(at, reserved[at].clone()));
            self.gate.acquire().await.unwrap().forget();
            (0..reserved.len())
                .filter(|at| !quick(at))
                .for_each(|at| on_reserved(at, reserved[at].clone()));
        }
        .boxed()
    }

    fn refund<'a>(&'a self, refunds: &'a [Adjustment]) -> BoxFuture<'a, ()> {
        self.memory.refund(refunds)
    }

    fn health(&self) -> Health {
        self.health.lock().unwrap().clone()
    }

    fn control(&self) -> &(dyn ControlStore + 'static) {
        self.memory.control()
    }
}
