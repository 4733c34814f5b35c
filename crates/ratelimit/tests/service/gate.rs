//! A store that does not always answer, as a Redis that is frozen or away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::{BoxFuture, FutureExt};
use quotagate_protocol::Adjustment;
use quotagate_store::control::ControlStore;
use quotagate_store::store::{Batch, Health, OnReserved, Store, StoreError};
use tokio::sync::watch;

use crate::bench::memory;

/// A store in memory behind a gate.
pub struct GatedStore {
    memory: Arc<dyn Store>,
    gate: watch::Sender<Gate>,
    calls: AtomicU64,
}

/// What becomes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It is carried out.
    Open,
    /// It waits.
    Frozen,
    /// It waits if it looks at a counter.
    FrozenForLooks,
    /// It never reaches the store.
    Away,
    /// Batches that look at a counter wait, and others never reach the store.
    AwayAndFrozenForLooks,
    /// Marks of rules never reach the store.
    AwayForMarks,
}

impl Gate {
    fn holds(self, batch: &Batch) -> bool {
        let looks = batch.reservations.iter().any(|reservation| reservation.want == 0);
        match self {
            Self::Open | Self::Away | Self::AwayForMarks => false,
            Self::Frozen => true,
            Self::FrozenForLooks | Self::AwayAndFrozenForLooks => looks,
        }
    }
}

impl GatedStore {
    pub fn new() -> Arc<Self> {
        Self::over(memory())
    }

    /// Another way to a store, with a gate of its own.
    pub fn over(memory: Arc<dyn Store>) -> Arc<Self> {
        let gate = watch::Sender::new(Gate::Open);
        Arc::new(Self { memory, gate, calls: AtomicU64::new(0) })
    }

    pub fn set(&self, gate: Gate) {
        self.gate.send_replace(gate);
    }

    /// How many batches it has carried out.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Whether a batch waits at the gate.
    pub fn holds_some(&self) -> bool {
        self.gate.receiver_count() > 0
    }

    /// Waits until the gate lets this pass, and returns how it is then.
    async fn passed(&self, holds: impl Fn(Gate) -> bool) -> Gate {
        *self.gate.subscribe().wait_for(|gate| !holds(*gate)).await.unwrap()
    }
}

impl Store for GatedStore {
    fn carry_out<'a>(
        &'a self,
        batch: &'a Batch,
        on_reserved: &'a OnReserved<'a>,
    ) -> BoxFuture<'a, ()> {
        async move {
            let gate = self.passed(|gate| gate.holds(batch)).await;
            let fail = |error: StoreError| {
                for index in 0..batch.reservations.len() {
                    on_reserved(index, Err(error.clone()));
                }
            };
            if matches!(gate, Gate::Away | Gate::AwayAndFrozenForLooks) {
                return fail(StoreError::Unreachable("away".to_owned()));
            }
            self.calls.fetch_add(1, Ordering::Relaxed);
            let is_away = |index: usize| {
                gate == Gate::AwayForMarks && batch.reservations[index].key.contains("~refunds:")
            };
            let (away, there): (Vec<_>, Vec<_>) =
                (0..batch.reservations.len()).partition(|index| is_away(*index));
            let reached = Batch {
                deadline: batch.deadline,
                refunds: batch.refunds.clone(),
                charges: batch.charges.clone(),
                reservations: there.iter().map(|i| batch.reservations[*i].clone()).collect(),
            };
            for index in away {
                on_reserved(index, Err(StoreError::Unreachable("away".to_owned())));
            }
            let of_all = |index: usize, reserved| on_reserved(there[index], reserved);
            self.memory.carry_out(&reached, &of_all).await;
        }
        .boxed()
    }

    fn refund<'a>(&'a self, refunds: &'a [Adjustment]) -> BoxFuture<'a, ()> {
        async move {
            self.passed(|gate| gate == Gate::Frozen).await;
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
