//! Faults that tests ask for. Only the feature `test-faults` builds them, never what people deploy.

#[cfg(feature = "test-faults")]
mod armed {
    use std::cell::Cell;
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    /// What the tick thread does next: a panic at a point of the code, or a stall.
    static TICKS: Mutex<Option<(Option<&'static str>, Duration)>> = Mutex::new(None);

    thread_local! {
        static POINT: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Makes the next [`trip`] of this thread at `point` panic.
    pub fn arm(point: &'static str) {
        POINT.set(Some(point));
    }

    /// The same, for the tick thread.
    pub fn arm_tick_thread(point: &'static str) {
        at_tick(Some(point), Duration::ZERO);
    }

    /// Stalls the tick thread from its next round on.
    pub fn stall_tick_thread(length: Duration) {
        at_tick(None, length);
    }

    fn at_tick(point: Option<&'static str>, stall: Duration) {
        *TICKS.lock().unwrap_or_else(PoisonError::into_inner) = Some((point, stall));
    }

    /// The tick thread begins a round.
    pub fn tick_round() {
        let fault = TICKS.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((point, stall)) = fault {
            POINT.set(point);
            std::thread::sleep(stall);
        }
    }

    /// Panics if a test asked for it.
    #[expect(clippy::panic, reason = "for tests of what catches it")]
    pub fn trip(point: &str) {
        if POINT.get() == Some(point) {
            POINT.set(None);
            panic!("a test asked for a panic at {point}");
        }
    }
}

#[cfg(feature = "test-faults")]
pub use armed::{arm, arm_tick_thread, stall_tick_thread, tick_round, trip};

/// Does nothing.
#[cfg(not(feature = "test-faults"))]
pub const fn trip(_point: &str) {}

/// Does nothing.
#[cfg(not(feature = "test-faults"))]
pub const fn tick_round() {}
