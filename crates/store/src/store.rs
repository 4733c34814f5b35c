//! What every backend does: carry out a batch of refunds, charges and reservations.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt};
use prometheus_client::registry::Registry;
use quotagate_protocol::{Adjustment, Grant, Invalid, Reservation, Window};

use crate::control::ControlStore;
pub use crate::error::StoreError;
use crate::window::known;

/// The pause between two looks at a backend that seems silent. If this process was stopped for a
/// moment, it reads the waiting answers in between.
pub const SECOND_LOOK: Duration = Duration::from_millis(5);

/// The outcome of one reservation.
pub type Reserved = Result<Grant, StoreError>;

/// A callback that gets the index of a reservation in its batch, and the outcome.
pub type OnReserved<'a> = dyn Fn(usize, Reserved) + Sync + 'a;

/// Where counters are kept.
///
/// # Call order
///
/// [Open](crate::open) a store once and share it: every method takes `&self` and may be called
/// concurrently, at any time. A store that is not connected yet answers with errors. Then, for each
/// call:
///
/// 1. [`carry_out`](Self::carry_out) or [`reserve`](Self::reserve) a [`Batch`]. The caller owns the
///    granted units.
/// 2. [`refund`](Self::refund) the units that were not spent, as soon as that is known, or with the
///    next batch.
///
/// # Units
///
/// A counter belongs to a key and to a window. `quota`, `want`, `min`, `spare`, `granted` and
/// `used` are units of it. The sum of grants minus refunds never exceeds the quota of the window;
/// charges may exceed it.
/// Lengths of windows are in seconds, times until their end in milliseconds. The backend's clock
/// decides which window is the current one.
///
/// # Errors
///
/// Each reservation fails on its own, with a [`StoreError`]. After [`StoreError::NoAnswer`], and
/// only then, the units may have been taken: never send that reservation again.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use quotagate_protocol::Reservation;
/// use quotagate_store::memory::{Memory, steady_clock};
/// use quotagate_store::store::{Batch, CheckedReservation, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Memory::new(steady_clock());
/// let reservation = CheckedReservation::new(Reservation {
///     key: "shop:per-user:{alice}".into(),
///     window_s: 86_400,
///     quota: 10,
///     want: 4,
///     min: 1,
///     ..Reservation::default()
/// })?;
/// let deadline = Instant::now() + Duration::from_millis(100);
/// let reservations = vec![reservation.clone()];
/// let batch = Batch { deadline, refunds: vec![], charges: vec![], reservations };
///
/// let grant = store.reserve(&batch).await.remove(0)?;
/// assert_eq!((grant.granted, grant.used), (4, 4));
///
/// // Three of the four units were not spent.
/// let mut refund = reservation.refund_of(&grant).ok_or("nothing was granted")?;
/// refund.units = 3;
/// store.refund(&[refund]).await;
/// assert_eq!(store.reserve(&batch).await.remove(0)?.used, 5);
/// # Ok(())
/// # }
/// ```
pub trait Store: Send + Sync + 'static {
    /// Carries out the refunds and charges of `batch`, then its reservations. Calls `on_reserved`
    /// once for each reservation, as soon as its outcome is known: one that hangs delays no other.
    ///
    /// Refunds and charges are sent even after the deadline; no reservation is. Run the future to
    /// its end: a reservation that was sent and whose grant nobody reads stays taken until its
    /// window ends.
    fn carry_out<'a>(
        &'a self,
        batch: &'a Batch,
        on_reserved: &'a OnReserved<'a>,
    ) -> BoxFuture<'a, ()>;

    /// Carries out `batch` and waits for all of it. The outcomes have the order of the
    /// reservations.
    fn reserve<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Vec<Reserved>> {
        async move {
            let outcomes = Mutex::new(vec![None; batch.reservations.len()]);
            let on_reserved = |index: usize, outcome: Reserved| {
                let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(reserved) = outcomes.get_mut(index) {
                    *reserved = Some(outcome);
                }
            };
            self.carry_out(batch, &on_reserved).await;
            let left_out = || Err(StoreError::Refused("left out by the backend".to_owned()));
            let outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
            outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(left_out)).collect()
        }
        .boxed()
    }

    /// Refunds units, each refund at most once. A refund that is lost only admits fewer requests.
    fn refund<'a>(&'a self, refunds: &'a [Adjustment]) -> BoxFuture<'a, ()>;

    /// Whether other counters may still be served while those of one call fail with an
    /// [outage](StoreError::is_outage).
    fn serves_others(&self) -> bool {
        false
    }

    /// Whether the server of this counter has been silent for a good part of a call's `budget`,
    /// while other counters may be served. Ask twice, [`SECOND_LOOK`] apart: the first call only
    /// raises the suspicion.
    fn is_silent(&self, _key: &str, _budget: Duration) -> bool {
        false
    }

    /// Whether the backend can be used now.
    fn health(&self) -> Health;

    /// Where the changes of operators are kept.
    fn control(&self) -> &(dyn ControlStore + 'static);

    /// Adds the backend's own metrics to `registry`.
    fn register(&self, _registry: &mut Registry) {}
}

