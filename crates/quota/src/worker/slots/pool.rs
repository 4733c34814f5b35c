//! What a worker knows of the slots of one counter: how many its requests hold, how many the store
//! counts for it, and which requests wait for more.
//!
//! The one rule: a request takes slots only while `live`, the slots that requests hold, stays
//! within `confirmed`, the slots that the store counts for this worker whatever becomes of the
//! message under way. A message says how many of them the worker goes on to hold. From its dispatch
//! on, only these are confirmed, and its answer confirms what it grants beside them. If the answer
//! is lost, the next message corrects what the store believes.
//!
//! What is confirmed lasts for [`LASTS`] from the dispatch of the last answered message. Requests
//! that still run after that are debt: they count, and nothing new is admitted until the store
//! grants again.
//!
//! Requests of one counter may have different limits, by a tier or `quota_from`. A message carries
//! one limit and asks only for requests that have it; their turns follow each other. What it brings
//! goes to these requests alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::{Grant, HOLDING, Holding, Kind, MAX_UNITS, Reservation};

use crate::decision::Balance;
use crate::time::Monotonic;
use crate::worker::Ticket;
use crate::worker::call::breaker::SILENCE;

/// How long confirmed slots last: a little less than in the store, whose clock may be faster.
const LASTS: Duration = HOLDING.saturating_sub(Duration::from_millis(500));
/// How often a worker says what it holds.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// A heartbeat leaves this much earlier if a call leaves anyway, so that heartbeats share calls.
pub(super) const EARLY: Duration = Duration::from_secs(1);
/// How long idle slots may be kept after the store last said that nobody waits for them.
const FRESH: Duration = Duration::from_secs(1);
/// A worker keeps at most the free slots divided by this: other workers hardly miss them.
const KEPT: u64 = 16;
/// The pause before a worker asks again for requests that wait: as long as the first of them has
/// waited, between these. A slot that becomes free elsewhere may be idle for as long.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How long a refusal holds for further requests at least. If more of them follow, it holds for as
/// long as they have been refused without a break, up to [`LONGEST_PAUSE`]. So a flood costs some
/// ten calls per second, and one for each slot of this worker that becomes free.
const REMEMBERED: Duration = Duration::from_millis(20);
/// How long a worker waits after a failed message that no request waited for.
const PAUSE: Duration = Duration::from_millis(250);
/// How long after its dispatch a message may still be counted: until then it is carried out or
/// lost, and after [`HOLDING`] the store drops what it said.
const FORGOTTEN: Duration = HOLDING.saturating_add(Duration::from_secs(2));

/// The slots of one counter.
#[derive(Clone, Debug)]
pub(super) struct SlotPool {
    /// The limit as the last request knew it, without runtime overrides.
    pub(super) limit: u64,
    /// Whether that may differ from the policy's.
    pub(super) own_quota: bool,
    /// Units that requests hold.
    live: u64,
    /// When these requests began to hold them, and how many at each moment.
    begun: BTreeMap<Monotonic, u32>,
    /// Units that the store counts for this worker, whatever becomes of the message under way.
    confirmed: u64,
    /// When they no longer count.
    expires: Monotonic,
    /// The last answer.
    heard: Option<Heard>,
    /// What it refused.
    refused: Option<Refused>,
    /// Requests that want slots, in the order of arrival.
    pub(super) queue: VecDeque<Queued>,
    under_way: Option<UnderWay>,
    /// Whether the store may believe something else than `confirmed`: the last message got no
    /// answer.
    is_unsure: bool,
    /// Until when the store may count something for this worker.
    known_until: Monotonic,
    /// Units for which the store may believe that requests wait here.
    claimed: u64,
    /// When the last message left.
    said: Monotonic,
    /// When the next one leaves that asks again for requests that wait.
    asks_at: Monotonic,
    /// The serial of the last message that carried each limit of the requests here. A new limit
    /// begins with that of the last message.
    turns: BTreeMap<u64, u64>,
    last_serial: u64,
    /// When the last message left that carried the limit that was asked for longest ago.
    took_turn: Monotonic,
    /// For the jitter of pauses.
    random: u64,
    /// No message that no request waits for leaves earlier.
    pause_until: Monotonic,
    /// When it is on the agenda.
    pub(super) due: Option<Monotonic>,
}

