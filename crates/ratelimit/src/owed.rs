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

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quotagate_protocol::{Calendar, MAX_UNITS, Reservation, Unit, Window};
use quotagate_quota::evaluate::Counter;
use quotagate_store::store::{Batch, CheckedReservation, Reserved, Store, StoreError};
use tokio::sync::Notify;

/// Most counters of a domain whose hits wait, and most bytes of their keys. Hits of further ones
/// are dropped, and those that may turn out to be needless from the half on.
const MAX_WAITING: usize = 65_536;
const MAX_BYTES: usize = 8 << 20;
/// Most counters of one batch.
const BATCH: usize = 1024;
/// How often hits are sent that wait for a store which is away, and refunds that found nothing.
const FLUSH: Duration = Duration::from_secs(1);
/// When the end of the service tries again.
const AGAIN: Duration = Duration::from_millis(50);
/// How long a refund that finds nothing waits for hits that another service adds late.
const LATE: Duration = Duration::from_secs(5);
/// How long refused hits are remembered at least: the stream of a refused request ends at once, and
/// its refund shows that the hits are needed.
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
    /// Locked while hits are on their way to the store. When it last carried out everything.
    answered: tokio::sync::Mutex<Option<Instant>>,
    /// How many flushes have begun.
    flushes: AtomicU64,
}

/// Hits that are not in the store yet.
#[derive(Default)]
struct WaitingHits {
    /// By `<domain>:<policy>`.
    rules: HashMap<Box<str>, RuleCalls>,
    /// To be added, by counter.
    added: HashMap<Counter, DeferredHits>,
    /// To be refunded, by counter.
    refunds: HashMap<Counter, DeferredHits>,
    /// Refunds that found nothing, by counter. One that has found its hits stays, with none left,
    /// until its time has come: if it took the hit of a later stream, the refund of that stream
    /// waits no longer.
    late: HashMap<Counter, DeferredHits>,
    /// Refused by rules that may have refunds, which nobody knows yet: since `begun`, and before
    /// that.
    refused: [RefusedHits; 2],
    begun: Option<Instant>,
    room: Room,
    /// Whether the last flush could not carry out everything.
    is_behind: bool,
    /// Whether the store did not say which rules have refunds when it was last asked.
    is_blind: bool,
}

/// Hits by `<domain>:<policy>` and by counter.
type RefusedHits = HashMap<Box<str>, HashMap<Counter, DeferredHits>>;

/// What waits in all maps of a domain.
#[derive(Default)]
struct Room {
    counters: usize,
    /// Of the keys of the counters.
    bytes: usize,
    /// Hits for which there was no room, since the last line in the log.
    dropped: u64,
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
    /// Whether it shall tell them now.
    is_to_mark: bool,
    /// When the store last said that nobody refunds its hits.
    checked: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct DeferredHits {
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
        let owed = Arc::new(Self::new(store, timeout));
        tokio::spawn(keep_flushed(Arc::clone(&owed)));
        owed
    }

    fn new(store: Arc<dyn Store>, timeout: Duration) -> Self {
        Self {
            store,
            timeout,
            waiting: Mutex::default(),
            flush_now: Notify::new(),
            answered: tokio::sync::Mutex::default(),
            flushes: AtomicU64::new(0),
        }
    }

    /// Requests look at counters of this rule: they learn from it what they may spend, so its hits
    /// are charges.
    pub fn looks(&self, counter: &Counter) {
        self.waiting().calls(policy_of(counter)).looked = Some(Instant::now());
    }

