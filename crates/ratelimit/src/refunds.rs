//! Hits that requests refund, and looks at counters.
//!
//! Envoy sends the call that refunds (`apply_on_stream_done` with `is_negative_hits`) at the end of
//! every request, admitted or not, and nothing links it to the first call. A request that took
//! nothing must not free what others hold. Each of its counters therefore gets a credit, and the
//! next call that refunds uses it up instead of lowering the counter. Credits end with the window.
//!
//! Credits are in the store, where all services see them. They gather in this process and leave in
//! one batch: at once if requests refund hits of the rule, else within a second. In the store, one
//! counter has the hits that were not taken, and a second one those of them that were used up. A
//! call uses credits up by a reservation of the second counter whose quota is the first one, so no
//! two calls use up the same credit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quotagate_protocol::{Adjustment, Grant, MAX_KEY, MAX_UNITS, Reservation};
use quotagate_quota::evaluate::Counter;
use quotagate_store::store::{Batch, CheckedReservation, Reserved, Store, StoreError};
use tokio::sync::Notify;

/// Most counters whose credits wait to be written. Beyond that, a call leaves none.
const MAX_CREDITS: usize = 65_536;
/// From so many on, credits are written at once.
const MANY_CREDITS: usize = MAX_CREDITS / 8;
/// Most credits of one batch.
const CREDIT_BATCH: usize = 1024;
/// The longest that credits wait to be written while the store answers.
const FLUSH: Duration = Duration::from_secs(1);
/// When the end of the service tries again to write credits.
const AGAIN: Duration = Duration::from_millis(50);
/// What the policy of a counter of credits ends with.
const CREDITS: &str = "~refused";
/// The same of the credits that were used up.
const USED_UP: &str = "~used-up";

/// Refunds hits, for the counters of one domain. The rules of the domain may change meanwhile.
pub struct NegativeHits {
    store: Arc<dyn Store>,
    timeout: Duration,
    credits: Mutex<WaitingCredits>,
    /// Notified when credits must be written at once.
    flush_now: Notify,
    /// Locked while credits are on their way to the store: whether the last flush wrote all.
    flight: tokio::sync::Mutex<bool>,
    /// How many flushes have begun.
    flushes: AtomicU64,
}

/// Credits that are not in the store yet.
#[derive(Default)]
struct WaitingCredits {
    /// `<domain>:<policy>` of the rules whose hits requests refund.
    refunding: HashSet<Box<str>>,
    /// By the counter of the credits.
    waiting: HashMap<Counter, WaitingCredit>,
}

#[derive(Clone, Copy)]
struct WaitingCredit {
    hits: u64,
    /// When the window ends.
    until: Instant,
}

/// What a counter says after a look or a refund.
#[derive(Clone, Copy, Debug)]
pub struct CounterReading {
    /// What it has used, `refunded` included.
    pub grant: Grant,
    /// Hits that the caller refunds now, with those that the look took.
    pub refunded: u64,
}

impl NegativeHits {
    /// For the counters of a domain. Needs a Tokio runtime. Dropping the last reference ends its
    /// background work.
    pub fn open(store: Arc<dyn Store>, timeout: Duration) -> Arc<Self> {
        let refunds = Arc::new(Self {
            store,
            timeout,
            credits: Mutex::default(),
            flush_now: Notify::new(),
            flight: tokio::sync::Mutex::default(),
            flushes: AtomicU64::new(0),
        });
        tokio::spawn(keep_flushed(Arc::clone(&refunds)));
        refunds
    }

