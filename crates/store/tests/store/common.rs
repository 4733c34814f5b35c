//! Shared by several tests: short forms of reservations, and polling.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use quotagate_protocol::{Adjustment, Grant, MAX_WINDOW_S, Reservation, Window};
use quotagate_store::control::Key;
use quotagate_store::store::{Batch, CheckedReservation, Reserved, Store};
use quotagate_store::window::Position;

/// A window that does not end while a test runs.
pub const LONG: u32 = MAX_WINDOW_S;

pub fn take(key: &str, quota: u64, want: u64) -> Reservation {
    Reservation {
        key: format!("test:p:{{{key}}}").into(),
        window_s: LONG,
        quota,
        want,
        min: 1,
        ..Reservation::default()
    }
}

pub fn back(of: &Reservation, grant: Grant, units: u64) -> Adjustment {
    Adjustment {
        key: of.key.clone(),
        kind: of.kind.clone(),
        window_s: of.window_s,
        offset_s: of.offset_s,
        window: grant.window,
        units,
    }
}

/// The key that holds the counter of the window with this number.
pub fn counter(of: &Reservation, number: u64) -> Key<'_> {
    let window = Window::of(&of.kind, of.window_s, of.offset_s).unwrap();
    Key::Counter { key: &of.key, id: Position::numbered(&window, number).id }
}

pub fn batch(refunds: Vec<Adjustment>, reservations: Vec<Reservation>) -> Batch {
    let asks = reservations.into_iter().map(|r| CheckedReservation::new(r).unwrap()).collect();
    Batch {
        deadline: Instant::now() + Duration::from_secs(5),
        refunds,
        charges: vec![],
        reservations: asks,
    }
}

pub async fn try_one(store: &dyn Store, reservation: &Reservation) -> Reserved {
    store.reserve(&batch(vec![], vec![reservation.clone()])).await.remove(0)
}

pub async fn one(store: &dyn Store, reservation: &Reservation) -> Grant {
    try_one(store, reservation).await.unwrap()
}

/// Units granted and units used.
pub async fn numbers(store: &dyn Store, reservation: &Reservation) -> (u64, u64) {
    let grant = one(store, reservation).await;
    (grant.granted, grant.used)
}

/// Polls until there is a value. Panics with `what` after `limit`.
pub async fn until<T>(what: &str, limit: Duration, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = poll().await {
            return value;
        }
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Opens a backend and waits until it is ready.
pub async fn open(url: &str) -> Arc<dyn Store> {
    let store = quotagate_store::open(&url.parse().unwrap(), "qg");
    until("the store is ready", Duration::from_secs(10), async || {
        let health = store.health();
        (health.faults.is_empty() && health.warnings.is_empty()).then_some(())
    })
    .await;
    store
}