/// A request that wants slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) ticket: Ticket,
    pub(super) cost: u64,
    pub(super) arrived: Monotonic,
    /// Until when it waits if there are too few slots.
    pub(super) until: Monotonic,
    /// Whether the policy may refuse it.
    pub(super) enforced: bool,
    /// Its limit, without runtime overrides.
    pub(super) limit: u64,
    /// Whether that may differ from the policy's.
    pub(super) own_quota: bool,
    /// Whether a message has asked for it, or it waits without one of its own.
    pub(super) asked: bool,
    /// Whether the store has said that there are too few slots for it.
    pub(super) answered: bool,
}

impl Queued {
    /// Whether it waits although the store has said that there are too few slots.
    fn waits_in_vain(&self, now: Monotonic) -> bool {
        self.answered && self.until > now
    }

    /// Whether one before it holds it up. `highest` is the highest limit of those before it that
    /// wait in vain.
    fn is_behind(&self, highest: u64, now: Monotonic) -> bool {
        self.limit < highest && self.until > now
    }
}

/// The message under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    serial: u64,
    limit: u64,
    held: u64,
    want: u64,
    waiting: u64,
    sent: Monotonic,
}

/// What the store said last.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// When the message that it answered was sent.
    sent: Monotonic,
    /// The limit that it carried.
    limit: u64,
    /// The limit in force for it: the same, or that of a runtime override.
    quota: u64,
    /// Units that other workers held.
    others: u64,
    /// Units that others asked for in vain.
    waiting: u64,
}

impl Heard {
    /// The limit in force for requests with this one.
    const fn quota_of(&self, limit: u64) -> u64 {
        if self.quota == self.limit { limit } else { self.quota }
    }
}

/// A refusal that holds for a moment.
#[derive(Clone, Copy, Debug)]
struct Refused {
    /// Since when the store has granted nothing.
    since: Monotonic,
    until: Monotonic,
    limit: u64,
    cost: u64,
}

/// What becomes of a queued request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// It holds its slots.
    Taken(Balance),
    /// There are too few, and it waits on.
    Waits(Balance),
    /// There are too few. `by_store`: the store counted this refusal. It does not if the message
    /// said that requests wait.
    Refused { balance: Balance, by_store: bool },
    /// The store did not answer.
    Failed,
}

impl SlotPool {
    /// A pool without slots. `seed` varies its pauses.
    pub(super) fn new(seed: u64) -> Self {
        let start = Monotonic::default();
        Self {
            limit: 0,
            own_quota: false,
            live: 0,
            begun: BTreeMap::new(),
            confirmed: 0,
            expires: start,
            heard: None,
            refused: None,
            queue: VecDeque::new(),
            under_way: None,
            is_unsure: false,
            known_until: start,
            claimed: 0,
            said: start,
            asks_at: start,
            turns: BTreeMap::new(),
            last_serial: 0,
            took_turn: start,
            random: seed | 1,
            pause_until: start,
            due: None,
        }
    }

    /// Units that requests hold.
    pub(super) const fn live(&self) -> u64 {
        self.live
    }

    fn confirmed(&self, now: Monotonic) -> u64 {
        if now < self.expires { self.confirmed } else { 0 }
    }

    fn idle(&self, now: Monotonic) -> u64 {
        self.confirmed(now).saturating_sub(self.live)
    }

    /// The last answer, if it may still be relied on and nobody else wants slots.
    fn undisputed(&self, now: Monotonic) -> Option<Heard> {
        self.heard.filter(|heard| heard.waiting == 0 && now < heard.sent + FRESH)
    }

    /// How many idle slots the worker may keep.
    fn keeps(&self, now: Monotonic) -> u64 {
        let Some(Heard { quota, others, .. }) = self.undisputed(now) else { return 0 };
        let free = quota.saturating_sub(others).saturating_sub(self.live);
        self.idle(now).min(free / KEPT)
    }

