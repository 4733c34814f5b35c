//! What is known of one server, shared by its handle and by the task that keeps it connected.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;

use super::clock::ServerClock;
use super::patience::Patience;
use super::probe::{Eviction, Probe, Trouble};
use super::silence::Silence;
use super::target::Target;
use crate::address::HostPort;

/// The connection of a node.
#[derive(Clone)]
pub enum NodeState {
    /// There has been none since then, and the first attempt to make one is under way.
    Connecting(Instant),
    /// It is connected.
    Up(Link),
    /// There is none, for this reason.
    Down(Arc<str>),
}

/// A connection. It never repeats a command.
#[derive(Clone)]
pub struct Link {
    /// The connection itself. Clones share it.
    pub(super) connection: MultiplexedConnection,
    /// Counts the connections of a node.
    pub(super) generation: u64,
    pub(super) silence: Silence,
}

impl Link {
    /// Whether the connection answers.
    pub const fn silence(&self) -> &Silence {
        &self.silence
    }
}

/// What is known of a server.
pub struct Shared {
    /// The server's name in logs, without credentials.
    pub name: String,
    /// The server's address, unless it may change.
    pub address: Option<HostPort>,
    /// The server's clock.
    pub clock: ServerClock,
    /// The generation of the last connection that failed.
    failed: AtomicU64,
    /// Whether an operator has waited for it in vain since its last answer.
    pub is_away: AtomicBool,
    /// Wakes the task that watches the connection.
    pub wake: Notify,
    /// The server's eviction policy.
    eviction: Mutex<Eviction>,
    /// How long its answers may take.
    pub patience: Arc<Patience>,
    /// How the server is probed.
    pub probe: Probe,
    /// Why the server does not count, although it answers.
    trouble: Mutex<Option<Trouble>>,
}

impl Shared {
    /// Nothing is known yet of the server at `target`.
    pub fn new(target: &Target, prefix: &str, patience: Arc<Patience>) -> Self {
        Self {
            name: target.to_string(),
            address: target.address().cloned(),
            clock: ServerClock::new(),
            failed: AtomicU64::new(0),
            is_away: AtomicBool::new(false),
            wake: Notify::new(),
            eviction: Mutex::default(),
            patience,
            probe: Probe::new(prefix, target.user(), target.topology()),
            trouble: Mutex::default(),
        }
    }

    /// Asks for the connection of this generation to be replaced.
    pub fn replace(&self, generation: u64) {
        self.failed.fetch_max(generation, Relaxed);
        self.wake.notify_one();
    }

    /// Whether the connection of this generation must be replaced.
    pub fn is_replaced(&self, generation: u64) -> bool {
        self.failed.load(Relaxed) >= generation
    }

    /// The server's eviction policy.
    pub fn eviction(&self) -> MutexGuard<'_, Eviction> {
        self.eviction.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the server does not count, although it answers.
    pub fn trouble(&self) -> MutexGuard<'_, Option<Trouble>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns whether the server counts, and logs each change once.
    pub fn learn(&self, now: Option<Trouble>) {
        let mut known = self.trouble();
        match (&*known, &now) {
            (before, now) if before == now => {}
            (_, Some(trouble)) => tracing::warn!("{} {}", self.name, trouble.reason()),
            (_, None) => tracing::info!("{} counts again", self.name),
        }
        *known = now;
    }
}
