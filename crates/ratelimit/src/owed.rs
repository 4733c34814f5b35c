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
/// Pause between two tries to send orphans, and hits that wait for a store which is away.
const FLUSH: Duration = Duration::from_secs(1);
/// Pause between two tries at the end of the service.
const RETRY: Duration = Duration::from_millis(50);
/// Time for which an orphan waits for hits that another service adds late.
const ORPHAN_WAIT: Duration = Duration::from_secs(5);
/// How long refused hits are remembered at least: the stream of a refused request ends at once, and
/// its refund shows that the hits are needed.
const REMEMBERED: Duration = Duration::from_secs(5);
/// For how long a store that has answered is expected to answer again. After that it is asked
/// first, so that few hits are sent to one that has just gone: nobody would know their outcome.
const FRESH: Duration = Duration::from_millis(20);
/// For how long a rule that requests look at, or refund hits of, is known as such.
const KNOWN: Duration = Duration::from_secs(3600);
/// Pause before a service reads or leaves the mark of a rule again.
const MARK_INTERVAL: Duration = Duration::from_secs(1);
/// What the policy of a rule's mark ends with.
const MARK: &str = "~refunds";

/// Hits on their way to the store, for the counters of one domain. The rules of the domain may
/// change meanwhile.
pub struct OwedHits {
    store: Arc<dyn Store>,
    timeout: Duration,
    waiting: Mutex<WaitingHits>,
    /// Notified when hits must be sent at once.
    flush_now: Notify,
    /// Locked while hits are on their way to the store.
    flight: tokio::sync::Mutex<()>,
}

/// Hits that are not in the store yet.
#[derive(Default)]
struct WaitingHits {
    /// By `<domain>:<policy>`: as many as the domain has had rules.
    rules: HashMap<Box<str>, KnownRule>,
    charges: HitTable,
    refunds: HitTable,
    orphans: HitTable,
    /// Whether the next flush sends the orphans again.
    are_orphans_due: bool,
    /// When the refused hits of rules were last [aged](Self::age).
    aged: Option<Instant>,
    room: Room,
    /// Number of flushes that have begun.
    flushes: u64,
    /// When the store last answered, unless it has failed since.
    answered: Option<Instant>,
    /// Whether the last flush could not carry out all charges and refunds.
    is_behind: bool,
    /// Whether the store did not say which rules have refunds when it was last asked.
    is_blind: bool,
}

type HitTable = HashMap<Counter, DeferredHits>;

#[derive(Clone, Copy, Debug)]
struct DeferredHits {
    hits: u64,
    /// When nobody needs them any more: at the end of the window, at the latest.
    until: Instant,
}

/// Reason why hits wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HitKind {
    /// They must be added.
    Charge,
    /// They must be refunded.
    Refund,
    /// Refunds that found nothing. One that has found its hits stays, with none left, until its
    /// time has come: if it took the hit of a later stream, and that ends before, the refund of
    /// that stream waits no longer.
    Orphan,
    /// A rule refused them, and nobody knows whether its hits are refunded.
    Refused,
}

/// Room for all hits that wait in a domain.
#[derive(Default)]
struct Room {
    counters: usize,
    /// Of the keys of the counters.
    bytes: usize,
    /// Hits for which there was no room, since the last line in the log.
    dropped: u64,
}