    /// Idle slots to free.
    fn surplus(&self, now: Monotonic) -> u64 {
        self.idle(now) - self.keeps(now)
    }

    /// Takes idle slots without a message, if that takes them from nobody.
    fn take_idle(&mut self, cost: u64, limit: u64, now: Monotonic) -> bool {
        let live = self.live.saturating_add(cost);
        let may = self.undisputed(now).is_some_and(|heard| {
            let all = live.saturating_add(heard.others);
            all <= heard.quota_of(limit) && live <= self.confirmed(now)
        });
        if may {
            self.hold(cost, now);
        }
        may
    }

    /// A request that arrives takes idle slots, if nobody waits for them.
    pub(super) fn take_at_once(&mut self, cost: u64, limit: u64, now: Monotonic) -> bool {
        self.queue.is_empty()
            && self.live.saturating_add(cost) <= limit
            && self.take_idle(cost, limit, now)
    }

    /// Whether the store refused such a request a moment ago, and no slot of this worker has become
    /// free since.
    pub(super) fn refuses(&self, cost: u64, limit: u64, now: Monotonic) -> bool {
        let holds = |it: &Refused| now < it.until && it.limit >= limit && it.cost <= cost;
        self.refused.as_ref().is_some_and(holds)
    }

    /// Whether a request that the store found too few slots for comes before a new one with this
    /// limit.
    pub(super) fn holds_up(&self, limit: u64, now: Monotonic) -> bool {
        self.queue.iter().any(|queued| queued.waits_in_vain(now) && queued.limit >= limit)
    }

    /// A request wants slots. Returns what is left if it waits without a message of its own: behind
    /// another one, or since such a request was refused a moment ago.
    pub(super) fn join(&mut self, mut queued: Queued, now: Monotonic) -> Option<Balance> {
        let limit = queued.limit;
        self.turns.entry(limit).or_insert(self.last_serial);
        let is_first = !self.queue.iter().any(|it| it.limit >= limit && it.until > now);
        let is_known_full =
            self.holds_up(limit, now) || is_first && self.refuses(queued.cost, limit, now);
        let is_heard = self.heard.is_some_and(|heard| now < heard.sent + SILENCE);
        let joins = is_known_full && is_heard && queued.until > now;
        if joins {
            (queued.asked, queued.answered) = (true, true);
            self.ask_before(queued.until, now);
        }
        self.queue.push_back(queued);
        joins.then(|| self.balance(limit, now))
    }

    /// A request that no message carries yet leaves then: one must carry it before.
    fn ask_before(&mut self, until: Monotonic, now: Monotonic) {
        if until < self.asks_at + REMEMBERED {
            self.asks_at = self.asks_at.min(now.max(self.said + REMEMBERED));
        }
    }

    /// Whether the requests of this worker alone leave too few slots. `limit` is the one in force.
    pub(super) const fn is_full(&self, cost: u64, limit: u64) -> bool {
        self.live.saturating_add(cost) > limit
    }

    /// A request holds slots, whether the store has granted them or not.
    pub(super) fn hold(&mut self, cost: u64, now: Monotonic) {
        self.live = self.live.saturating_add(cost).min(MAX_UNITS);
        *self.begun.entry(now).or_default() += 1;
    }

    /// A request that began to hold slots at `begun` ends.
    pub(super) fn free(&mut self, cost: u64, begun: Monotonic) {
        self.live = self.live.saturating_sub(cost);
        if let Some(requests) = self.begun.get_mut(&begun) {
            *requests = requests.saturating_sub(1);
            if *requests == 0 {
                self.begun.remove(&begun);
            }
        }
        self.refused = None;
        self.asks_at = self.asks_at.min(self.said + SHORTEST_PAUSE);
    }

    /// What is left of a limit, as far as the worker knows.
    pub(super) fn balance(&self, limit: u64, now: Monotonic) -> Balance {
        let (quota, others) = self.heard.map_or((limit, 0), |it| (it.quota_of(limit), it.others));
        let remaining = quota.saturating_sub(others).saturating_sub(self.live);
        Balance { quota, remaining, resets: now, window_s: 0 }
    }

