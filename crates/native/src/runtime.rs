//! The one thread beside Envoy's: it ticks the shards of all Envoy workers, and runs the store's
//! library.

use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use futures_util::future::FutureExt;
use quotagate_quota::time::Monotonic;
use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};

use crate::panics::{self, guard};
use crate::shard::{Shard, TICK};

/// Where the thread is reached. It runs until the process ends.
struct Runtime {
    handle: Handle,
    /// The shards that need ticks.
    ticking: Mutex<Vec<Arc<Shard>>>,
    /// Notified when the first shard needs ticks.
    begins: Notify,
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// Starts the thread, unless it runs already. Call it on Envoy's main thread.
///
/// # Errors
/// When the system refuses a thread.
pub fn start() -> io::Result<()> {
    if RUNTIME.get().is_some() {
        return Ok(());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new()
        .name("quotagate".to_owned())
        .spawn(move || runtime.block_on(RUNTIME.wait().keep_ticking()))?;
    // Only the main thread sets it, so it is not set yet.
    let _ = RUNTIME.set(Runtime { handle, ticking: Mutex::default(), begins: Notify::new() });
    Ok(())
}

/// The time for workers.
pub fn now() -> Monotonic {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    Monotonic::new(ORIGIN.get_or_init(Instant::now).elapsed())
}

/// Runs `work` on the thread. `what` names it in the log if it panics.
pub fn spawn(what: &'static str, work: impl Future<Output = ()> + Send + 'static) {
    if let Some(runtime) = RUNTIME.get() {
        runtime.handle.spawn(guarded(what, work));
    }
}

/// Runs `work`, and counts a panic.
pub async fn guarded(what: &'static str, work: impl Future<Output = ()>) {
    if AssertUnwindSafe(work).catch_unwind().await.is_err() {
        panics::note(what);
    }
}

/// Runs `act` with the thread as the Tokio runtime of what it starts.
pub fn enter<R>(act: impl FnOnce() -> R) -> Option<R> {
    let _runtime = RUNTIME.get()?.handle.enter();
    Some(act())
}

/// Ticks this shard from now on.
pub fn tick(shard: &Arc<Shard>) {
    if let Some(runtime) = RUNTIME.get() {
        let mut ticking = runtime.ticking.lock().unwrap_or_else(PoisonError::into_inner);
        ticking.push(Arc::clone(shard));
        runtime.begins.notify_one();
    }
}

impl Runtime {
    async fn keep_ticking(&self) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.ticking().is_empty() {
                self.begins.notified().await;
            }
            ticks.tick().await;
            // A shard that needs ticks again while it is ticked adds itself again.
            let shards = std::mem::take(&mut *self.ticking());
            let still = shards
                .into_iter()
                .filter(|shard| guard("tick", true, || shard.tick()))
                .collect::<Vec<_>>();
            self.ticking().extend(still);
        }
    }

    fn ticking(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Shard>>> {
        self.ticking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
