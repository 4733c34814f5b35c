//! The store's clock, as replies show it. One reply is enough to know when any window ends, since
//! all windows count from the same epoch.

use std::time::Duration;

use quotagate_protocol::Window;

use crate::time::Monotonic;

/// One moment on the store's clock, and on the worker's. The latter is late by at most the delay of
/// one reply.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreClock(Option<(Duration, Monotonic)>);

impl StoreClock {
    /// A reply said that window `number` ends at `ends` at the latest.
    pub(crate) fn hear(&mut self, window: &Window, number: u64, ends: Monotonic) {
        if let Window::Fixed(fixed) = window {
            let end = fixed.start_of(number.saturating_add(1));
            self.0 = Some((Duration::from_secs(end), ends));
        }
    }

    /// When the current fixed window ends, never too early. `None` before the first reply, and for
    /// other windows.
    pub(crate) fn end_of(&self, window: &Window, now: Monotonic) -> Option<Monotonic> {
        let Window::Fixed(window) = window else { return None };
        let (epoch, heard) = self.0?;
        let there = if now > heard {
            epoch.saturating_add(now.since(heard))
        } else {
            epoch.saturating_sub(heard.since(now))
        };
        Some(now + window.remaining_at(there))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Monotonic {
        Monotonic::new(Duration::from_millis(ms))
    }

    #[test]
    fn one_reply_gives_the_end_of_every_window() {
        let mut clock = StoreClock::default();
        let minute = Window::new(60, 0).unwrap();
        assert_eq!(clock.end_of(&minute, at(0)), None);
        // Second 570 of the epoch is at(1_000).
        clock.hear(&minute, 9, at(31_000));
        for (window, now, ends) in [
            (minute.clone(), 1_000, 31_000),
            (minute.clone(), 30_999, 31_000),
            (minute, 31_000, 91_000),
            (Window::new(60, 20).unwrap(), 1_000, 11_000),
            (Window::new(3_600, 0).unwrap(), 1_000, 3_031_000),
            (Window::new(1, 0).unwrap(), 1_500, 2_000),
        ] {
            assert_eq!(clock.end_of(&window, at(now)), Some(at(ends)), "{window:?} at {now}");
        }
    }

    #[test]
    fn absurd_numbers_do_not_overflow() {
        let mut clock = StoreClock::default();
        clock.hear(&Window::new(60, 0).unwrap(), u64::MAX, at(u64::MAX));
        assert!(clock.end_of(&Window::new(1, 0).unwrap(), at(0)).is_some());
    }
}
