//! What a shard knows of a stream: the state of its request, and how to find and wake it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quotagate_quota::driver;
use quotagate_quota::exchange::Exchange;

use crate::abi::{Handle, Host, Scheduler};

/// A request that may wait for its decision, or for its body. Any thread may wake it.
pub struct Waiter {
    /// Later streams have greater ones.
    pub number: u64,
    /// How to find the stream again.
    pub handle: Handle,
    exchange: Mutex<Exchange>,
    /// Present from when it waits until Envoy destroys the stream.
    scheduler: Mutex<Option<Scheduler>>,
}

impl Waiter {
    /// The stream `number`, which does not wait.
    pub fn new(number: u64, host: &Host<'_>) -> Arc<Self> {
        let (exchange, scheduler) = (Mutex::default(), Mutex::default());
        Arc::new(Self { number, handle: host.handle(), exchange, scheduler })
    }

    /// The state of its request. Lock it after the core of its shard.
    pub fn exchange(&self) -> MutexGuard<'_, Exchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream for the driver, with its state, which is locked already.
    pub fn for_driver<'s>(
        self: &'s Arc<Self>,
        exchange: &'s mut Exchange,
    ) -> driver::Stream<'s, u64, Arc<Self>> {
        driver::Stream { id: self.number, who: self, exchange }
    }

    /// Makes [`wake`](Self::wake) work.
    pub fn prepare_to_wake(&self, host: &Host<'_>) {
        *self.scheduler() = Some(host.scheduler());
    }

    /// Wakes the stream, on any thread. `false` if Envoy has destroyed it.
    pub fn wake(&self) -> bool {
        let scheduler = self.scheduler();
        scheduler.as_ref().inspect(|scheduler| scheduler.commit()).is_some()
    }

    /// Envoy destroys the stream. Returns whether something could wake it.
    pub fn forget(&self) -> bool {
        self.handle.forget();
        self.scheduler().take().is_some()
    }

    fn scheduler(&self) -> MutexGuard<'_, Option<Scheduler>> {
        self.scheduler.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
