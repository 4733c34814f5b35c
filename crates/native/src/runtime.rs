//! The two threads beside Envoy's. The runtime thread runs the store's library. The tick thread
//! ticks the shards of all Envoy workers, so that deadlines are kept while the runtime thread
//! stalls.

use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::FutureExt;
use quotagate_quota::driver::TICK;
use tokio::runtime::{Builder, Handle};

use crate::panics::{self, guard};
use crate::{log, metrics, test_faults};

/// The runtime thread stalls if it starts no task for so long.
const STALL: Duration = Duration::from_secs(1);

/// Where the threads are reached. They run until the process ends.
struct Runtime {
    handle: Handle,
    /// What needs ticks.
    ticking: Mutex<Vec<Tick>>,
    /// Notified when something needs ticks.
    begins: Condvar,
}

/// Carries out a tick. Returns whether the next one must come, too.
type Tick = Box<dyn Fn() -> bool + Send>;

/// Asks the runtime thread now and then whether it runs.
struct Watch {
    /// Whether it has answered the last question.
    answered: Arc<AtomicBool>,
    asked: Instant,
    stalls: bool,
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// Starts the threads, unless they run already. Call it on Envoy's main thread.
///
/// # Errors
/// When the system refuses a thread.
pub fn start() -> io::Result<()> {
    if RUNTIME.get().is_some() {
        return Ok(());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let named = |name: &str| thread::Builder::new().name(name.to_owned());
    named("quotagate").spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    named("quotagate-tick").spawn(|| RUNTIME.wait().keep_ticking())?;
    // Only the main thread sets it, so it is not set yet.
    let _ = RUNTIME.set(Runtime { handle, ticking: Mutex::default(), begins: Condvar::new() });
    Ok(())
}

/// Runs `work` on the runtime thread. `what` names it in the log if it panics.
pub fn spawn(what: &'static str, work: impl Future<Output = ()> + Send + 'static) {
    if let Some(runtime) = RUNTIME.get() {
        runtime.handle.spawn(guarded(what, work));
    }
}

/// Runs `work` on a thread of its own, beside the runtime thread. `what` names it in the log if it
/// panics.
pub fn spawn_blocking(what: &'static str, work: impl FnOnce() + Send + 'static) {
    if let Some(runtime) = RUNTIME.get() {
        runtime.handle.spawn_blocking(move || guard(what, (), work));
    }
}

/// Runs `work`, and counts a panic.
pub async fn guarded(what: &'static str, work: impl Future<Output = ()>) {
    if AssertUnwindSafe(work).catch_unwind().await.is_err() {
        panics::note(what);
    }
}

/// Stalls the runtime thread, for tests.
#[cfg(feature = "test-faults")]
pub fn stall(length: Duration) {
    spawn("a test", async move { thread::sleep(length) });
}

/// Runs `act` with the runtime thread as the Tokio runtime of what it starts.
pub fn enter<R>(act: impl FnOnce() -> R) -> Option<R> {
    let _runtime = RUNTIME.get()?.handle.enter();
    Some(act())
}

/// Runs `tick` every [`TICK`] from now on, on the tick thread, until it returns `false`.
pub fn tick(tick: impl Fn() -> bool + Send + 'static) {
    if let Some(runtime) = RUNTIME.get() {
        runtime.ticking().push(Box::new(tick));
        runtime.begins.notify_one();
    }
}

impl Runtime {
    fn keep_ticking(&self) {
        // What a tick drops may belong to the runtime.
        let _runtime = self.handle.enter();
        let mut watch = Watch::new();
        loop {
            let is_none = |ticking: &mut Vec<_>| ticking.is_empty();
            let waited = self.begins.wait_while(self.ticking(), is_none);
            // What needs ticks again while it is ticked adds itself again.
            let ticks = std::mem::take(&mut *waited.unwrap_or_else(PoisonError::into_inner));
            test_faults::tick_round();
            let still: Vec<_> =
                ticks.into_iter().filter(|tick| guard("tick", true, tick)).collect();
            self.ticking().extend(still);
            guard("watch", (), || watch.look(&self.handle));
            thread::sleep(TICK);
        }
    }

    fn ticking(&self) -> MutexGuard<'_, Vec<Tick>> {
        self.ticking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    fn new() -> Self {
        Self { answered: Arc::new(AtomicBool::new(true)), asked: Instant::now(), stalls: false }
    }

    /// Counts a second in which the runtime thread did not run, and asks again.
    fn look(&mut self, handle: &Handle) {
        if self.asked.elapsed() < STALL {
            return;
        }
        self.asked = Instant::now();
        if !self.answered.swap(false, Ordering::Relaxed) {
            metrics::count_stall();
            if !self.stalls {
                log::error("the runtime thread stalls: calls to Redis wait, on_failure decides");
            }
            self.stalls = true;
            return;
        }
        self.stalls = false;
        let answered = Arc::clone(&self.answered);
        handle.spawn(async move { answered.store(true, Ordering::Relaxed) });
    }
}