    /// A request took none of these hits, of a counter that resets after the time beside it.
    pub fn leave_credits<'c>(&self, hits: impl IntoIterator<Item = (&'c Counter, u64, Duration)>) {
        let now = Instant::now();
        let mut credits = self.credits();
        let mut is_due = false;
        for (counter, hits, reset) in hits {
            let credit = WaitingCredit { hits: hits.min(MAX_UNITS), until: now + reset };
            credits.add(credits_of(counter), credit);
            is_due |= credits.refunding.contains(policy_of(counter));
        }
        is_due |= credits.waiting.len() >= MANY_CREDITS;
        drop(credits);
        if is_due {
            self.flush_now.notify_one();
        }
    }

    /// Looks at counters, and refunds so many hits of each; 0 only looks. The caller refunds
    /// [`CounterReading::refunded`] to the counters.
    ///
    /// Not cancel-safe: run it in a task of its own.
    pub async fn read(
        &self,
        counters: BTreeMap<Counter, u64>,
    ) -> Vec<(Counter, Result<CounterReading, StoreError>)> {
        if self.note_refunds(&counters) {
            // Otherwise the look would miss the credits of this process.
            self.flush().await;
        }
        let mut looks = Vec::new();
        for (counter, hits) in &counters {
            looks.push(look(counter));
            if *hits > 0 {
                looks.push(look(&credits_of(counter)));
            }
        }
        let mut outcomes = self.reserve(looks).await.into_iter();
        let mut next = || outcomes.next().unwrap_or_else(no_outcome);
        // What each counter says, and its credits.
        let looked: Vec<_> = counters
            .into_iter()
            .map(|(counter, hits)| {
                let grant = next();
                let credits = (hits > 0).then(&mut next).transpose();
                (counter, hits, grant, credits)
            })
            .collect();
        let uses = looked.iter().filter_map(|(counter, hits, grant, credits)| {
            let credits = usable(grant.as_ref().ok()?, credits.as_ref().ok()?.as_ref())?;
            Some(use_up(counter, credits.used, *hits))
        });
        let mut used_up = self.reserve(uses.collect()).await.into_iter();
        // Units that nobody refunds otherwise.
        let mut stray = Vec::new();
        let mut readings = Vec::with_capacity(looked.len());
        for (counter, hits, grant, credits) in looked {
            let reading = grant.and_then(|grant| {
                let absorbed = credits.and_then(|credits| {
                    if usable(&grant, credits.as_ref()).is_none() {
                        return Ok(0);
                    }
                    let used = used_up.next().unwrap_or_else(no_outcome)?;
                    if used.window == grant.window {
                        return Ok(used.granted);
                    }
                    // A window has begun in between, whose credits are others.
                    stray.extend(adjustment(&beside(&counter, USED_UP), &used));
                    Ok(0)
                });
                let absorbed =
                    absorbed.inspect_err(|_| stray.extend(adjustment(&counter, &grant)))?;
                let used = grant.used - grant.granted.min(grant.used);
                let refunded = used.min(hits.saturating_sub(absorbed)) + grant.granted;
                Ok(CounterReading { grant, refunded })
            });
            readings.push((counter, reading));
        }
        if !stray.is_empty() {
            self.store.refund(&stray).await;
        }
        readings
    }

    /// Takes note of the rules whose hits requests refund. Returns whether there are refunds.
    fn note_refunds(&self, counters: &BTreeMap<Counter, u64>) -> bool {
        let mut credits = self.credits();
        let mut refunds = counters.iter().filter(|(_, hits)| **hits > 0).peekable();
        let has_some = refunds.peek().is_some();
        for (counter, _) in refunds {
            let policy = policy_of(counter);
            if !credits.refunding.contains(policy) {
                credits.refunding.insert(policy.into());
            }
        }
        has_some
    }

    /// Writes the credits that wait, and waits for those that are being written. Returns whether
    /// all are written.
    pub async fn flush(&self) -> bool {
        let flushes = self.flushes.load(Ordering::SeqCst);
        let mut is_written = self.flight.lock().await;
        // A flush that has begun since, and has ended, took the credits of this caller along.
        if self.flushes.load(Ordering::SeqCst) != flushes {
            return *is_written;
        }
        self.flushes.fetch_add(1, Ordering::SeqCst);
        *is_written = true;
        let now = Instant::now();
        let waiting = std::mem::take(&mut self.credits().waiting);
        let waiting: Vec<_> =
            waiting.into_iter().filter(|(_, credit)| credit.until > now).collect();
        let mut is_away = false;
        for batch in waiting.chunks(CREDIT_BATCH) {
            if is_away {
                for (counter, credit) in batch {
                    self.credits().add(counter.clone(), *credit);
                }
                continue;
            }
            let reservations = batch.iter().map(|(counter, credit)| Reservation {
                quota: MAX_UNITS,
                want: credit.hits,
                min: credit.hits,
                spare: 0,
                ..look(counter)
            });
            let outcomes = self.reserve(reservations.collect()).await;
            // Each further batch would wait in vain, and refunds wait for the flush.
            is_away = outcomes.iter().all(Result::is_err);
            for ((counter, credit), outcome) in batch.iter().zip(outcomes) {
                let Err(error) = outcome else { continue };
                *is_written = false;
                // Without an answer it may have been written, and must not be written twice.
                if !matches!(error, StoreError::NoAnswer(_)) {
                    self.credits().add(counter.clone(), *credit);
                }
            }
        }
        *is_written
    }

    /// Waits until no credit is left to write.
    pub async fn flushed(&self) {
        while !self.flush().await || self.has_credits() {
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn has_credits(&self) -> bool {
        !self.credits().waiting.is_empty()
    }

    async fn reserve(&self, reservations: Vec<Reservation>) -> Vec<Reserved> {
        let checked: Result<Vec<_>, _> =
            reservations.into_iter().map(CheckedReservation::new).collect();
        // Their counters are those of requests that were counted.
        let Ok(reservations) = checked else { return Vec::new() };
        if reservations.is_empty() {
            return Vec::new();
        }
        let deadline = Instant::now() + self.timeout;
        let (refunds, charges) = (Vec::new(), Vec::new());
        self.store.reserve(&Batch { deadline, refunds, charges, reservations }).await
    }

    fn credits(&self) -> MutexGuard<'_, WaitingCredits> {
        self.credits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingCredits {
    fn add(&mut self, counter: Counter, credit: WaitingCredit) {
        let has_room = self.waiting.len() < MAX_CREDITS;
        match self.waiting.get_mut(&counter) {
            Some(known) if known.until > Instant::now() => {
                known.hits = known.hits.saturating_add(credit.hits).min(MAX_UNITS);
            }
            Some(ended) => *ended = credit,
            None if has_room => {
                self.waiting.insert(counter, credit);
            }
            None => {}
        }
    }
}

/// Writes credits until nobody else has the domain, and all are written.
async fn keep_flushed(refunds: Arc<NegativeHits>) {
    // In this order: nobody else can leave a credit once this is the last reference.
    while Arc::strong_count(&refunds) > 1 || refunds.has_credits() {
        // It does not matter which of the two has come.
        let _ = tokio::time::timeout(FLUSH, refunds.flush_now.notified()).await;
        while !refunds.flush().await {
            tokio::time::sleep(FLUSH).await;
        }
    }
}

fn no_outcome() -> Reserved {
    Err(StoreError::Refused("no outcome".to_owned()))
}

/// Asks for what a counter has used. As no request waits for units, the store grants at most one,
/// and only if eight are left; of a counter of credits none.
fn look(counter: &Counter) -> Reservation {
    let (kind, window_s, offset_s) = counter.window.parts();
    let (key, quota, spare) = (Arc::clone(&counter.key), counter.quota, 1);
    Reservation { key, kind, window_s, offset_s, quota, spare, ..Reservation::default() }
}

/// The credits of a counter, if there are some in the window of its own grant.
fn usable<'g>(own: &Grant, credits: Option<&'g Grant>) -> Option<&'g Grant> {
    credits.filter(|credits| credits.used > 0 && credits.window == own.window)
}