/// The work of one call.
#[derive(Clone, Debug)]
pub struct Batch {
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// Units to refund, each checked with [`Adjustment::check`].
    pub refunds: Vec<Adjustment>,
    /// Units to charge beyond any quota, each checked with [`Adjustment::check`].
    pub charges: Vec<Adjustment>,
    /// Units to reserve.
    pub reservations: Vec<CheckedReservation>,
}

/// A reservation whose every field is within its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedReservation {
    reservation: Reservation,
    window: Window,
    /// The quota that the caller named.
    named_quota: u64,
    refunds: bool,
}

impl CheckedReservation {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of its bounds.
    pub fn new(reservation: Reservation) -> Result<Self, Invalid> {
        let window = Self::window_of(&reservation)?;
        Ok(Self::within(reservation, window))
    }

    /// Checks every field, and returns the window.
    pub(crate) fn window_of(reservation: &Reservation) -> Result<Window, Invalid> {
        known(reservation.check()?)
    }

    /// A reservation in `window`, which [`window_of`](Self::window_of) returned for it.
    pub(crate) const fn within(reservation: Reservation, window: Window) -> Self {
        let named_quota = reservation.quota;
        Self { reservation, window, named_quota, refunds: false }
    }

    /// Refunds up to `want` units of the current window instead, and the grant says how many they
    /// were. Unlike [`Store::refund`], its caller learns whether it was carried out, and which
    /// units the counter did not have. `None` for sliding windows and slots.
    #[must_use]
    pub fn refunding(self) -> Option<Self> {
        let fits = matches!(self.window, Window::Fixed(_) | Window::Calendar(_));
        fits.then_some(Self { refunds: true, ..self })
    }

    /// Whether it refunds units.
    pub const fn refunds(&self) -> bool {
        self.refunds
    }

    /// The same with another quota, which an operator set. If the counter keeps a quota, it is
    /// still the one that the caller named.
    pub(crate) const fn overridden(mut self, quota: u64) -> Self {
        self.reservation.quota = quota;
        self
    }

    /// The quota that the caller named. An operator may have set another one since.
    pub const fn named_quota(&self) -> u64 {
        self.named_quota
    }

    /// The window that it counts in.
    pub const fn window(&self) -> &Window {
        &self.window
    }

    /// The refund of `grant`; `None` if nothing was granted. Slots have none: the next message of
    /// their worker says what it holds.
    pub fn refund_of(&self, grant: &Grant) -> Option<Adjustment> {
        (grant.granted > 0 && self.window != Window::InFlight && !self.refunds).then(|| {
            Adjustment {
                key: self.reservation.key.clone(),
                kind: self.reservation.kind.clone(),
                window_s: self.reservation.window_s,
                offset_s: self.reservation.offset_s,
                window: grant.window,
                units: grant.granted,
            }
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
    /// What works now, but should be fixed.
    pub warnings: Vec<String>,
    /// Whether no server is left that can count, or refuse for a counter that is full.
    pub outage: bool,
}

impl Health {
    /// Whether some requests can be counted.
    pub fn counts_some(&self) -> bool {
        self.faults.is_empty() || !self.outage
    }
}