    /// After slots became idle: the requests that take them at once, in the order of arrival.
    pub(super) fn serve_idle(&mut self, now: Monotonic) -> Vec<(Ticket, Served)> {
        let mut served = Vec::new();
        while let Some(first) = self.queue.front().copied()
            && self.take_idle(first.cost, first.limit, now)
        {
            self.queue.pop_front();
            served.push((first.ticket, Served::Taken(self.balance(first.limit, now))));
        }
        served
    }

    /// Forgets a request that waits.
    pub(super) fn leaves(&mut self, ticket: Ticket) {
        self.queue.retain(|queued| queued.ticket != ticket);
    }

    /// Whether a request waits that no message has carried and that none before it holds up.
    pub(super) fn has_fresh_requests(&self, now: Monotonic) -> bool {
        self.candidates(now).any(|queued| !queued.asked)
    }

    /// Whether nothing is left to say or to wait for.
    pub(super) fn is_over(&self, now: Monotonic) -> bool {
        let is_forgotten = !self.is_unsure && self.confirmed == 0 && self.claimed == 0;
        self.live == 0
            && self.queue.is_empty()
            && self.under_way.is_none()
            && (is_forgotten || now >= self.known_until)
    }

    /// When the next message is due.
    pub(super) fn next_due(&self, now: Monotonic) -> Option<Monotonic> {
        if self.under_way.is_some() {
            return None;
        }
        let asks = if self.has_fresh_requests(now) {
            Some(now)
        } else {
            self.queue.front().map(|_| self.asks_at)
        };
        let withdraws = self.queue.is_empty() && self.claimed > 0;
        let frees = if self.surplus(now) > 0 || self.is_unsure || withdraws {
            Some(now)
        } else {
            self.heard.filter(|_| self.idle(now) > 0).map(|heard| heard.sent + FRESH)
        };
        let beats = (self.live > 0 || self.confirmed > 0).then(|| self.said + HEARTBEAT);
        let quiet = [frees, beats].into_iter().flatten().min();
        let quiet = quiet.map(|at| at.max(self.pause_until));
        [asks, quiet].into_iter().flatten().min()
    }

    /// Whether the next message is a heartbeat that may leave early.
    pub(super) fn may_beat_early(&self, now: Monotonic) -> bool {
        self.under_way.is_none() && self.live > 0 && self.said + HEARTBEAT <= now + EARLY
    }

    /// The requests that a message may ask for: without those that an earlier one with a higher
    /// limit holds up.
    fn candidates(&self, now: Monotonic) -> impl Iterator<Item = &Queued> {
        let mut highest = 0;
        self.queue.iter().filter(move |queued| {
            let is_held_up = queued.is_behind(highest, now);
            if queued.waits_in_vain(now) {
                highest = highest.max(queued.limit);
            }
            !is_held_up
        })
    }

