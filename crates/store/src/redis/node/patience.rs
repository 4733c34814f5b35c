//! How long the store waits for Redis: as long as its callers wait for the store.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The shortest wait for one answer, however short the budgets of calls are: a shorter pause is no
/// reason to replace a connection.
const SHORTEST: Duration = Duration::from_secs(1);
/// The wait before the first call has said how long its caller waits.
const BEFORE_CALLS: Duration = Duration::from_secs(5);
/// The longest `store.timeout`.
const LONGEST: Duration = Duration::from_secs(60);
/// How long a caller's budget counts at least. With later calls, it is forgotten after twice as
/// long.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The budgets of recent calls, for all servers behind a store URL.
#[derive(Debug, Default)]
pub struct Patience(Mutex<Budgets>);

#[derive(Debug, Default)]
struct Budgets {
    /// Since when `recent` has been collected; `None` before the first call.
    since: Option<Instant>,
    /// The longest budget since then.
    recent: Duration,
    /// The longest budget of the time before.
    before: Duration,
}

impl Patience {
    /// Learns that a call which arrives now can wait for `budget`.
    pub fn learn(&self, budget: Duration) {
        self.learn_at(Instant::now(), budget);
    }

    /// The longest wait for one answer of a server, and for a connection to it.
    pub fn answer(&self) -> Duration {
        let budgets = self.budgets();
        match budgets.since {
            Some(_) => budgets.recent.max(budgets.before).clamp(SHORTEST, LONGEST),
            None => BEFORE_CALLS,
        }
    }

    /// The longest wait in a step that takes `brief` at most, unless callers wait longer than
    /// [`SHORTEST`] for an answer.
    pub fn at_least(&self, brief: Duration) -> Duration {
        let answer = self.answer();
        if answer > SHORTEST { answer.max(brief) } else { brief }
    }

    fn learn_at(&self, now: Instant, budget: Duration) {
        let mut budgets = self.budgets();
        if budgets.since.is_none_or(|since| now.saturating_duration_since(since) >= REMEMBERED) {
            *budgets = Budgets { since: Some(now), recent: Duration::ZERO, before: budgets.recent };
        }
        budgets.recent = budgets.recent.max(budget);
    }

    /// Nothing panics while the lock is held, so the content of a poisoned lock is intact.
    fn budgets(&self) -> MutexGuard<'_, Budgets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_may_take_as_long_as_the_most_patient_recent_caller_waits() {
        let (patience, start, ms) = (Patience::default(), Instant::now(), Duration::from_millis);
        let call = |after_s: u64, budget| {
            patience.learn_at(start + Duration::from_secs(after_s), ms(budget));
            patience.answer()
        };
        assert_eq!(patience.answer(), BEFORE_CALLS);
        assert_eq!(call(0, 50), SHORTEST, "shorter pauses of the machine are no outage");
        assert_eq!(patience.at_least(ms(300)), ms(300));
        assert_eq!(call(1, 5_000), ms(5_000));
        assert_eq!(patience.at_least(ms(300)), ms(5_000));
        assert_eq!(call(59, 50), ms(5_000));
        assert_eq!(call(119, 50), ms(5_000), "a minute later it still counts");
        assert_eq!(call(180, 50), SHORTEST, "the next minute forgets it");
        assert_eq!(call(181, u64::from(u32::MAX)), LONGEST);
        assert_eq!(call(9_000, 50), LONGEST, "only later calls let it be forgotten");
    }
}
