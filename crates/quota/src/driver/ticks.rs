//! When ticks begin, and when they rest.

use std::time::Duration;

/// The period of ticks.
pub const TICK: Duration = Duration::from_millis(10);
/// The period of ticks of a live worker without work.
pub const RESTING_TICK: Duration = Duration::from_secs(1);
/// Ticks rest after this many without work.
const IDLE_TICKS: u32 = 100;

/// Whether ticks run, and how many have come without work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ticks {
    running: bool,
    idle: u32,
}

impl Ticks {
    /// Whether they run.
    pub(super) const fn are_running(&self) -> bool {
        self.running
    }

    /// They run from now on.
    pub(super) const fn begin(&mut self) {
        *self = Self { running: true, idle: 0 };
    }

    /// A tick has come. Returns whether the next one must come, too.
    pub(super) const fn go_on(&mut self, is_idle: bool) -> bool {
        self.idle = if is_idle { self.idle + 1 } else { 0 };
        self.running = self.idle < IDLE_TICKS;
        self.running
    }
}
