//! Hits that count although their request does not hold them, and hits that are refunded.
//!
//! Two kinds of calls of Envoy come when it is too late to refuse anything. A **charge** says what
//! an answer has cost: its hits count even beyond the limit. A **refund** (`is_negative_hits`)
//! comes at the end of every request, admitted or not, and nothing links it to the first call. So
//! the hits that a refused request did not take are charged, too, if its rule is one whose hits are
//! refunded. Each hit is then added once and refunded once: when all requests have ended, the
//! counter is at zero, and nothing is left to remember.
//!
//! What the store has not carried out waits here until it has, and so does a refund that finds
//! nothing: the hits may still be on their way from another service. A service learns that the hits
//! of a rule are refunded from the first refund that it sees, or from a mark that another service
//! has left in the store. Until then a refused request costs nothing, but its hits are remembered
//! for a moment.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quotagate_protocol::{Calendar, MAX_UNITS, Reservation, Unit, Window};
use quotagate_quota::evaluate::Counter;
use quotagate_store::store::{Batch, CheckedReservation, Reserved, Store, StoreError};
use tokio::sync::Notify;

/// Most counters whose hits wait to be added, and most that wait for a refund. Hits of further ones
/// are dropped.
const MAX_WAITING: usize = 65_536;
/// Most counters of one batch.
const BATCH: usize = 1024;
/// How often hits are sent that wait for a store which is away, and refunds that found nothing.
const FLUSH: Duration = Duration::from_secs(1);
/// When the end of the service tries again.
const AGAIN: Duration = Duration::from_millis(50);
/// How long a refund that finds nothing waits for hits that another service adds late.
const LATE: Duration = Duration::from_secs(60);
/// How long refused hits are remembered at least while the store answers: the stream of a refused
/// request ends at once, and its refund shows that the hits are needed.
const REMEMBERED: Duration = Duration::from_secs(5);
/// For how long a store that has answered is expected to answer again. After that it is asked
/// first, so that few hits are sent to one that has just gone: nobody would know their fate.
const FRESH: Duration = Duration::from_millis(20);
/// For how long a rule that requests look at, or refund hits of, is known as such.
const KNOWN: Duration = Duration::from_secs(3600);
/// How often a service looks and says whether the hits of a rule are refunded.
const MARKED: Duration = Duration::from_secs(1);
/// What the policy of a rule's mark ends with.
const MARK: &str = "~refunds";

/// Hits on their way to the store, for the counters of one domain. The rules of the domain may
/// change meanwhile.
pub struct OwedHits {
    store: Arc<dyn Store>,
    timeout: Duration,
    waiting: Mutex<WaitingHits>,
    /// Notified when hits must be added at once.
    flush_now: Notify,
    /// Locked while hits are on their way to the store.
    flight: tokio::sync::Mutex<Flight>,
    /// How many flushes have begun.
    flushes: AtomicU64,
}

/// What the last flush found.
#[derive(Default)]
struct Flight {
    /// Whether it carried out everything.
    is_done: bool,
    /// When the store last answered.
    answered: Option<Instant>,
}

/// Hits that are not in the store yet.
#[derive(Default)]
struct WaitingHits {
    /// By `<domain>:<policy>`.
    rules: HashMap<Box<str>, RuleCalls>,
    /// To be added, by counter.
    added: HashMap<Counter, Waiting>,
    /// To be refunded, by counter.
    refunds: HashMap<Counter, Waiting>,
    /// Refused by rules of which nobody knows whether their hits are refunded: since `begun`, and
    /// before that.
    refused: [HashMap<Counter, Waiting>; 2],
    begun: Option<Instant>,
}

/// What is known of the calls of a rule.
#[derive(Clone, Copy, Default)]
struct RuleCalls {
    /// When a request last looked at a counter of it.
    looked: Option<Instant>,
    /// When its hits were last refunded, here or elsewhere.
    refunded: Option<Instant>,
    /// When this service last told others so.
    marked: Option<Instant>,
    /// When the store last said that nobody refunds its hits.
    checked: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    hits: u64,
    /// When nobody needs them any more: at the end of the window, at the latest.
    until: Instant,
}

/// Hits of a descriptor that its request does not hold.
pub struct UntakenHits<'c> {
    /// Their counter.
    pub counter: &'c Counter,
    /// How many.
    pub hits: u64,
    /// Whether the descriptor gave them (`hits_addend`).
    pub is_given: bool,
    /// Whether the rule counts. If a dial has turned it off, nothing is charged.
    pub counts: bool,
    /// Until the window ends.
    pub reset: Duration,
}

