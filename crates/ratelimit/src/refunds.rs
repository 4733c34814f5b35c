//! Hits that requests refund, and looks at counters.
//!
//! Envoy sends the call that refunds (`apply_on_stream_done` with `is_negative_hits`) at the end of
//! refused requests, too, and nothing links it to the first call. A refused request took nothing,
//! so its refund must not free what others hold. Each refused call of a counter therefore leaves a
//! credit, and the next call that refunds uses it up instead of lowering the counter. Credits end
//! with the window.
//!
//! Credits are kept in this process until the first refund of a rule shows that requests refund,
//! and in the store from then on, where all services see them. There, one counter has the refused
//! hits, and a second one those of them that were used up. A call uses credits up by a reservation
//! of the second counter whose quota is the first one, so no two calls use up the same credit.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quotagate_protocol::{Adjustment, Grant, MAX_UNITS, Reservation};
use quotagate_quota::evaluate::Counter;
use quotagate_store::store::{Batch, CheckedReservation, Store, StoreError};

/// Most counters whose credits are kept in this process. Beyond that, a refused call leaves none.
const MAX_CREDITS: usize = 65_536;
/// How often credits of ended windows are removed at most, because that visits all of them.
const SWEEP: Duration = Duration::from_secs(1);
/// What the policy of a counter of credits ends with.
const REFUSED: &str = "~refused";
/// The same of the credits that were used up.
const USED_UP: &str = "~returned";

/// Refunds hits, for the counters of one domain.
pub struct NegativeHits {
    store: Arc<dyn Store>,
    timeout: Duration,
    /// By policy: whether requests refund.
    used: Vec<AtomicBool>,
    local: Mutex<LocalCredits>,
}

/// The credits of this process, by the keys of their counters.
#[derive(Default)]
struct LocalCredits {
    credits: HashMap<Arc<str>, Credit>,
    /// When those of ended windows were last removed.
    swept: Option<Instant>,
}

/// The refused hits of a counter.
struct Credit {
    hits: u64,
    until: Instant,
}

impl NegativeHits {
    /// For so many policies.
    pub fn new(store: Arc<dyn Store>, timeout: Duration, policies: usize) -> Self {
        let used = (0..policies).map(|_| AtomicBool::new(false)).collect();
        Self { store, timeout, used, local: Mutex::default() }
    }

    /// What a counter has used, without counting anything.
    ///
    /// # Errors
    /// Why the store did not answer.
    pub async fn look(&self, counter: &Counter) -> Result<Grant, StoreError> {
        // More than any quota of a rule has, so the store grants nothing.
        let grant = self.reserve(counter, MAX_UNITS, MAX_UNITS).await?;
        if grant.granted > 0 {
            self.lower(counter, &grant, grant.granted).await;
            return Ok(Grant { granted: 0, used: grant.used - grant.granted, ..grant });
        }
        Ok(grant)
    }

    /// A request of so many hits was refused by this counter, which resets after `reset`.
    pub async fn refused(&self, policy: usize, counter: &Counter, hits: u64, reset: Duration) {
        if self.is_used(policy) {
            // A credit that is lost only admits more than it should by what was never taken.
            let _ = self.reserve(&credits(counter), hits, hits).await;
            return;
        }
        self.local().add(&counter.key, hits, reset);
    }

    /// Refunds hits. Returns what the counter has used, and how many of its hits the caller
    /// refunds now.
    ///
    /// # Errors
    /// Why the store did not answer.
    pub async fn refund(
        &self,
        policy: usize,
        counter: &Counter,
        hits: u64,
    ) -> Result<(Grant, u64), StoreError> {
        if let Some(used) = self.used.get(policy) {
            used.store(true, Ordering::Relaxed);
        }
        let mut left = hits - self.local().take(&counter.key, hits);
        if left > 0 {
            let refused = self.look(&credits(counter)).await?.used;
            if refused > 0 {
                let used_up = Counter { quota: refused, ..beside(counter, USED_UP) };
                left -= self.reserve(&used_up, left, 1).await?.granted.min(left);
            }
        }
        let grant = self.look(counter).await?;
        Ok((grant, grant.used.min(left)))
    }

