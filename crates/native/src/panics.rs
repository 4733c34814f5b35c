//! Panics end here: none may unwind into Envoy, or end the runtime thread. Those of the store's
//! library end in Tokio's tasks, and nothing counts them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{log, metrics};

/// Runs `act`. Counts a panic, and returns `otherwise` then.
pub fn guard<R>(what: &str, otherwise: R, act: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| {
        metrics::count_panic();
        log::error(&format!("{what} panicked; please report this"));
        otherwise
    })
}
