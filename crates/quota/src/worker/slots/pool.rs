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

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::{Grant, HOLDING, Holding, Kind, MAX_UNITS, Reservation};

use crate::decision::Balance;
use crate::time::Monotonic;
use crate::worker::Ticket;

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
/// How often a worker asks again for requests that wait.
const ASKS_AGAIN: Duration = Duration::from_millis(50);
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
    /// Whether a message has asked for it.
    asked: bool,
    /// Whether the store has said that there are too few slots for it.
    answered: bool,
}

impl Queued {
    /// A request that no message has asked for.
    pub(super) const fn new(
        ticket: Ticket,
        cost: u64,
        arrived: Monotonic,
        until: Monotonic,
        enforced: bool,
    ) -> Self {
        Self { ticket, cost, arrived, until, enforced, asked: false, answered: false }
    }
}

/// The message under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    serial: u64,
    held: u64,
    waiting: u64,
    sent: Monotonic,
}

/// What the store said last.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// When the message that it answered was sent.
    sent: Monotonic,
    /// The limit in force.
    quota: u64,
    /// Units that other workers held.
    others: u64,
    /// Units that others asked for in vain.
    waiting: u64,
}

/// What becomes of a queued request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// It holds its slots.
    Taken(Balance),
    /// There are too few, and it waits on.
    Waits(Balance),
    /// There are too few.
    Refused(Balance),
    /// The store did not answer.
    Failed,
}

