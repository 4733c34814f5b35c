//! What every backend does: carry out a batch of returns and reservations.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt};
use prometheus_client::registry::Registry;
use quotagate_quota::protocol::{Grant, Invalid, Reservation, Return, Window};

use crate::desk::Desk;
pub use crate::error::StoreError;

/// The pause between two looks at a backend that seems silent. A process that stood still itself finds answers that
/// it has not read yet: it reads them meanwhile.
pub const SECOND_LOOK: Duration = Duration::from_millis(5);

/// What became of one reservation.
pub type Settled = Result<Grant, StoreError>;

/// Hears the place of a reservation in its batch, and what became of it.
pub type Settle<'a> = dyn Fn(usize, Settled) + Sync + 'a;

/// Where counters are kept.
pub trait Store: Send + Sync + 'static {
    /// Carries out the returns of `batch`, then its reservations, and tells `settle` the place and the outcome
    /// of each reservation, once, as soon as it is known: one that hangs holds up no other.
    ///
    /// Nothing is started after the deadline. The future must run to its end: a reservation that was sent
    /// and whose grant nobody reads stays taken until its window ends.
    fn carry_out<'a>(&'a self, batch: &'a Batch, settle: &'a Settle<'a>) -> BoxFuture<'a, ()>;

    /// The same for a caller that waits for all; the outcomes in the order of the reservations.
    fn reserve<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Vec<Settled>> {
        async move {
            let settled = Mutex::new(vec![None; batch.asks.len()]);
            let settle = |at: usize, outcome: Settled| {
                let mut settled = settled.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(place) = settled.get_mut(at) {
                    *place = Some(outcome);
                }
            };
            self.carry_out(batch, &settle).await;
            let left_out = || Err(StoreError::Refused("left out by the backend".to_owned()));
            let settled = settled.into_inner().unwrap_or_else(PoisonError::into_inner);
            settled.into_iter().map(|outcome| outcome.unwrap_or_else(left_out)).collect()
        }
        .boxed()
    }

    /// Gives units back, each at most once; one that is lost only admits fewer.
    fn give_back<'a>(&'a self, returns: &'a [Return]) -> BoxFuture<'a, ()>;

    /// Whether other counters may be served while those of a call fail as [outages](StoreError::is_outage).
    fn serves_others(&self) -> bool {
        false
    }

    /// Whether what keeps this counter has been silent for a good part of a call's `budget`, while other counters may
    /// be served. Ask twice, [`SECOND_LOOK`] apart: the first time only raises the suspicion.
    fn is_silent(&self, _key: &str, _budget: Duration) -> bool {
        false
    }

    /// Whether the backend can be used now.
    fn health(&self) -> Health;

    /// Where operators' changes are kept.
    fn desk(&self) -> &dyn Desk;

    /// Adds the backend's own measurements to `registry`.
    fn register(&self, _registry: &mut Registry) {}
}

/// The work of one call.
#[derive(Clone, Debug)]
pub struct Batch {
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// Units given back, each checked with [`Return::check`].
    pub returns: Vec<Return>,
    /// Units asked for.
    pub asks: Vec<Ask>,
}

/// A reservation whose every field is known to be within its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    reservation: Reservation,
    window: Window,
}

impl Ask {
    /// # Errors
    /// The first field out of its bounds.
    pub fn new(reservation: Reservation) -> Result<Self, Invalid> {
        let window = reservation.check()?;
        Ok(Self { reservation, window })
    }

    /// Of a reservation that was checked to name this window.
    pub(crate) const fn within(reservation: Reservation, window: Window) -> Self {
        Self { reservation, window }
    }

    /// The window that it counts in.
    pub const fn window(&self) -> Window {
        self.window
    }

    /// The return that undoes `grant` of this reservation; `None` where nothing was granted.
    pub fn undo(&self, grant: &Grant) -> Option<Return> {
        (grant.granted > 0).then(|| Return {
            key: self.reservation.key.clone(),
            window_s: self.window.seconds(),
            window: grant.window,
            units: grant.granted,
        })
    }
}

impl std::ops::Deref for Ask {
    type Target = Reservation;

    fn deref(&self) -> &Reservation {
        &self.reservation
    }
}

/// What `/readyz` says of a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// What keeps some request from being counted; empty = ready.
    pub faults: Vec<String>,
    /// What works now, but should be mended.
    pub warnings: Vec<String>,
    /// Whether the faults leave no server that could count, or answer for a counter that is full.
    pub outage: bool,
}