    /// A request does not hold these hits. Returns whether the store should know before it is
    /// answered ([`flush`](Self::flush)): otherwise its refund, or the next look, could overtake
    /// them. While the store does not answer, nobody waits for it.
    pub fn add_untaken<'c>(&self, untaken: impl IntoIterator<Item = UntakenHits<'c>>) -> bool {
        let now = Instant::now();
        let mut waiting = self.waiting();
        let waiting = &mut *waiting;
        let (mut is_due, mut is_awaited) = (false, false);
        for UntakenHits { counter, hits, is_given, counts, reset } in untaken {
            let hits = DeferredHits { hits: hits.min(MAX_UNITS), until: now + reset };
            let calls = waiting.calls(policy_of(counter));
            let is_refunded = calls.refunded_at(now).is_some();
            if is_refunded || counts && (is_given || calls.known_at(now).is_some()) {
                add(&mut waiting.added, &mut waiting.room, counter.clone(), hits);
                is_due = true;
                is_awaited |= !waiting.is_behind;
            } else {
                let is_unchecked = calls.is_unchecked(now);
                is_due |= is_unchecked;
                is_awaited |= is_unchecked && !waiting.is_blind;
                let [refused, _] = &mut waiting.refused;
                let refused = refused.entry(policy_of(counter).into()).or_default();
                add_needless(refused, &mut waiting.room, counter.clone(), hits);
            }
        }
        if is_due {
            self.flush_now.notify_one();
        }
        is_awaited
    }

    /// Refunds so many hits of each counter. What is not refunded when it returns is tried again.
    ///
    /// Not cancel-safe: run it in a task of its own.
    pub async fn refund(&self, counters: BTreeMap<Counter, u64>) {
        {
            let now = Instant::now();
            let mut waiting = self.waiting();
            let waiting = &mut *waiting;
            for (counter, hits) in counters {
                let policy = policy_of(&counter);
                waiting.refunded(policy, now);
                let calls = waiting.calls(policy);
                if calls.marked.is_none_or(|marked| now - marked > MARKED) {
                    (calls.marked, calls.is_to_mark) = (Some(now), true);
                }
                let until = now + counter.window.length();
                let hits = DeferredHits { hits, until };
                add(&mut waiting.refunds, &mut waiting.room, counter, hits);
            }
        }
        self.flush().await;
    }

    /// Sends to the store what waits, and waits for what is on its way. Returns whether the store
    /// has carried out everything.
    ///
    /// Not cancel-safe: run it in a task of its own.
    pub async fn flush(&self) -> bool {
        self.flush_with(false).await
    }

    /// The same, with the refunds that found nothing.
    async fn flush_with(&self, late: bool) -> bool {
        let flushes = self.flushes.load(Ordering::SeqCst);
        let mut answered = self.answered.lock().await;
        // A flush that has begun since, and has ended, took the hits of this caller along.
        if !late && self.flushes.load(Ordering::SeqCst) != flushes {
            return !self.waiting().is_behind;
        }
        self.flushes.fetch_add(1, Ordering::SeqCst);
        let (is_done, has_asked) = self.send(*answered, late).await;
        self.waiting().is_behind = !is_done;
        if has_asked {
            *answered = is_done.then(Instant::now);
        }
        is_done
    }

    /// Returns whether the store has carried out everything, and whether it was asked for anything.
    async fn send(&self, answered: Option<Instant>, late: bool) -> (bool, bool) {
        let now = Instant::now();
        let is_fresh = answered.is_some_and(|answered| now - answered <= FRESH);
        let (has_looked, silent) = self.look_first(now, is_fresh, late).await;
        let Some(silent) = silent else { return (false, true) };
        let (marks, added, refunds, late) = {
            let mut waiting = self.waiting();
            let WaitingHits { added, refunds, late: found_nothing, room, .. } = &mut *waiting;
            let added = still(added, room, &silent, now);
            let refunds = still(refunds, room, &silent, now);
            let late = found_nothing.iter().filter(|(counter, hits)| {
                late && hits.hits > 0 && hits.until > now && !silent.contains(*counter)
            });
            let late: Vec<_> = late.map(|(counter, hits)| (counter.clone(), *hits)).collect();
            (waiting.unmarked(), added, refunds, late)
        };
        let has_asked = has_looked || !(marks.is_empty() && added.is_empty() && refunds.is_empty());
        // First, since refunds may be of these.
        let is_added = self.add_hits(added).await;
        let are_refunded = self.refund_hits(refunds).await;
        // No verdict depends on these two.
        self.refund_late(late).await;
        self.mark(&marks).await;
        (is_added && are_refunded && silent.is_empty(), has_asked)
    }

    /// Asks the store which rules have refunds, of those that refused requests without knowing it;
    /// and whether it answers for the counters with hits that wait, unless it has just answered.
    /// Returns whether it was asked, and for which counters it does not answer; `None` if it
    /// answers nothing.
    async fn look_first(
        &self,
        now: Instant,
        is_fresh: bool,
        late: bool,
    ) -> (bool, Option<HashSet<Counter>>) {
        let (policies, counters) = {
            let waiting = self.waiting();
            let late = waiting.late.iter().filter(|(_, hits)| late && hits.hits > 0);
            let waits = waiting.added.iter().chain(&waiting.refunds).chain(late);
            let counters: HashSet<Counter> =
                waits.filter(|_| !is_fresh).map(|(counter, _)| counter.clone()).collect();
            (waiting.unchecked(now), counters)
        };
        let marks = policies.iter().map(|policy| look(&mark_of(policy)));
        let looks: Vec<_> =
            marks.chain(counters.iter().map(|counter| look(&beside(counter)))).collect();
        let has_looked = !looks.is_empty();
        let mut outcomes = self.reserve(looks).await;
        let of_counters = outcomes.split_off(policies.len().min(outcomes.len()));
        let mut waiting = self.waiting();
        let now = Instant::now();
        for (policy, outcome) in policies.iter().zip(&outcomes) {
            match outcome {
                Ok(grant) if grant.used > 0 => waiting.refunded(policy, now),
                Ok(_) => waiting.calls(policy).checked = Some(now),
                Err(_) => {}
            }
        }
        if !outcomes.is_empty() {
            waiting.is_blind = outcomes.iter().any(Result::is_err);
        }
        drop(waiting);
        let answers = outcomes.iter().chain(&of_counters).any(Result::is_ok);
        let failed = counters.into_iter().zip(of_counters);
        let silent = failed.filter_map(|(counter, outcome)| outcome.is_err().then_some(counter));
        let silent: HashSet<Counter> = silent.collect();
        // Marks alone say nothing of counters that wait.
        (has_looked, (answers || silent.is_empty()).then_some(silent))
    }

    /// Tells other services that the hits of these rules are refunded.
    async fn mark(&self, policies: &[Box<str>]) {
        let marks = policies.iter().map(|policy| addition(&mark_of(policy), 1));
        let outcomes = self.reserve(marks.collect()).await;
        for (policy, outcome) in policies.iter().zip(outcomes) {
            if outcome.is_err() {
                self.waiting().calls(policy).marked = None;
            }
        }
    }

    async fn add_hits(&self, hits: Vec<(Counter, DeferredHits)>) -> bool {
        let counts = hits.iter().map(|(counter, hits)| addition(counter, hits.hits)).collect();
        let outcomes = self.reserve(counts).await;
        let mut is_done = true;
        for ((counter, hits), outcome) in hits.into_iter().zip(outcomes) {
            let Err(error) = outcome else { continue };
            is_done = false;
            if is_tried_again(&error) {
                let waiting = &mut *self.waiting();
                add(&mut waiting.added, &mut waiting.room, counter, hits);
            }
        }
        is_done
    }

    async fn refund_hits(&self, refunds: Vec<(Counter, DeferredHits)>) -> bool {
        let outcomes = self.refunded(&refunds).await;
        let (mut is_done, late) = (true, Instant::now() + LATE);
        for ((counter, DeferredHits { hits, until }), outcome) in refunds.into_iter().zip(outcomes)
        {
            let waiting = &mut *self.waiting();
            match outcome {
                Ok(grant) if grant.granted < hits => {
                    let hits = DeferredHits { hits: hits - grant.granted, until: until.min(late) };
                    add_needless(&mut waiting.late, &mut waiting.room, counter, hits);
                }
                Ok(_) => {}
                Err(error) => {
                    is_done = false;
                    if is_tried_again(&error) {
                        let hits = DeferredHits { hits, until };
                        add(&mut waiting.refunds, &mut waiting.room, counter, hits);
                    }
                }
            }
        }
        is_done
    }

    /// Refunds hits that were not found before. They keep their time.
    async fn refund_late(&self, late: Vec<(Counter, DeferredHits)>) {
        let outcomes = self.refunded(&late).await;
        for ((counter, hits), outcome) in late.into_iter().zip(outcomes) {
            let done = match outcome {
                Ok(grant) => grant.granted,
                Err(error) if is_tried_again(&error) => 0,
                Err(_) => hits.hits,
            };
            if let Some(known) = self.waiting().late.get_mut(&counter) {
                known.hits = known.hits.saturating_sub(done);
            }
        }
    }

    async fn refunded(&self, refunds: &[(Counter, DeferredHits)]) -> Vec<Reserved> {
        let operations = refunds.iter().map(|(counter, DeferredHits { hits, .. })| Reservation {
            want: *hits,
            min: 1,
            ..look(counter)
        });
        self.carry_out(operations, CheckedReservation::refunding).await
    }

    /// Waits until all hits are added, and the store has carried out all refunds that it could.
    pub async fn flushed(&self) {
        self.waiting().rules.values_mut().for_each(|calls| calls.checked = None);
        while !self.flush().await || self.waiting().has_to_add() {
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn has_some(&self) -> bool {
        let waiting = self.waiting();
        let is_late = waiting.late.values().any(|hits| hits.hits > 0);
        is_late || !waiting.added.is_empty() || !waiting.refunds.is_empty()
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
        self.calls(policy).refunded = Some(now);
        for refused in &mut self.refused {
            for (counter, hits) in refused.remove(policy).into_iter().flatten() {
                self.room.free(&counter);
                add(&mut self.added, &mut self.room, counter, hits);
            }
        }
    }

    /// The rules that have refused requests, if only the store can say whether their hits are
    /// refunded.
    fn unchecked(&self, now: Instant) -> Vec<Box<str>> {
        let refused = self.refused.iter().flat_map(HashMap::keys);
        let policies: HashSet<&str> = refused.map(|policy| &**policy).collect();
        let is_unchecked =
            |policy: &&str| self.rules.get(*policy).is_none_or(|calls| calls.is_unchecked(now));
        policies.into_iter().filter(is_unchecked).map(Box::from).collect()
    }

    /// Whether hits wait to be added, or may have to be.
    fn has_to_add(&self) -> bool {
        !self.added.is_empty() || !self.unchecked(Instant::now()).is_empty()
    }

    /// The rules that others shall learn to have refunds.
    fn unmarked(&mut self) -> Vec<Box<str>> {
        let rules = self.rules.iter_mut();
        let marks = rules.filter_map(|(policy, calls)| {
            std::mem::take(&mut calls.is_to_mark).then(|| policy.clone())
        });
        marks.collect()
    }

    /// Forgets what is too old, and reports what had no room. Call it every [`FLUSH`].
    fn age(&mut self) {
        let now = Instant::now();
        let Self { refused: [refused, before], late, room, .. } = self;
        late.retain(|counter, hits| {
            let is_kept = hits.until > now;
            if !is_kept {
                room.free(counter);
            }
            is_kept
        });
        if self.begun.is_none_or(|begun| now - begun > REMEMBERED) {
            self.begun = Some(now);
            let old = std::mem::replace(before, std::mem::take(refused));
            old.values().flat_map(HashMap::keys).for_each(|counter| room.free(counter));
        }
        let dropped = std::mem::take(&mut room.dropped);
        if dropped > 0 {
            tracing::warn!(
                "no room for hits of {dropped} counters: {MAX_WAITING} counters or {MAX_BYTES} bytes wait for the store"
            );
        }
    }
}

impl Room {
    /// Whether there is room for a counter. If so, it is taken.
    fn take(&mut self, counter: &Counter, share: usize) -> bool {
        let bytes = self.bytes.saturating_add(counter.key.len());
        let fits = self.counters < MAX_WAITING / share && bytes <= MAX_BYTES / share;
        if fits {
            self.counters += 1;
            self.bytes = bytes;
        } else {
            self.dropped += 1;
        }
        fits
    }

    fn free(&mut self, counter: &Counter) {
        self.counters = self.counters.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(counter.key.len());
    }
}

impl RuleCalls {
    /// Whether the store must say whether its hits are refunded.
    fn is_unchecked(&self, now: Instant) -> bool {
        self.refunded_at(now).is_none() && self.checked.is_none_or(|checked| now - checked > MARKED)
    }

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

fn add(
    waiting: &mut HashMap<Counter, DeferredHits>,
    room: &mut Room,
    counter: Counter,
    more: DeferredHits,
) {
    match waiting.get_mut(&counter) {
        Some(known) if known.until > Instant::now() => {
            known.hits = known.hits.saturating_add(more.hits).min(MAX_UNITS);
            known.until = known.until.max(more.until);
        }
        Some(ended) => *ended = more,
        None if room.take(&counter, 1) => drop(waiting.insert(counter, more)),
        None => {}
    }
}

/// The same for hits that may turn out to be needless. They never wait longer than the first ones.
fn add_needless(
    waiting: &mut HashMap<Counter, DeferredHits>,
    room: &mut Room,
    counter: Counter,
    more: DeferredHits,
) {
    match waiting.get_mut(&counter) {
        Some(known) if known.until > Instant::now() => {
            known.hits = known.hits.saturating_add(more.hits).min(MAX_UNITS);
            known.until = known.until.min(more.until);
        }
        Some(ended) => *ended = more,
        None if room.take(&counter, 2) => drop(waiting.insert(counter, more)),
        None => {}
    }
}

/// Takes out the hits whose time has not come, but for those of silent counters. The others stay.
fn still(
    waiting: &mut HashMap<Counter, DeferredHits>,
    room: &mut Room,
    silent: &HashSet<Counter>,
    now: Instant,
) -> Vec<(Counter, DeferredHits)> {
    let taken = waiting.extract_if(|counter, _| !silent.contains(counter));
    taken.inspect(|(counter, _)| room.free(counter)).filter(|(_, hits)| hits.until > now).collect()
}

/// Without an answer the store may have carried it out, and must not do so twice. A Redis that
/// hangs mostly has.
const fn is_tried_again(error: &StoreError) -> bool {
    !matches!(error, StoreError::NoAnswer(_))
}

/// Sends hits until nobody else has the domain, and none wait.
async fn keep_flushed(owed: Arc<OwedHits>) {
    let (mut is_well, mut aged) = (true, Instant::now());
    // In this order: nobody else can leave hits once this is the last reference.
    while Arc::strong_count(&owed) > 1 || owed.has_some() {
        if is_well {
            // It does not matter which of the two has come.
            let _ = tokio::time::timeout(FLUSH, owed.flush_now.notified()).await;
        } else {
            tokio::time::sleep(FLUSH).await;
        }
        let is_time = aged.elapsed() >= FLUSH;
        if is_time {
            aged = Instant::now();
            owed.waiting().age();
        }
        is_well = owed.flush_with(is_time).await && !owed.waiting().is_blind;
    }
}

/// Asks for what a counter has used.
pub fn look(counter: &Counter) -> Reservation {
    let (kind, window_s, offset_s) = counter.window.parts();
    let (key, quota) = (Arc::clone(&counter.key), counter.quota);
    Reservation { key, kind, window_s, offset_s, quota, ..Reservation::default() }
}

/// Adds hits to a counter, even beyond its limit.
fn addition(counter: &Counter, hits: u64) -> Reservation {
    Reservation { want: hits, min: hits, count_denied: true, ..look(counter) }
}

/// The counter that is above zero if the hits of a rule are refunded.
fn mark_of(policy: &str) -> Counter {
    mark_at(policy, ":{*}")
}

/// A counter that nobody raises, on the same server as this one.
fn beside(counter: &Counter) -> Counter {
    let policy = policy_of(counter);
    mark_at(policy, counter.key.strip_prefix(policy).unwrap_or_default())
}

fn mark_at(policy: &str, party: &str) -> Counter {
    let (unit, time_zone) = (Unit::Hour, "UTC".into());
    let window = Window::Calendar(Calendar { unit, time_zone });
    Counter { key: format!("{policy}{MARK}{party}").into(), quota: 0, window }
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

    fn until(left: Duration) -> Instant {
        Instant::now() + left
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn hits_add_up_end_with_their_window_and_are_bounded() {
        let (mut waiting, mut room) = (HashMap::new(), Room::default());
        for hits in [3, 2] {
            let hits = DeferredHits { hits, until: until(HOUR) };
            add(&mut waiting, &mut room, counter("a"), hits);
        }
        assert_eq!(waiting[&counter("a")].hits, 5);
        for hits in [3, 2] {
            let hits = DeferredHits { hits, until: until(Duration::ZERO) };
            add(&mut waiting, &mut room, counter("b"), hits);
        }
        assert_eq!(waiting[&counter("b")].hits, 2, "the window has ended");
        let one = DeferredHits { hits: 1, until: until(HOUR) };
        for number in 0..=MAX_WAITING {
            add_needless(&mut waiting, &mut room, counter(&number.to_string()), one);
        }
        assert_eq!(waiting.len(), MAX_WAITING / 2, "there is room for charges");
        for number in 0..=MAX_WAITING {
            add(&mut waiting, &mut room, counter(&number.to_string()), one);
        }
        assert_eq!(waiting.len(), MAX_WAITING);
        still(&mut waiting, &mut room, &HashSet::new(), Instant::now());
        assert_eq!((waiting.len(), room.counters, room.bytes), (0, 0, 0));
        let long = "x".repeat(1 << 20);
        for number in 0..9 {
            add(&mut waiting, &mut room, counter(&format!("{long}{number}")), one);
        }
        assert_eq!(waiting.len(), 7, "keys of 8 MiB at most");
    }

    #[test]
    fn refused_hits_are_forgotten_although_the_store_is_away() {
        let mut waiting = WaitingHits::default();
        let refused = waiting.refused[0].entry("d:p".into()).or_default();
        let hits = DeferredHits { hits: 1, until: until(HOUR) };
        add_needless(refused, &mut waiting.room, counter("a"), hits);
        for _ in 0..2 {
            waiting.begun = Some(Instant::now() - 2 * REMEMBERED);
            assert_eq!(waiting.room.counters, 1);
            waiting.age();
        }
        assert!(waiting.refused.iter().all(HashMap::is_empty));
        assert_eq!(waiting.room.counters, 0);
    }

    /// Refunds a hit that nobody has taken.
    async fn refund_one(owed: &OwedHits) {
        owed.refund(BTreeMap::from([(counter("a"), 1)])).await;
    }

    #[tokio::test]
    async fn late_refunds_end_with_the_first_one_and_are_not_sent_by_every_flush() {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        let owed = OwedHits::new(store, Duration::from_secs(20));
        refund_one(&owed).await;
        let first = owed.waiting().late[&counter("a")];
        assert!(first.hits == 1 && first.until <= until(LATE));
        refund_one(&owed).await;
        let both = owed.waiting().late[&counter("a")];
        assert_eq!((both.hits, both.until), (2, first.until), "no longer than the first");
        // The next stream takes a hit.
        let stream = DeferredHits { hits: 1, until: until(HOUR) };
        owed.add_hits(vec![(counter("a"), stream)]).await;
        owed.refund_late(vec![(counter("a"), both)]).await;
        assert_eq!(owed.waiting().late[&counter("a")].hits, 1, "one has found it");
        owed.refund_late(vec![(counter("a"), DeferredHits { hits: 1, ..first })]).await;
        refund_one(&owed).await;
        let of_stream = owed.waiting().late[&counter("a")];
        assert_eq!((of_stream.hits, of_stream.until), (2, first.until), "nor its own refund");
        let ended = Instant::now();
        owed.waiting().late.get_mut(&counter("a")).unwrap().until = ended;
        owed.waiting().age();
        assert!(owed.waiting().late.is_empty() && !owed.has_some());
    }
}