impl SlotPool {
    /// A pool without slots.
    pub(super) fn new() -> Self {
        let start = Monotonic::default();
        Self {
            limit: 0,
            own_quota: false,
            live: 0,
            begun: BTreeMap::new(),
            confirmed: 0,
            expires: start,
            heard: None,
            queue: VecDeque::new(),
            under_way: None,
            is_unsure: false,
            known_until: start,
            claimed: 0,
            said: start,
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
    fn take_idle(&mut self, cost: u64, now: Monotonic) -> bool {
        let live = self.live.saturating_add(cost);
        let may = self.undisputed(now).is_some_and(|heard| {
            live.saturating_add(heard.others) <= heard.quota && live <= self.confirmed(now)
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
            && self.take_idle(cost, now)
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
    }

    /// What is left, as far as the worker knows.
    pub(super) fn balance(&self, now: Monotonic) -> Balance {
        let (quota, others) = self.heard.map_or((self.limit, 0), |it| (it.quota, it.others));
        let remaining = quota.saturating_sub(others).saturating_sub(self.live);
        Balance { quota, remaining, resets: now, window_s: 0 }
    }

    /// After slots became idle: the requests that take them at once, in the order of arrival.
    pub(super) fn serve_idle(&mut self, now: Monotonic) -> Vec<(Ticket, Served)> {
        let mut served = Vec::new();
        while let Some(first) = self.queue.front().copied()
            && self.take_idle(first.cost, now)
        {
            self.queue.pop_front();
            served.push((first.ticket, Served::Taken(self.balance(now))));
        }
        served
    }

    /// Forgets a request that waits.
    pub(super) fn leaves(&mut self, ticket: Ticket) {
        self.queue.retain(|queued| queued.ticket != ticket);
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
        let asks = if self.queue.iter().any(|queued| !queued.asked) {
            Some(now)
        } else {
            self.queue.front().map(|_| self.said + ASKS_AGAIN)
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

    /// The message that leaves now.
    pub(super) fn message(
        &mut self,
        key: &Arc<str>,
        worker: &Arc<str>,
        serial: u64,
        now: Monotonic,
    ) -> Reservation {
        let held = self.live.saturating_add(self.keeps(now)).min(MAX_UNITS);
        let patient = |queued: &&Queued| queued.until > now;
        let units = |all: u64, queued: &Queued| all.saturating_add(queued.cost).min(MAX_UNITS);
        let want = self.queue.iter().fold(0, units);
        let waiting = self.queue.iter().filter(patient).fold(0, units);
        let first = self.queue.iter().find(patient);
        // Nobody overtakes a request that waits. Without one, any request that fits may go.
        let min = first.or_else(|| self.queue.iter().min_by_key(|queued| queued.cost));
        let min = min.map_or(0, |queued| queued.cost);
        let shadow = !self.queue.is_empty() && !self.queue.iter().any(|queued| queued.enforced);
        let waited_ms = first.map_or(0, |queued| millis(now, queued.arrived));
        let longest_ms = self.begun.keys().next().map_or(0, |begun| millis(now, *begun));
        for queued in &mut self.queue {
            queued.asked = true;
        }
        if held > 0 || want > 0 {
            self.known_until = now + FORGOTTEN;
        }
        self.confirmed = self.confirmed.min(held);
        self.said = now;
        self.under_way = Some(UnderWay { serial, held, waiting, sent: now });
        let worker = Arc::clone(worker);
        let holding = Holding { worker, serial, held, waiting, waited_ms, longest_ms };
        Reservation {
            key: Arc::clone(key),
            kind: Kind::InFlight,
            window_s: 0,
            offset_s: 0,
            quota: self.limit,
            want,
            min: min.min(want),
            spare: 0,
            count_denied: false,
            shadow,
            own_quota: self.own_quota,
            holding: Some(holding),
        }
    }

    /// The store answered the message under way. Returns what becomes of requests that wait.
    pub(super) fn answered(&mut self, grant: &Grant, now: Monotonic) -> Vec<(Ticket, Served)> {
        let Some(UnderWay { serial, held, waiting, sent }) = self.under_way else {
            return Vec::new();
        };
        if grant.window != serial || grant.reset_ms == 0 {
            // The store knows a newer message, so it took nothing from this one.
            return self.failed(now);
        }
        self.under_way = None;
        self.is_unsure = false;
        self.claimed = waiting.saturating_sub(grant.granted);
        self.confirmed = held.saturating_add(grant.granted);
        self.expires = sent + LASTS;
        let others = grant.used.saturating_sub(self.confirmed);
        self.heard = Some(Heard { sent, quota: grant.quota, others, waiting: grant.waiting });
        self.serve(now)
    }

    /// Gives the slots that are confirmed to the requests that wait.
    fn serve(&mut self, now: Monotonic) -> Vec<(Ticket, Served)> {
        let quota = self.heard.map_or(self.limit, |heard| heard.quota);
        let (mut served, mut waits) = (Vec::new(), VecDeque::new());
        let mut is_blocked = false;
        for queued in std::mem::take(&mut self.queue) {
            let fits = self.live.saturating_add(queued.cost) <= self.confirmed(now);
            if fits && !is_blocked {
                self.hold(queued.cost, now);
                served.push((queued.ticket, Served::Taken(self.balance(now))));
            } else if !queued.asked {
                is_blocked |= queued.until > now;
                waits.push_back(queued);
            } else if queued.until > now && queued.cost <= quota {
                is_blocked = true;
                served.push((queued.ticket, Served::Waits(self.balance(now))));
                waits.push_back(Queued { answered: true, ..queued });
            } else {
                served.push((queued.ticket, Served::Refused(self.balance(now))));
            }
        }
        self.queue = waits;
        served
    }

    /// The message under way got no answer. Returns what becomes of the requests that it asked for.
    pub(super) fn failed(&mut self, now: Monotonic) -> Vec<(Ticket, Served)> {
        if let Some(lost) = self.under_way.take() {
            self.is_unsure = true;
            self.claimed = self.claimed.max(lost.waiting);
        }
        self.pause_until = now + PAUSE;
        // One lost message does not end a wait. If the store is given up, the worker ends it.
        let fails = |queued: &Queued| queued.asked && !(queued.answered && queued.until > now);
        let (asked, rest) = self.queue.iter().copied().partition(fails);
        self.queue = rest;
        let asked: VecDeque<Queued> = asked;
        asked.into_iter().map(|queued| (queued.ticket, Served::Failed)).collect()
    }
}

fn millis(now: Monotonic, earlier: Monotonic) -> u64 {
    u64::try_from(now.since(earlier).as_millis()).unwrap_or(MAX_UNITS).min(MAX_UNITS)
}