/// Refunds what a grant has of a counter.
fn adjustment(counter: &Counter, grant: &Grant) -> Option<Adjustment> {
    let (kind, window_s, offset_s) = counter.window.parts();
    let (key, window, units) = (Arc::clone(&counter.key), grant.window, grant.granted);
    (units > 0).then_some(Adjustment { key, kind, window_s, offset_s, window, units })
}

/// Uses up at most `hits` of the `credits` of a counter.
fn use_up(counter: &Counter, credits: u64, hits: u64) -> Reservation {
    let counter = Counter { quota: credits, ..beside(counter, USED_UP) };
    Reservation { want: hits, min: 1, spare: 0, ..look(&counter) }
}

/// The counter of the credits of a counter.
fn credits_of(counter: &Counter) -> Counter {
    Counter { quota: 0, ..beside(counter, CREDITS) }
}

/// A counter with the same partition and window, whose policy has another name.
fn beside(counter: &Counter, name: &str) -> Counter {
    let policy = policy_of(counter);
    let key = match counter.key.get(policy.len()..) {
        Some(party) if counter.key.len() + name.len() <= MAX_KEY => {
            format!("{policy}{name}{party}")
        }
        // Shared credits are used up too often, which admits fewer requests.
        _ => format!("{policy}{name}:{{*}}"),
    };
    Counter { key: key.into(), ..counter.clone() }
}

/// `<domain>:<policy>` of a counter.
fn policy_of(counter: &Counter) -> &str {
    counter.key.split_once(":{").map_or(&counter.key, |(policy, _)| policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quotagate_protocol::Window;

    fn counter(party: &str) -> Counter {
        let key = format!("d:p:{{{party}}}").into();
        Counter { key, quota: 2, window: Window::new(3600, 0).unwrap() }
    }

    #[test]
    fn only_credits_of_the_same_window_are_used_up() {
        let of = |window, used| Grant {
            granted: 0,
            used,
            quota: 2,
            reset_ms: 1_000,
            window,
            ..Grant::default()
        };
        for (credits, is_usable) in [
            (None, false),
            (Some(of(7, 0)), false),
            (Some(of(8, 1)), false),
            (Some(of(7, 1)), true),
        ] {
            assert_eq!(usable(&of(7, 2), credits.as_ref()).is_some(), is_usable, "{credits:?}");
        }
    }

    #[test]
    fn credits_add_up_end_with_their_window_and_are_bounded() {
        let mut credits = WaitingCredits::default();
        let until = |left: Duration| Instant::now() + left;
        let hour = Duration::from_secs(3600);
        for hits in [3, 2] {
            credits.add(counter("a"), WaitingCredit { hits, until: until(hour) });
        }
        assert_eq!(credits.waiting[&counter("a")].hits, 5);
        for hits in [3, 2] {
            credits.add(counter("b"), WaitingCredit { hits, until: until(Duration::ZERO) });
        }
        assert_eq!(credits.waiting[&counter("b")].hits, 2, "the window has ended");
        for number in 0..=MAX_CREDITS {
            let credit = WaitingCredit { hits: 1, until: until(hour) };
            credits.add(counter(&number.to_string()), credit);
        }
        assert_eq!(credits.waiting.len(), MAX_CREDITS);
    }
}