    /// The message that leaves now.
    pub(super) fn message(
        &mut self,
        key: &Arc<str>,
        worker: &Arc<str>,
        serial: u64,
        now: Monotonic,
    ) -> Reservation {
        let held = self.live.saturating_add(self.keeps(now)).min(MAX_UNITS);
        // The requests whose turn it is: those with the limit that was asked for longest ago.
        // Requests that none has asked for come first, since they wait for a message no longer than
        // for the timeout, but must not keep others from their turn for longer than a pause.
        let last = |queued: &&Queued| self.turns.get(&queued.limit).copied().unwrap_or_default();
        let new = self.candidates(now).filter(|queued| !queued.asked).min_by_key(last).copied();
        let oldest = self.candidates(now).min_by_key(last).copied();
        let is_over_due = now >= self.took_turn + SHORTEST_PAUSE;
        let next = new.filter(|_| !is_over_due).or(oldest);
        if next.map(|queued| queued.limit) == oldest.map(|queued| queued.limit) {
            self.took_turn = now;
        }
        let (limit, own_quota) =
            next.map_or((self.limit, self.own_quota), |queued| (queued.limit, queued.own_quota));
        let asks = || self.candidates(now).filter(|queued| queued.limit == limit);
        let patient = |queued: &&Queued| queued.until > now;
        let units = |all: u64, queued: &Queued| all.saturating_add(queued.cost).min(MAX_UNITS);
        let want = asks().fold(0, units);
        let waiting = asks().filter(patient).fold(0, units);
        let first = asks().find(patient);
        // Nobody overtakes a request that waits. Without one, any request that fits may go.
        let min = first.or_else(|| asks().min_by_key(|queued| queued.cost));
        let min = min.map_or(0, |queued| queued.cost);
        let shadow = want > 0 && !asks().any(|queued| queued.enforced);
        let waited_ms = first.map_or(0, |queued| millis(now, queued.arrived));
        let max_wait_ms = asks().map(|queued| millis(queued.until, queued.arrived)).max();
        let longest_ms = self.begun.keys().next().map_or(0, |begun| millis(now, *begun));
        let limits: BTreeSet<u64> = self.queue.iter().map(|queued| queued.limit).collect();
        self.turns.retain(|limit, _| limits.contains(limit));
        self.turns.entry(limit).and_modify(|turn| *turn = serial);
        self.last_serial = serial;
        for queued in self.queue.iter_mut().filter(|queued| queued.limit == limit) {
            queued.asked = true;
        }
        if held > 0 || want > 0 {
            self.known_until = now + FORGOTTEN;
        }
        self.confirmed = self.confirmed.min(held);
        self.said = now;
        self.asks_at = now + SHORTEST_PAUSE;
        self.under_way = Some(UnderWay { serial, limit, held, want, waiting, sent: now });
        let worker = Arc::clone(worker);
        let max_wait_ms = max_wait_ms.unwrap_or_default();
        let holding = Holding { worker, serial, held, waiting, waited_ms, max_wait_ms, longest_ms };
        Reservation {
            key: Arc::clone(key),
            kind: Kind::InFlight,
            window_s: 0,
            offset_s: 0,
            quota: limit,
            want,
            min: min.min(want),
            spare: 0,
            count_denied: false,
            shadow,
            own_quota,
            holding: Some(holding),
        }
    }

    /// The store answered the message under way. Returns what becomes of requests that wait.
    pub(super) fn answered(
        &mut self,
        grant: &Grant,
        timeout: Duration,
        now: Monotonic,
    ) -> Vec<(Ticket, Served)> {
        let Some(UnderWay { serial, limit, held, want, waiting, sent }) = self.under_way else {
            return Vec::new();
        };
        if grant.window != serial || grant.reset_ms == 0 {
            // The store knows a newer message, so it took nothing from this one.
            return self.failed(timeout, now);
        }
        self.under_way = None;
        self.is_unsure = false;
        self.claimed = waiting.saturating_sub(grant.granted);
        self.confirmed = held.saturating_add(grant.granted);
        self.expires = sent + LASTS;
        let others = grant.used.saturating_sub(self.confirmed);
        let Grant { quota, waiting: elsewhere, .. } = *grant;
        self.heard = Some(Heard { sent, limit, quota, others, waiting: elsewhere });
        let served = self.serve(limit, sent, waiting == 0 && grant.granted < want, now);
        if let Some(first) = self.queue.iter().find(|queued| queued.limit == limit).copied() {
            let pause = now.since(first.arrived).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            // Each limit that no other one holds up is asked for once in a pause, if they are few.
            let limits: BTreeSet<u64> = self.candidates(now).map(|queued| queued.limit).collect();
            let limits = u32::try_from(limits.len()).unwrap_or(u32::MAX).max(1);
            self.asks_at = sent + (self.jittered(pause) / limits).max(REMEMBERED);
            if let Some(new) = self.queue.iter().find(|queued| queued.arrived > sent).copied() {
                self.ask_before(new.until, now);
            }
        }
        served
    }

    /// A pause, or up to a quarter less, so that workers do not ask all at once.
    fn jittered(&mut self, pause: Duration) -> Duration {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let quarter = pause.as_micros() as u64 / 4;
        pause.saturating_sub(Duration::from_micros(self.random % (quarter + 1)))
    }

