//! Who listens to server-sent events, and the last of these.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::response::sse::Event;
use quotagate_store::server::DomainScope;
use serde_json::{Map, Value};
use tokio::sync::{Notify, Semaphore, watch};

/// Most listeners at once.
pub const LISTENERS: usize = 32;

/// What the live page shows to those who may see some domains.
#[derive(Clone)]
pub struct ScopePicture {
    /// The domains.
    pub scope: DomainScope,
    /// All of it.
    pub whole: Arc<Map<String, Value>>,
    /// How it differs from the one before; `None` if there was none.
    pub changes: Option<Event>,
}

/// What the live page shows to all who listen.
#[derive(Clone, Default)]
pub struct Published {
    /// The next one has the next number.
    pub number: u64,
    /// When it was made; `None` if there is none.
    pub at: Option<Instant>,
    /// One for each of their scopes.
    pub pictures: Vec<ScopePicture>,
}

impl Published {
    /// The picture for those who may see these domains.
    pub fn of(&self, scope: &DomainScope) -> Option<&ScopePicture> {
        self.pictures.iter().find(|picture| picture.scope == *scope)
    }
}

/// The stream of events: the last one, and a permit for each listener.
pub struct Events {
    pub publish: watch::Sender<Published>,
    /// A listener has come for whom there is no picture.
    pub wanted: Notify,
    pub permits: Arc<Semaphore>,
    /// The domains that each listener may see.
    scopes: Mutex<Vec<DomainScope>>,
}

impl Default for Events {
    fn default() -> Self {
        let (publish, _) = watch::channel(Published::default());
        let permits = Arc::new(Semaphore::new(LISTENERS));
        Self { publish, wanted: Notify::new(), permits, scopes: Mutex::default() }
    }
}

impl Events {
    /// Adds a listener who may see these domains.
    pub fn enter(&self, scope: &DomainScope) {
        self.lock().push(scope.clone());
    }

    /// Removes one.
    pub fn leave(&self, scope: &DomainScope) {
        let mut scopes = self.lock();
        if let Some(index) = scopes.iter().position(|one| one == scope) {
            scopes.swap_remove(index);
        }
    }

    /// The scopes of all listeners, each once.
    pub fn scopes(&self) -> Vec<DomainScope> {
        let mut all: Vec<DomainScope> = Vec::new();
        for scope in self.lock().iter() {
            if !all.contains(scope) {
                all.push(scope.clone());
            }
        }
        all
    }

    /// No panic can happen while it is locked.
    fn lock(&self) -> MutexGuard<'_, Vec<DomainScope>> {
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
