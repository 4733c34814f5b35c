//! What every backend does: carry out a batch of refunds and reservations.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt};
use prometheus_client::registry::Registry;
use quotagate_quota::protocol::{Grant, Invalid, Refund, Reservation, Window};

use crate::control::ControlStore;
pub use crate::error::StoreError;

/// The pause between two looks at a backend that seems silent. A process that was stopped for a moment reads the
/// answers that wait for it meanwhile.
pub const SECOND_LOOK: Duration = Duration::from_millis(5);

/// The outcome of one reservation.
pub type Settled = Result<Grant, StoreError>;

/// A callback that gets the index of a reservation in its batch, and the outcome.
pub type Settle<'a> = dyn Fn(usize, Settled) + Sync + 'a;

/// Where counters are kept.
pub trait Store: Send + Sync + 'static {
    /// Carries out the refunds of `batch`, then its reservations. Calls `settle` once for each reservation, as soon as
    /// its outcome is known: one that hangs delays no other.
    ///
    /// Nothing is started after the deadline. Run the future to its end: a reservation that was sent
    /// and whose grant nobody reads stays taken until its window ends.
    fn carry_out<'a>(&'a self, batch: &'a Batch, settle: &'a Settle<'a>) -> BoxFuture<'a, ()>;

    /// Carries out `batch` and waits for all of it. The outcomes have the order of the reservations.
    fn reserve<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Vec<Settled>> {
        async move {
            let outcomes = Mutex::new(vec![None; batch.reservations.len()]);
            let settle = |index: usize, outcome: Settled| {
                let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(settled) = outcomes.get_mut(index) {
                    *settled = Some(outcome);
                }
            };
            self.carry_out(batch, &settle).await;
            let left_out = || Err(StoreError::Refused("left out by the backend".to_owned()));
            let outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
            outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(left_out)).collect()
        }
        .boxed()
    }

    /// Refunds units, each refund at most once. A refund that is lost only admits fewer requests.
    fn refund<'a>(&'a self, refunds: &'a [Refund]) -> BoxFuture<'a, ()>;

    /// Whether other counters may still be served while those of one call fail with an
    /// [outage](StoreError::is_outage).
    fn serves_others(&self) -> bool {
        false
    }

    /// Whether the server of this counter has been silent for a good part of a call's `budget`, while other counters
    /// may be served. Ask twice, [`SECOND_LOOK`] apart: the first call only raises the suspicion.
    fn is_silent(&self, _key: &str, _budget: Duration) -> bool {
        false
    }

    /// Whether the backend can be used now.
    fn health(&self) -> Health;

    /// Where the changes of operators are kept.
    fn control(&self) -> &dyn ControlStore;

    /// Adds the backend's own metrics to `registry`.
    fn register(&self, _registry: &mut Registry) {}
}

/// The work of one call.
#[derive(Clone, Debug)]
pub struct Batch {
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// Units to refund, each checked with [`Refund::check`].
    pub refunds: Vec<Refund>,
    /// Units to reserve.
    pub reservations: Vec<CheckedReservation>,
}

/// A reservation whose every field is within its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedReservation {
    reservation: Reservation,
    window: Window,
}

impl CheckedReservation {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its bounds.
    pub fn new(reservation: Reservation) -> Result<Self, Invalid> {
        let window = reservation.check()?;
        Ok(Self { reservation, window })
    }

    /// A reservation whose [check](Reservation::check) returned `window`.
    pub(crate) const fn within(reservation: Reservation, window: Window) -> Self {
        Self { reservation, window }
    }

    /// The window that it counts in.
    pub const fn window(&self) -> Window {
        self.window
    }

    /// The refund of `grant`; `None` if nothing was granted.
    pub fn refund_of(&self, grant: &Grant) -> Option<Refund> {
        (grant.granted > 0).then(|| Refund {
            key: self.reservation.key.clone(),
            window_s: self.window.seconds(),
            window: grant.window,
            units: grant.granted,
        })
    }
}

impl std::ops::Deref for CheckedReservation {
    type Target = Reservation;

    fn deref(&self) -> &Reservation {
        &self.reservation
    }
}

/// What `/readyz` says about a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// What keeps some request from being counted. Empty when the backend is ready.
    pub faults: Vec<String>,
    /// What works now, but should be mended.
    pub warnings: Vec<String>,
    /// Whether no server is left that can count, or refuse for a counter that is full.
    pub outage: bool,
}
