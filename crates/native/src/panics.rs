//! Panics end here: none may unwind into Envoy, or end the runtime thread. Those of tasks
//! that the store's library starts end in Tokio, and nothing counts them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{log, metrics};

/// The shortest time between two log lines.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs `act`. Counts a panic, and returns `otherwise` then.
pub fn guard<R>(what: &'static str, otherwise: R, act: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| {
        note(what);
        otherwise
    })
}

/// Counts a panic, and logs at most one in a second for each `what`.
pub fn note(what: &'static str) {
    static LOGGED: Mutex<BTreeMap<&str, Instant>> = Mutex::new(BTreeMap::new());
    metrics::count_panic();
    let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    if logged.get(what).is_none_or(|at| at.elapsed() >= PAUSE) {
        logged.insert(what, Instant::now());
        log::error(&format!("{what} panicked; please report this"));
    }
}
