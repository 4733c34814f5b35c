//! Lines of the log that callers can cause: at most one a second of each kind.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time between two lines.
const PACE: Duration = Duration::from_secs(1);

/// The pace of one kind of line.
#[derive(Default)]
pub struct LogPace(Mutex<(Option<Instant>, u64)>);

/// The lines that were left out since the last one: ends a line, and may be empty.
#[derive(Debug, PartialEq, Eq)]
pub struct LeftOut(u64);

impl LogPace {
    /// Whether a line may be written now. `None` if not; it is counted then.
    pub fn due(&self) -> Option<LeftOut> {
        self.due_at(Instant::now())
    }

    fn due_at(&self, now: Instant) -> Option<LeftOut> {
        // Nothing panics while the lock is held.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, left_out) = &mut *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < PACE) {
            *left_out += 1;
            return None;
        }
        *last = Some(now);
        Some(LeftOut(std::mem::take(left_out)))
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, " (and {count} more since the last such line)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_cause_one_line_a_second_of_each_kind() {
        let (pace, begin) = (LogPace::default(), Instant::now());
        let due = |ms| pace.due_at(begin + Duration::from_millis(ms));
        assert_eq!(due(0), Some(LeftOut(0)));
        assert_eq!((due(1), due(999)), (None, None));
        let line = due(1000).unwrap();
        assert_eq!(line.to_string(), " (and 2 more since the last such line)");
        assert_eq!((due(1500), due(9000)), (None, Some(LeftOut(1))));
    }
}