/// Calls and marks of a rule, as far as they are known.
#[derive(Default)]
struct KnownRule {
    /// When a request last looked at a counter of it.
    looked: Option<Instant>,
    /// When its hits were last refunded, here or elsewhere.
    refunded: Option<Instant>,
    /// When this service last left its mark.
    marked: Option<Instant>,
    /// When the store last had no mark of it.
    unmarked: Option<Instant>,
    /// Its [refused](HitKind::Refused) hits: the recent ones, and those before.
    refused: [HitTable; 2],
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
        let (waiting, flush_now, flight) = Default::default();
        Self { store, timeout, waiting, flush_now, flight }
    }

    /// Notes that requests look at counters of this rule: they learn from it what they may spend,
    /// so its hits are charges.
    pub fn note_look(&self, counter: &Counter) {
        self.waiting().rule(rule_name(counter)).looked = Some(Instant::now());
    }

    /// Takes over hits that a request does not hold. Returns whether the store should know before
    /// the request is answered ([`flush`](Self::flush)): otherwise its refund, or the next look,
    /// could overtake them. While the store does not answer, nobody waits for it.
    pub fn add_untaken<'c>(&self, untaken: impl IntoIterator<Item = UntakenHits<'c>>) -> bool {
        let now = Instant::now();
        let mut waiting = self.waiting();
        let (is_behind, is_blind) = (waiting.is_behind, waiting.is_blind);
        let (mut is_due, mut is_awaited) = (false, false);
        for UntakenHits { counter, hits, is_given, counts, reset } in untaken {
            let rule = waiting.rule(rule_name(counter));
            let is_charge = rule.is_refunded(now) || counts && (is_given || rule.is_looked_at(now));
            let needs_check = !is_charge && rule.needs_check(now);
            is_due |= is_charge || needs_check;
            is_awaited |= is_charge && !is_behind || needs_check && !is_blind;
            let kind = if is_charge { HitKind::Charge } else { HitKind::Refused };
            let hits = DeferredHits { hits: hits.min(MAX_UNITS), until: now + reset };
            waiting.add(kind, counter.clone(), hits);
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
            for (counter, hits) in counters {
                let name = rule_name(&counter);
                waiting.note_refund(name, now);
                let rule = waiting.rule(name);
                if !is_within(rule.marked, MARK_INTERVAL, now) {
                    rule.marked = Some(now);
                    let one = DeferredHits { hits: 1, until: now + KNOWN };
                    waiting.add(HitKind::Charge, refund_mark(name), one);
                }
                let until = now + counter.window.length();
                waiting.add(HitKind::Refund, counter, DeferredHits { hits, until });
            }
        }
        self.flush().await;
    }

    /// Sends to the store what waits, and waits for what is on its way. Returns whether the store
    /// has carried out everything.
    ///
    /// Not cancel-safe: run it in a task of its own.
    pub async fn flush(&self) -> bool {
        let flushes = self.waiting().flushes;
        let _flight = self.flight.lock().await;
        {
            let mut waiting = self.waiting();
            // A flush that has begun since, and has ended, took the hits of this caller along.
            if waiting.flushes != flushes {
                return !waiting.is_behind;
            }
            waiting.flushes += 1;
        }
        let is_done = self.send().await;
        let mut waiting = self.waiting();
        waiting.is_behind = !is_done;
        if !is_done {
            waiting.answered = None;
        }
        is_done
    }

    /// Returns whether the store has carried out all charges and refunds. Marks, and orphans, may
    /// be sent again later.
    async fn send(&self) -> bool {
        let Some(silent) = self.look_first().await else { return false };
        let hits = self.waiting().take_due(&silent);
        let operations =
            hits.iter().map(|(kind, counter, hits)| kind.operation(counter, hits.hits));
        let outcomes = self.carry_out(operations.collect()).await;
        let mut waiting = self.waiting();
        let (mut is_done, now) = (silent.iter().all(is_mark), Instant::now());
        for ((kind, counter, DeferredHits { hits, until }), outcome) in
            hits.into_iter().zip(outcomes)
        {
            is_done &= outcome.is_ok() || kind == HitKind::Orphan || is_mark(&counter);
            let (next, hits, until) = match outcome {
                Ok(grant) if kind != HitKind::Charge => {
                    let missing = hits.saturating_sub(grant.granted);
                    (HitKind::Orphan, missing, until.min(now + ORPHAN_WAIT))
                }
                Err(error) if may_be_sent_again(&error) => (kind, hits, until),
                Ok(_) | Err(_) => (kind, 0, until),
            };
            if hits > 0 || kind == HitKind::Orphan {
                waiting.add(next, counter, DeferredHits { hits, until });
            }
        }
        is_done
    }

    /// Reads the marks of rules that have refused requests, and asks whether the store answers for
    /// the counters with hits that wait, unless it has just answered. Returns for which counters it
    /// does not; `None` if it answers nothing.
    async fn look_first(&self) -> Option<HashSet<Counter>> {
        let (rules, counters) = {
            let (waiting, now) = (self.waiting(), Instant::now());
            let is_fresh = is_within(waiting.answered, FRESH, now);
            (waiting.unchecked_rules(now), if is_fresh { HashSet::new() } else { waiting.due() })
        };
        let has_marks = !rules.is_empty();
        let marks = rules.into_iter().map(|rule| (refund_mark(&rule), Some(rule)));
        let looks: Vec<_> = marks.chain(counters.into_iter().map(|it| (it, None))).collect();
        let operations =
            looks.iter().map(|(counter, _)| CheckedReservation::new(look(counter)).ok());
        let outcomes = self.carry_out(operations.collect()).await;
        let (mut waiting, now) = (self.waiting(), Instant::now());
        let (mut answers, mut silent) = (false, HashSet::new());
        waiting.is_blind &= !has_marks;
        for ((counter, rule), outcome) in looks.into_iter().zip(outcomes) {
            match (outcome, rule) {
                (Err(_), Some(_)) => waiting.is_blind = true,
                (Err(_), None) => drop(silent.insert(counter)),
                (Ok(mark), Some(rule)) if mark.used > 0 => waiting.note_refund(&rule, now),
                (Ok(_), Some(rule)) => waiting.rule(&rule).unmarked = Some(now),
                (Ok(_), None) => answers = true,
            }
        }
        // Marks alone say nothing of counters that wait.
        (answers || silent.iter().all(is_mark)).then_some(silent)
    }

    /// Waits until all hits are added, and the store has carried out all refunds that it could.
    pub async fn flushed(&self) {
        self.waiting().rules.values_mut().for_each(|rule| rule.unmarked = None);
        while !self.flush().await || self.waiting().has_to_add() {
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Carries out one operation after the other. Their counters are those of requests that were
    /// counted, so they are within the bounds.
    async fn carry_out(&self, operations: Vec<Option<CheckedReservation>>) -> Vec<Reserved> {
        let mut outcomes = Vec::with_capacity(operations.len());
        let mut is_away = false;
        for batch in operations.chunks(BATCH) {
            let reservations: Vec<_> = batch.iter().flatten().cloned().collect();
            // Each further batch would wait in vain, and refunds wait for it.
            let mut carried_out = if is_away {
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
        if outcomes.iter().any(Result::is_ok) {
            self.waiting().answered = Some(Instant::now());
        }
        outcomes
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingHits> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingHits {
    fn rule(&mut self, name: &str) -> &mut KnownRule {
        self.rules.entry(name.into()).or_default()
    }

    /// Hits of the same kind add up. Those that may turn out to be needless never wait longer than
    /// the first ones, and leave half of the room to others.
    fn add(&mut self, kind: HitKind, counter: Counter, more: DeferredHits) {
        let (table, is_needed) = match kind {
            HitKind::Charge => (&mut self.charges, true),
            HitKind::Refund => (&mut self.refunds, true),
            HitKind::Orphan => (&mut self.orphans, false),
            HitKind::Refused => {
                let rule = self.rules.entry(rule_name(&counter).into()).or_default();
                let [recent, _] = &mut rule.refused;
                (recent, false)
            }
        };
        let now = Instant::now();
        match table.get_mut(&counter) {
            Some(known) if known.until > now && more.until <= now => {}
            Some(known) if known.until > now => {
                known.hits = known.hits.saturating_add(more.hits).min(MAX_UNITS);
                let [first, last] = [known.until.min(more.until), known.until.max(more.until)];
                known.until = if is_needed { last } else { first };
            }
            Some(ended) => *ended = more,
            None if self.room.take(&counter, if is_needed { 1 } else { 2 }) => {
                table.insert(counter, more);
            }
            None => {}
        }
    }

    /// Notes that hits of a rule are refunded. Those that it refused must then be added.
    fn note_refund(&mut self, name: &str, now: Instant) {
        let rule = self.rule(name);
        rule.refunded = Some(now);
        let refused: Vec<_> = rule.refused.iter_mut().flat_map(HashMap::drain).collect();
        for (counter, hits) in refused {
            self.room.free(&counter);
            self.add(HitKind::Charge, counter, hits);
        }
    }

    /// The rules that have refused hits, if only the store can say whether those are refunded.
    fn unchecked_rules(&self, now: Instant) -> Vec<Box<str>> {
        let has_refused = |rule: &KnownRule| rule.refused.iter().any(|hits| !hits.is_empty());
        let unchecked =
            self.rules.iter().filter(|(_, rule)| has_refused(rule) && rule.needs_check(now));
        unchecked.map(|(name, _)| name.clone()).collect()
    }

    /// The counters that the next flush sends hits of.
    fn due(&self) -> HashSet<Counter> {
        let orphans = self.orphans.iter().filter(|_| self.are_orphans_due);
        let due = self.charges.iter().chain(&self.refunds).chain(orphans);
        due.filter(|(_, hits)| hits.hits > 0).map(|(counter, _)| counter.clone()).collect()
    }

    /// Takes out what a flush sends, in the order of the flush. Hits of silent counters stay.
    fn take_due(&mut self, silent: &HashSet<Counter>) -> Vec<(HitKind, Counter, DeferredHits)> {
        let (now, mut taken) = (Instant::now(), Vec::new());
        let has_orphans = std::mem::take(&mut self.are_orphans_due);
        let orphans = has_orphans.then_some((HitKind::Orphan, &mut self.orphans));
        // Charges first, since refunds may be of these.
        let tables = [(HitKind::Charge, &mut self.charges), (HitKind::Refund, &mut self.refunds)];
        for (kind, table) in tables.into_iter().chain(orphans) {
            let is_sent =
                |counter: &Counter, it: &mut DeferredHits| it.hits > 0 && !silent.contains(counter);
            for (counter, hits) in table.extract_if(is_sent) {
                self.room.free(&counter);
                if hits.until > now {
                    taken.push((kind, counter, hits));
                }
            }
        }
        taken
    }

    /// Whether hits wait to be added, or may turn out to be needed.
    fn has_to_add(&self) -> bool {
        !self.charges.is_empty() || !self.unchecked_rules(Instant::now()).is_empty()
    }

    fn is_empty(&self) -> bool {
        let has_orphans = self.orphans.values().any(|orphan| orphan.hits > 0);
        self.charges.is_empty() && self.refunds.is_empty() && !has_orphans
    }

    /// Forgets what is too old, and reports what had no room. Call it every [`FLUSH`].
    fn age(&mut self) {
        let now = Instant::now();
        self.are_orphans_due = true;
        let Self { rules, orphans, room, .. } = self;
        orphans
            .extract_if(|_, hits| hits.until <= now)
            .for_each(|(counter, _)| room.free(&counter));
        if !is_within(self.aged, REMEMBERED, now) {
            self.aged = Some(now);
            for KnownRule { refused: [recent, before], .. } in rules.values_mut() {
                let old = std::mem::replace(before, std::mem::take(recent));
                old.keys().for_each(|counter| room.free(counter));
            }
        }
        let dropped = std::mem::take(&mut room.dropped);
        if dropped > 0 {
            tracing::warn!(
                "no room for hits of {dropped} counters: {MAX_WAITING} counters or {MAX_BYTES} bytes wait for the store"
            );
        }
    }
}

impl HitKind {
    /// Operation that the store carries out. `None` if it is out of its bounds.
    fn operation(self, counter: &Counter, hits: u64) -> Option<CheckedReservation> {
        let count_denied = self == Self::Charge;
        let hits = Reservation { want: hits, min: 1, count_denied, ..look(counter) };
        let checked = CheckedReservation::new(hits).ok()?;
        if self == Self::Charge { Some(checked) } else { checked.refunding() }
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

impl KnownRule {
    fn is_looked_at(&self, now: Instant) -> bool {
        is_within(self.looked, KNOWN, now)
    }

    fn is_refunded(&self, now: Instant) -> bool {
        is_within(self.refunded, KNOWN, now)
    }

    /// Whether the store must say whether its hits are refunded.
    fn needs_check(&self, now: Instant) -> bool {
        !self.is_refunded(now) && !is_within(self.unmarked, MARK_INTERVAL, now)
    }
}

fn is_within(time: Option<Instant>, age: Duration, now: Instant) -> bool {
    time.is_some_and(|time| now.saturating_duration_since(time) <= age)
}

/// Without an answer the store may have carried it out, and must not do so twice. A Redis that
/// hangs mostly has.
const fn may_be_sent_again(error: &StoreError) -> bool {
    !matches!(error, StoreError::NoAnswer(_))
}

/// Sends hits until nobody else has the domain, and none wait.
async fn keep_flushed(owed: Arc<OwedHits>) {
    let (mut is_well, mut aged) = (true, Instant::now());
    // In this order: nobody else can leave hits once this is the last reference.
    while Arc::strong_count(&owed) > 1 || !owed.waiting().is_empty() {
        if is_well {
            // It does not matter which of the two has come.
            let _ = tokio::time::timeout(FLUSH, owed.flush_now.notified()).await;
        } else {
            tokio::time::sleep(FLUSH).await;
        }
        if aged.elapsed() >= FLUSH {
            aged = Instant::now();
            owed.waiting().age();
        }
        is_well = owed.flush().await;
    }
}

/// Asks for what a counter has used.
pub fn look(counter: &Counter) -> Reservation {
    let (kind, window_s, offset_s) = counter.window.parts();
    let (key, quota) = (Arc::clone(&counter.key), counter.quota);
    Reservation { key, kind, window_s, offset_s, quota, ..Reservation::default() }
}

/// The counter that is above zero if the hits of a rule are refunded.
fn refund_mark(rule: &str) -> Counter {
    let (unit, time_zone) = (Unit::Hour, "UTC".into());
    let window = Window::Calendar(Calendar { unit, time_zone });
    Counter { key: format!("{rule}{MARK}:{{*}}").into(), quota: 0, window }
}

fn is_mark(counter: &Counter) -> bool {
    rule_name(counter).ends_with(MARK)
}

/// `<domain>:<policy>` of a counter.
fn rule_name(counter: &Counter) -> &str {
    counter.key.split_once(":{").map_or(&counter.key, |(rule, _)| rule)
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

    fn add(waiting: &mut WaitingHits, kind: HitKind, party: &str, hits: u64, left: Duration) {
        waiting.add(kind, counter(party), DeferredHits { hits, until: until(left) });
    }

    #[test]
    fn hits_add_up_end_with_their_window_and_are_bounded() {
        let mut waiting = WaitingHits::default();
        for hits in [3, 2] {
            add(&mut waiting, HitKind::Charge, "a", hits, HOUR);
        }
        assert_eq!(waiting.charges[&counter("a")].hits, 5);
        for hits in [3, 2] {
            add(&mut waiting, HitKind::Charge, "b", hits, Duration::ZERO);
        }
        assert_eq!(waiting.charges[&counter("b")].hits, 2, "the window has ended");
        for (hits, left) in [(3, HOUR), (2, Duration::ZERO)] {
            add(&mut waiting, HitKind::Orphan, "b", hits, left);
        }
        let orphan = waiting.orphans[&counter("b")];
        assert!(orphan.hits == 3 && orphan.until > Instant::now(), "the second one has ended");
        for number in 0..=MAX_WAITING {
            add(&mut waiting, HitKind::Orphan, &number.to_string(), 1, HOUR);
        }
        assert_eq!(waiting.room.counters, MAX_WAITING / 2, "there is room for charges");
        for number in 0..=MAX_WAITING {
            add(&mut waiting, HitKind::Charge, &number.to_string(), 1, HOUR);
        }
        assert_eq!(waiting.charges.len() + waiting.orphans.len(), MAX_WAITING);
        waiting.age();
        waiting.take_due(&HashSet::new());
        assert!(waiting.is_empty());
        assert_eq!((waiting.room.counters, waiting.room.bytes), (0, 0));
        let long = "x".repeat(1 << 20);
        for number in 0..9 {
            add(&mut waiting, HitKind::Charge, &format!("{long}{number}"), 1, HOUR);
        }
        assert_eq!(waiting.charges.len(), 7, "keys of 8 MiB at most");
    }

    #[test]
    fn refused_hits_are_forgotten_although_the_store_is_away() {
        let mut waiting = WaitingHits::default();
        add(&mut waiting, HitKind::Refused, "a", 1, HOUR);
        for _ in 0..2 {
            waiting.aged = Some(Instant::now() - 2 * REMEMBERED);
            assert_eq!(waiting.room.counters, 1);
            waiting.age();
        }
        assert!(waiting.rule("d:p").refused.iter().all(HashMap::is_empty));
        assert_eq!(waiting.room.counters, 0);
    }

    fn open_owed() -> OwedHits {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        OwedHits::new(store, Duration::from_secs(20))
    }

    #[tokio::test]
    async fn hits_of_a_counter_with_the_longest_key_are_added() {
        let owed = open_owed();
        let longest = counter(&"x".repeat(quotagate_protocol::MAX_KEY - "d:p:{}".len()));
        let (hits, reset) = (1, HOUR);
        owed.add_untaken([UntakenHits {
            counter: &longest,
            hits,
            is_given: true,
            counts: true,
            reset,
        }]);
        assert!(owed.flush().await);
        assert!(owed.waiting().is_empty());
    }

    /// Refunds a hit that nobody has taken.
    async fn refund_one(owed: &OwedHits) -> DeferredHits {
        owed.refund(BTreeMap::from([(counter("a"), 1)])).await;
        owed.waiting().orphans[&counter("a")]
    }

    #[tokio::test]
    async fn orphans_end_with_the_first_one_and_are_not_sent_by_every_flush() {
        let owed = open_owed();
        let first = refund_one(&owed).await;
        assert!(first.hits == 1 && first.until <= until(ORPHAN_WAIT));
        let both = refund_one(&owed).await;
        assert_eq!((both.hits, both.until), (2, first.until), "no longer than the first");
        // The next stream takes a hit.
        add(&mut owed.waiting(), HitKind::Charge, "a", 1, HOUR);
        owed.flush().await;
        assert_eq!(owed.waiting().orphans[&counter("a")].hits, 2, "not by every flush");
        for found in [1, 0] {
            owed.waiting().age();
            owed.flush().await;
            let orphan = owed.waiting().orphans[&counter("a")];
            assert_eq!((orphan.hits, orphan.until), (1, first.until), "{found} more found");
        }
        // So does another one, and its own refund finds none.
        add(&mut owed.waiting(), HitKind::Charge, "a", 1, HOUR);
        owed.waiting().age();
        owed.flush().await;
        assert_eq!(owed.waiting().orphans[&counter("a")].hits, 0, "all have found one");
        let later = refund_one(&owed).await;
        assert_eq!((later.hits, later.until), (1, first.until), "nor longer than the first");
        let ended = Instant::now();
        owed.waiting().orphans.get_mut(&counter("a")).unwrap().until = ended;
        owed.waiting().age();
        assert!(owed.waiting().orphans.is_empty() && owed.waiting().is_empty());
    }
}
