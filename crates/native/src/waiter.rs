//! The state of a request, and what a shard knows of one that waits: how to find and wake it.

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quotagate_quota::driver;
use quotagate_quota::exchange::Exchange;

use crate::abi::{Handle, Host, Scheduler};

/// The state of a request, on its Envoy worker. Most requests never wait: no other thread sees
/// their state, so they need neither a lock nor memory of their own.
pub struct RequestState {
    /// Later streams have greater ones.
    pub number: u64,
    own: RefCell<Exchange>,
    /// Has the state as soon as something waits for it.
    waiter: OnceCell<Arc<Waiter>>,
    /// Whether its body was read, or shadow policies asked the store about it.
    pub is_aside: Cell<bool>,
}

/// The state of a request, while one thread uses it.
pub enum ExchangeGuard<'s> {
    /// No other thread has it.
    Own(RefMut<'s, Exchange>),
    /// Others may wait for it.
    Shared(MutexGuard<'s, Exchange>),
}

/// A request that waits for its decision, for its body, or for what shadow policies say. Any thread
/// may wake it.
pub struct Waiter {
    /// That of its [`RequestState`].
    pub number: u64,
    /// How to find the stream again.
    pub handle: Handle,
    exchange: Mutex<Exchange>,
    /// Present from when the request is held until Envoy destroys the stream.
    scheduler: Mutex<Option<Scheduler>>,
}

impl RequestState {
    /// The stream `number`, which does not wait.
    pub fn new(number: u64) -> Self {
        let (own, waiter, is_aside) = (RefCell::default(), OnceCell::new(), Cell::new(false));
        Self { number, own, waiter, is_aside }
    }

    /// The state. Lock it after the core of its shard, and only for one use at a time.
    pub fn exchange(&self) -> ExchangeGuard<'_> {
        match self.waiter.get() {
            Some(waiter) => ExchangeGuard::Shared(waiter.exchange()),
            None => ExchangeGuard::Own(self.own.borrow_mut()),
        }
    }

    /// Runs `act` on the state.
    pub fn with<R>(&self, act: impl FnOnce(&mut Exchange) -> R) -> R {
        act(&mut self.exchange())
    }

    /// The same for the driver.
    pub fn drive<R>(&self, act: impl FnOnce(driver::Stream<'_, u64, u64>) -> R) -> R {
        let Self { number: id, .. } = self;
        self.with(|exchange| act(driver::Stream { id: *id, who: id, exchange }))
    }

    /// Lets other threads have the state. Call it while the core of the shard is locked.
    pub fn share(&self, host: &Host<'_>) -> &Arc<Waiter> {
        self.waiter.get_or_init(|| {
            let exchange = Mutex::new(self.own.take());
            let (number, handle) = (self.number, host.handle());
            Arc::new(Waiter { number, handle, exchange, scheduler: Mutex::default() })
        })
    }

    /// What other threads know of it, if it ever waited.
    pub fn waiter(&self) -> Option<&Arc<Waiter>> {
        self.waiter.get()
    }
}

impl Deref for ExchangeGuard<'_> {
    type Target = Exchange;

    fn deref(&self) -> &Exchange {
        match self {
            Self::Own(exchange) => exchange,
            Self::Shared(exchange) => exchange,
        }
    }
}

impl DerefMut for ExchangeGuard<'_> {
    fn deref_mut(&mut self) -> &mut Exchange {
        match self {
            Self::Own(exchange) => exchange,
            Self::Shared(exchange) => exchange,
        }
    }
}

impl Waiter {
    /// The state of its request. Lock it after the core of its shard.
    pub fn exchange(&self) -> MutexGuard<'_, Exchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes [`wake`](Self::wake) work.
    pub fn prepare_to_wake(&self, host: &Host<'_>) {
        self.scheduler().get_or_insert_with(|| host.scheduler());
    }

    /// Wakes the stream, on any thread. `false` if Envoy has destroyed it.
    pub fn wake(&self) -> bool {
        let scheduler = self.scheduler();
        scheduler.as_ref().inspect(|scheduler| scheduler.commit()).is_some()
    }

    /// Envoy destroys the stream.
    pub fn forget(&self) {
        self.handle.forget();
        self.scheduler().take();
    }

    fn scheduler(&self) -> MutexGuard<'_, Option<Scheduler>> {
        self.scheduler.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
