//! Who listens to server-sent events, and the last of these.

use std::sync::Arc;

use axum::response::sse::Event;
use tokio::sync::{Semaphore, watch};

/// Most listeners at once.
pub const LISTENERS: usize = 32;

/// The stream of events: the last one, and a permit for each listener.
pub struct Events {
    pub publish: watch::Sender<Event>,
    pub permits: Arc<Semaphore>,
}

impl Default for Events {
    fn default() -> Self {
        let (publish, _) = watch::channel(Event::default());
        Self { publish, permits: Arc::new(Semaphore::new(LISTENERS)) }
    }
}
