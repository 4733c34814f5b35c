//! Who listens to server-sent events, and the last of these.

use std::sync::Arc;

use axum::response::sse::Event;
use quotagate_operate::api::Snapshot;
use tokio::sync::{Semaphore, watch};

/// Most listeners at once.
pub const LISTENERS: usize = 32;

/// A snapshot, and the event for listeners who may see all of it.
#[derive(Clone)]
pub struct Published {
    pub event: Event,
    pub snapshot: Arc<Snapshot>,
}

/// The stream of events: the last one, and a permit for each listener.
pub struct Events {
    pub publish: watch::Sender<Published>,
    pub permits: Arc<Semaphore>,
}

impl Default for Events {
    fn default() -> Self {
        let first = Published { event: Event::default(), snapshot: Arc::default() };
        let (publish, _) = watch::channel(first);
        Self { publish, permits: Arc::new(Semaphore::new(LISTENERS)) }
    }
}