    fn is_used(&self, policy: usize) -> bool {
        self.used.get(policy).is_some_and(|used| used.load(Ordering::Relaxed))
    }

    fn local(&self) -> MutexGuard<'_, LocalCredits> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn reserve(&self, counter: &Counter, want: u64, min: u64) -> Result<Grant, StoreError> {
        let (kind, window_s, offset_s) = counter.window.parts();
        let reservation = CheckedReservation::new(Reservation {
            key: Arc::clone(&counter.key),
            kind,
            window_s,
            offset_s,
            quota: counter.quota,
            want,
            min,
            ..Reservation::default()
        })
        .map_err(|invalid| StoreError::Refused(invalid.to_string()))?;
        let batch = Batch {
            deadline: Instant::now() + self.timeout,
            refunds: Vec::new(),
            charges: Vec::new(),
            reservations: vec![reservation],
        };
        let outcome = self.store.reserve(&batch).await.pop();
        outcome.unwrap_or_else(|| Err(StoreError::Refused("no outcome".to_owned())))
    }

    async fn lower(&self, counter: &Counter, grant: &Grant, units: u64) {
        let (kind, window_s, offset_s) = counter.window.parts();
        if units > 0 {
            let (key, window) = (Arc::clone(&counter.key), grant.window);
            let refund = Adjustment { key, kind, window_s, offset_s, window, units };
            self.store.refund(&[refund]).await;
        }
    }
}

impl LocalCredits {
    fn add(&mut self, key: &Arc<str>, hits: u64, reset: Duration) {
        let now = Instant::now();
        if self.credits.len() >= MAX_CREDITS
            && self.swept.is_none_or(|swept| now.duration_since(swept) >= SWEEP)
        {
            self.swept = Some(now);
            self.credits.retain(|_, credit| credit.until > now);
        }
        let has_room = self.credits.len() < MAX_CREDITS;
        match self.credits.get_mut(key) {
            Some(credit) if credit.until > now => credit.hits = credit.hits.saturating_add(hits),
            Some(credit) => *credit = Credit { hits, until: now + reset },
            None if has_room => {
                self.credits.insert(Arc::clone(key), Credit { hits, until: now + reset });
            }
            None => {}
        }
    }

    /// Uses up at most so many hits. Returns how many there were.
    fn take(&mut self, key: &Arc<str>, hits: u64) -> u64 {
        let Some(credit) = self.credits.get_mut(key) else { return 0 };
        let live = if credit.until > Instant::now() { credit.hits } else { 0 };
        let taken = live.min(hits);
        credit.hits = live - taken;
        if credit.hits == 0 {
            self.credits.remove(key);
        }
        taken
    }
}

/// The counter of the credits of a counter. Its quota is never reached, and less than what a look
/// asks for, so that a look takes nothing of it.
fn credits(counter: &Counter) -> Counter {
    Counter { quota: MAX_UNITS - 1, ..beside(counter, REFUSED) }
}

/// A counter with the same partition and window, whose policy has another name.
fn beside(counter: &Counter, name: &str) -> Counter {
    let key = counter.key.replacen(":{", &format!("{name}:{{"), 1).into();
    Counter { key, ..counter.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_used_up_end_with_their_window_and_are_bounded() {
        let mut local = LocalCredits::default();
        let key: Arc<str> = "d:p:{a}".into();
        let hour = Duration::from_secs(3600);
        local.add(&key, 3, hour);
        local.add(&key, 2, hour);
        assert_eq!((local.take(&key, 4), local.take(&key, 4), local.take(&key, 4)), (4, 1, 0));
        local.add(&key, 3, Duration::ZERO);
        assert_eq!(local.take(&key, 1), 0, "the window has ended");
        for number in 0..=MAX_CREDITS {
            local.add(&format!("d:p:{{{number}}}").into(), 1, Duration::ZERO);
        }
        assert_eq!(local.credits.len(), 1, "what has ended makes room");
    }
}
