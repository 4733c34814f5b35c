//! Who listens to server-sent events, and the last of these.

use std::sync::Arc;
use std::time::Instant;

use axum::response::sse::Event;
use serde_json::{Map, Value};
use tokio::sync::{Notify, Semaphore, watch};

use crate::admin::Seen;

/// Most listeners at once.
pub const LISTENERS: usize = 32;

/// What the live page shows.
#[derive(Clone, Default)]
pub struct Published {
    /// Each picture has the next number.
    pub number: u64,
    /// When it was made; `None` if there is none.
    pub at: Option<Instant>,
    /// What it was made of.
    pub seen: Arc<Seen>,
    /// For listeners who may see all of it.
    pub whole: Arc<Map<String, Value>>,
    /// How it differs from the one before.
    pub changes: Event,
}

/// The stream of events: the last one, and a permit for each listener.
pub struct Events {
    pub publish: watch::Sender<Published>,
    /// A listener has come and there is no picture.
    pub wanted: Notify,
    pub permits: Arc<Semaphore>,
}

impl Default for Events {
    fn default() -> Self {
        let (publish, _) = watch::channel(Published::default());
        Self { publish, wanted: Notify::new(), permits: Arc::new(Semaphore::new(LISTENERS)) }
    }
}