    /// Gives the slots that are confirmed to the requests with this limit, for which a message was
    /// sent then. `by_store`: the store counted what it did not grant as refused.
    fn serve(
        &mut self,
        limit: u64,
        sent: Monotonic,
        by_store: bool,
        now: Monotonic,
    ) -> Vec<(Ticket, Served)> {
        let (quota, others) = self.heard.map_or((limit, 0), |heard| (heard.quota, heard.others));
        let (mut served, mut waits) = (Vec::new(), VecDeque::new());
        // Whether one with this limit waits, and the highest limit of those that wait.
        let (mut is_blocked, mut highest) = (false, 0);
        let mut refused: Option<u64> = None;
        for queued in std::mem::take(&mut self.queue) {
            if queued.is_behind(highest, now) {
                if !queued.answered {
                    let balance = self.balance(queued.limit, now);
                    served.push((queued.ticket, Served::Waits(balance)));
                }
                waits.push_back(Queued { asked: true, answered: true, ..queued });
                continue;
            }
            if queued.limit != limit {
                if queued.waits_in_vain(now) {
                    highest = highest.max(queued.limit);
                }
                waits.push_back(queued);
                continue;
            }
            // A slot may have become free meanwhile. It is not for this request if more are held
            // than its limit allows: that was lowered, or is that of a lower tier.
            let live = self.live.saturating_add(queued.cost);
            let fits = live <= self.confirmed(now) && live.saturating_add(others) <= quota;
            if fits && !is_blocked {
                self.hold(queued.cost, now);
                served.push((queued.ticket, Served::Taken(self.balance(limit, now))));
                continue;
            }
            // One that joined another, which has its slots now, must ask for itself.
            if !queued.asked || !is_blocked && queued.arrived > sent {
                is_blocked |= queued.until > now;
                waits.push_back(Queued { asked: false, ..queued });
                continue;
            }
            refused = Some(refused.map_or(queued.cost, |least| least.min(queued.cost)));
            let balance = self.balance(limit, now);
            if queued.until > now && queued.cost <= quota {
                (is_blocked, highest) = (true, highest.max(limit));
                served.push((queued.ticket, Served::Waits(balance)));
                waits.push_back(Queued { answered: true, ..queued });
            } else {
                served.push((queued.ticket, Served::Refused { balance, by_store }));
            }
        }
        self.queue = waits;
        // An idle slot became free while the message was under way.
        let refused = refused.filter(|_| self.idle(now) == 0);
        let is_any_taken = served.iter().any(|(_, served)| matches!(served, Served::Taken(_)));
        let last = self.refused.filter(|it| !is_any_taken && now < it.until + LONGEST_PAUSE);
        let since = last.map_or(now, |last| last.since);
        let holds = self.jittered(now.since(since).min(LONGEST_PAUSE)).max(REMEMBERED);
        self.refused = refused.map(|cost| Refused { since, until: now + holds, limit, cost });
        served
    }

    /// The message under way got no answer, which took the timeout of a call at most. Returns what
    /// becomes of the requests that it asked for.
    pub(super) fn failed(&mut self, timeout: Duration, now: Monotonic) -> Vec<(Ticket, Served)> {
        if let Some(lost) = self.under_way.take() {
            self.is_unsure = true;
            self.claimed = self.claimed.max(lost.waiting);
        }
        self.pause_until = now + PAUSE;
        // One lost message does not end a wait. A second without an answer of this counter does.
        let is_heard = self.heard.is_some_and(|heard| now < heard.sent + SILENCE + timeout);
        let fails =
            |queued: &Queued| queued.asked && !(is_heard && queued.answered && queued.until > now);
        let (asked, rest) = self.queue.iter().copied().partition(fails);
        self.queue = rest;
        let asked: VecDeque<Queued> = asked;
        asked.into_iter().map(|queued| (queued.ticket, Served::Failed)).collect()
    }
}

fn millis(now: Monotonic, earlier: Monotonic) -> u64 {
    u64::try_from(now.since(earlier).as_millis()).unwrap_or(MAX_UNITS).min(MAX_UNITS)
}