impl OwedHits {
    /// For the counters of a domain. Needs a Tokio runtime. Dropping the last reference ends its
    /// background work.
    pub fn open(store: Arc<dyn Store>, timeout: Duration) -> Arc<Self> {
        let owed = Arc::new(Self {
            store,
            timeout,
            waiting: Mutex::default(),
            flush_now: Notify::new(),
            flight: tokio::sync::Mutex::default(),
            flushes: AtomicU64::new(0),
        });
        tokio::spawn(keep_flushed(Arc::clone(&owed)));
        owed
    }

    /// Requests look at counters of this rule: they learn from it what they may spend, so its hits
    /// are charges.
    pub fn looks(&self, counter: &Counter) {
        self.waiting().calls(policy_of(counter)).looked = Some(Instant::now());
    }

    /// A request does not hold these hits. Returns whether the store must know before it is
    /// answered ([`flush`](Self::flush)): otherwise its refund, or the next look, could overtake
    /// them.
    pub fn add_untaken<'c>(&self, untaken: impl IntoIterator<Item = UntakenHits<'c>>) -> bool {
        let now = Instant::now();
        let mut waiting = self.waiting();
        let mut is_due = false;
        for UntakenHits { counter, hits, is_given, counts, reset } in untaken {
            let hits = Waiting { hits: hits.min(MAX_UNITS), until: now + reset };
            let calls = waiting.calls(policy_of(counter));
            let is_refunded = calls.refunded_at(now).is_some();
            if is_refunded || counts && (is_given || calls.known_at(now).is_some()) {
                add(&mut waiting.added, counter.clone(), hits);
                is_due = true;
            } else {
                is_due |= calls.checked.is_none_or(|checked| now - checked > MARKED);
                let [refused, _] = &mut waiting.refused;
                add(refused, counter.clone(), hits);
            }
        }
        drop(waiting);
        if is_due {
            self.flush_now.notify_one();
        }
        is_due
    }

    /// Refunds so many hits of each counter. What is not refunded when it returns is tried again.
    ///
    /// Not cancel-safe: run it in a task of its own.
    pub async fn refund(&self, counters: BTreeMap<Counter, u64>) {
        {
            let now = Instant::now();
            let mut waiting = self.waiting();
            for (counter, hits) in counters {
                waiting.refunded(policy_of(&counter), now);
                let until = now + counter.window.length();
                add(&mut waiting.refunds, counter, Waiting { hits, until });
            }
        }
        self.flush().await;
    }

    /// Sends to the store what waits, and waits for what is on its way. Returns whether the store
    /// has carried out everything.
    ///
    /// Not cancel-safe: run it in a task of its own.
    pub async fn flush(&self) -> bool {
        let flushes = self.flushes.load(Ordering::SeqCst);
        let mut flight = self.flight.lock().await;
        // A flush that has begun since, and has ended, took the hits of this caller along.
        if self.flushes.load(Ordering::SeqCst) != flushes {
            return flight.is_done;
        }
        self.flushes.fetch_add(1, Ordering::SeqCst);
        let now = Instant::now();
        if self.is_ready(&flight, now).await {
            let (added, refunds) = {
                let mut waiting = self.waiting();
                (still(&mut waiting.added, now), still(&mut waiting.refunds, now))
            };
            // First, since refunds may be of these.
            let is_added = self.add_hits(added).await;
            flight.is_done = self.refund_hits(refunds).await && is_added;
            flight.answered = flight.is_done.then(Instant::now);
        } else {
            flight.is_done = false;
        }
        flight.is_done
    }

    /// Asks the store which rules have refunds, of those that refused requests without knowing it.
    /// Returns whether the store can be expected to answer.
    async fn is_ready(&self, flight: &Flight, now: Instant) -> bool {
        let (policies, any) = {
            let waiting = self.waiting();
            let any = waiting.added.keys().chain(waiting.refunds.keys()).next().cloned();
            (waiting.unchecked(now), any)
        };
        let mut marks: Vec<Counter> = policies.iter().map(|policy| mark_of(policy)).collect();
        let is_fresh = flight.answered.is_some_and(|answered| now - answered <= FRESH);
        marks.extend(
            any.filter(|_| marks.is_empty() && !is_fresh).map(|it| mark_of(policy_of(&it))),
        );
        let outcomes = self.reserve(marks.iter().map(look).collect()).await;
        let mut waiting = self.waiting();
        let (mut is_ready, now) = (true, Instant::now());
        for (policy, outcome) in policies.iter().zip(&outcomes) {
            match outcome {
                Ok(grant) if grant.used > 0 => waiting.refunded(policy, now),
                Ok(_) => waiting.calls(policy).checked = Some(now),
                Err(_) => {}
            }
        }
        is_ready &= outcomes.iter().all(Result::is_ok);
        if is_ready && waiting.begun.is_none_or(|begun| now - begun > REMEMBERED) {
            waiting.begun = Some(now);
            let [refused, before] = &mut waiting.refused;
            *before = std::mem::take(refused);
        }
        is_ready
    }

    async fn add_hits(&self, added: Vec<(Counter, Waiting)>) -> bool {
        let counts = added.iter().map(|(counter, hits)| Reservation {
            want: hits.hits,
            min: hits.hits,
            spare: 0,
            count_denied: true,
            ..look(counter)
        });
        let outcomes = self.reserve(counts.collect()).await;
        let mut is_done = true;
        for ((counter, hits), outcome) in added.into_iter().zip(outcomes) {
            let Err(error) = outcome else { continue };
            is_done = false;
            if is_tried_again(&error) {
                add(&mut self.waiting().added, counter, hits);
            }
        }
        is_done
    }

    async fn refund_hits(&self, refunds: Vec<(Counter, Waiting)>) -> bool {
        let operations = refunds.iter().map(|(counter, Waiting { hits, .. })| Reservation {
            want: *hits,
            min: 1,
            spare: 0,
            ..look(counter)
        });
        let outcomes = self.carry_out(operations, CheckedReservation::refunding).await;
        let (mut is_done, late) = (true, Instant::now() + LATE);
        for ((counter, Waiting { hits, until }), outcome) in refunds.into_iter().zip(outcomes) {
            let missing = match outcome {
                Ok(grant) => {
                    Waiting { hits: hits.saturating_sub(grant.granted), until: until.min(late) }
                }
                Err(error) => {
                    is_done = false;
                    let hits = if is_tried_again(&error) { hits } else { 0 };
                    Waiting { hits, until }
                }
            };
            if missing.hits > 0 {
                add(&mut self.waiting().refunds, counter, missing);
            }
        }
        is_done
    }

    /// Waits until all hits are added, and the store has carried out all refunds that it could.
    pub async fn flushed(&self) {
        self.waiting().rules.values_mut().for_each(|calls| calls.checked = None);
        while !self.flush().await || !self.waiting().added.is_empty() {
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn has_some(&self) -> bool {
        let waiting = self.waiting();
        !waiting.added.is_empty() || !waiting.refunds.is_empty()
    }

    async fn reserve(&self, reservations: Vec<Reservation>) -> Vec<Reserved> {
        self.carry_out(reservations.into_iter(), Some).await
    }

    /// Carries out one operation after the other. Their counters are those of requests that were
    /// counted, so they are within the bounds.
    async fn carry_out(
        &self,
        reservations: impl Iterator<Item = Reservation>,
        how: fn(CheckedReservation) -> Option<CheckedReservation>,
    ) -> Vec<Reserved> {
        let checked = reservations.map(|it| CheckedReservation::new(it).ok().and_then(how));
        let checked: Vec<_> = checked.collect();
        let mut outcomes = Vec::with_capacity(checked.len());
        let mut is_away = false;
        for batch in checked.chunks(BATCH) {
            let reservations: Vec<_> = batch.iter().flatten().cloned().collect();
            // Each further batch would wait in vain, and refunds wait for it.
            let mut carried_out = if is_away || reservations.is_empty() {
                Vec::new()
            } else {
                let deadline = Instant::now() + self.timeout;
                let (refunds, charges) = (Vec::new(), Vec::new());
                self.store.reserve(&Batch { deadline, refunds, charges, reservations }).await
            }
            .into_iter();
            let first = outcomes.len();
            outcomes.extend(batch.iter().map(|checked| {
                let outcome = checked.as_ref().and_then(|_| carried_out.next());
                outcome.unwrap_or(Err(StoreError::Late))
            }));
            is_away = outcomes.iter().skip(first).all(Result::is_err);
        }
        outcomes
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingHits> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingHits {
    fn calls(&mut self, policy: &str) -> &mut RuleCalls {
        // As many as the domain has had rules.
        self.rules.entry(policy.into()).or_default()
    }

    /// The hits of a rule are refunded.
    fn refunded(&mut self, policy: &str, now: Instant) {
        let calls = self.calls(policy);
        calls.refunded = Some(now);
        if calls.marked.is_none_or(|marked| now - marked > MARKED) {
            calls.marked = Some(now);
            add(&mut self.added, mark_of(policy), Waiting { hits: 1, until: now + KNOWN });
        }
        for refused in &mut self.refused {
            for (counter, hits) in refused.extract_if(|counter, _| policy_of(counter) == policy) {
                add(&mut self.added, counter, hits);
            }
        }
    }

    /// The rules that have refused requests, and of which the store must say whether their hits are
    /// refunded.
    fn unchecked(&self, now: Instant) -> BTreeSet<Box<str>> {
        let is_unchecked = |policy: &&str| {
            let checked = self.rules.get(*policy).and_then(|calls| calls.checked);
            checked.is_none_or(|checked| now - checked > MARKED)
        };
        let refused = self.refused.iter().flat_map(HashMap::keys);
        refused.map(policy_of).filter(is_unchecked).map(Box::from).collect()
    }
}

impl RuleCalls {
    /// Whether its hits are refunded.
    fn refunded_at(&self, now: Instant) -> Option<Instant> {
        self.refunded.filter(|refunded| now - *refunded < KNOWN)
    }

    /// Whether all its hits count: requests look at it, or refund hits of it.
    fn known_at(&self, now: Instant) -> Option<Instant> {
        let looked = self.looked.filter(|looked| now - *looked < KNOWN);
        looked.or(self.refunded_at(now))
    }
}

fn add(waiting: &mut HashMap<Counter, Waiting>, counter: Counter, more: Waiting) {
    let has_room = waiting.len() < MAX_WAITING;
    match waiting.get_mut(&counter) {
        Some(known) if known.until > Instant::now() => {
            known.hits = known.hits.saturating_add(more.hits).min(MAX_UNITS);
            known.until = known.until.max(more.until);
        }
        Some(ended) => *ended = more,
        None if has_room => drop(waiting.insert(counter, more)),
        None => {}
    }
}

/// Takes out the hits whose time has not come.
fn still(waiting: &mut HashMap<Counter, Waiting>, now: Instant) -> Vec<(Counter, Waiting)> {
    std::mem::take(waiting).into_iter().filter(|(_, hits)| hits.until > now).collect()
}

/// Without an answer the store may have carried it out, and must not do so twice. A Redis that
/// hangs mostly has.
const fn is_tried_again(error: &StoreError) -> bool {
    !matches!(error, StoreError::NoAnswer(_))
}

/// Sends hits until nobody else has the domain, and none wait.
async fn keep_flushed(owed: Arc<OwedHits>) {
    // In this order: nobody else can leave hits once this is the last reference.
    while Arc::strong_count(&owed) > 1 || owed.has_some() {
        // It does not matter which of the two has come.
        let _ = tokio::time::timeout(FLUSH, owed.flush_now.notified()).await;
        while !owed.flush().await {
            tokio::time::sleep(FLUSH).await;
        }
    }
}

/// Asks for what a counter has used. As no request waits for units, the store grants at most one,
/// and only if eight are left; of a mark none.
pub fn look(counter: &Counter) -> Reservation {
    let (kind, window_s, offset_s) = counter.window.parts();
    let (key, quota, spare) = (Arc::clone(&counter.key), counter.quota, 1);
    Reservation { key, kind, window_s, offset_s, quota, spare, ..Reservation::default() }
}

/// The counter that is above zero if the hits of a rule are refunded.
fn mark_of(policy: &str) -> Counter {
    let (unit, time_zone) = (Unit::Day, "UTC".into());
    let window = Window::Calendar(Calendar { unit, time_zone });
    Counter { key: format!("{policy}{MARK}:{{*}}").into(), quota: 0, window }
}

/// `<domain>:<policy>` of a counter.
fn policy_of(counter: &Counter) -> &str {
    counter.key.split_once(":{").map_or(&counter.key, |(policy, _)| policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(party: &str) -> Counter {
        let key = format!("d:p:{{{party}}}").into();
        Counter { key, quota: 2, window: Window::new(3600, 0).unwrap() }
    }

    #[test]
    fn hits_add_up_end_with_their_window_and_are_bounded() {
        let mut waiting = HashMap::new();
        let until = |left: Duration| Instant::now() + left;
        let hour = Duration::from_secs(3600);
        for hits in [3, 2] {
            add(&mut waiting, counter("a"), Waiting { hits, until: until(hour) });
        }
        assert_eq!(waiting[&counter("a")].hits, 5);
        for hits in [3, 2] {
            add(&mut waiting, counter("b"), Waiting { hits, until: until(Duration::ZERO) });
        }
        assert_eq!(waiting[&counter("b")].hits, 2, "the window has ended");
        for number in 0..=MAX_WAITING {
            let hits = Waiting { hits: 1, until: until(hour) };
            add(&mut waiting, counter(&number.to_string()), hits);
        }
        assert_eq!(waiting.len(), MAX_WAITING);
    }
}
