//! Faults that tests ask for. Only the feature `test-faults` builds them, never what people deploy.

#[cfg(feature = "test-faults")]
mod armed {
    use std::cell::Cell;
    use std::time::Duration;

    use crate::runtime;

    thread_local! {
        static PLACE: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Makes the next [`trip`] of this thread at `place` panic.
    pub fn arm(place: &'static str) {
        PLACE.set(Some(place));
    }

    /// The same, for the runtime thread.
    pub fn arm_runtime(place: &'static str) {
        runtime::spawn("a test", async move { arm(place) });
    }

    /// Stalls the runtime thread.
    pub fn stall(length: Duration) {
        runtime::spawn("a test", async move { std::thread::sleep(length) });
    }

    /// Panics if a test asked for it.
    #[expect(clippy::panic, reason = "for tests of what catches it")]
    pub fn trip(place: &str) {
        if PLACE.get() == Some(place) {
            PLACE.set(None);
            panic!("a test asked for a panic at {place}");
        }
    }
}

#[cfg(feature = "test-faults")]
pub use armed::{arm, arm_runtime, stall, trip};

/// Does nothing.
#[cfg(not(feature = "test-faults"))]
pub const fn trip(_place: &str) {}
