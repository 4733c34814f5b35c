//! The worker: one Envoy worker's side of all quotas. Events go in; calls and decisions come out.
//!
//! | part | owns |
//! | --- | --- |
//! | `requests` | requests from their arrival until their decision is taken |
//! | `submit`, `decide` | the decision: on arrival, or after a call |
//! | `call` | calls to the store: batches, grants, refunds, the breaker, how calls fail |
//! | `known` | counters that are spent, counters kept while the store fails, the store's clock |
//! | `slots` | slots that running requests hold, for policies with `in_flight` |
//! | `lease` | units that the worker prefetches |
//! | `fetch` | what it asks the store for beside calls |
//! | `overrides` | what operators changed |
//! | `live` | the published document, which replaces the configuration |
//! | `telemetry` | metrics, log lines, reports |

mod call;
mod decide;
mod fetch;
pub(crate) mod known;
mod lease;
mod live;
mod overrides;
mod requests;
mod slots;
mod submit;
mod telemetry;
#[cfg(test)]
mod tests;

pub use call::faults::{AnsweredBy, CallEnd, CallFault, CallOutcome, Misread};
pub use fetch::OutgoingFetch;
pub use telemetry::{Counted, NOTICE_PAUSE, Notice};

use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::{ReserveReply, ReserveRequest};

use crate::config::Config;
use crate::decision::{Admission, Balance, Decision, GrantedUnits, Held, Outcome, Standing};
use crate::evaluate::{Counter, EvaluationScratch};
use crate::request::findings::IdentityFindings;
use crate::request::identity::Identity;
use crate::time::Monotonic;
use call::Calls;
use known::Known;
use lease::Leases;
use live::LiveState;
use overrides::ChangesInForce;
use requests::PendingRequests;
use slots::Slots;
use telemetry::Telemetry;

/// One call for each request, to compare with. Only `cargo xtask bench` compiles it.
const UNBATCHED: bool = cfg!(quotagate_unbatched);
/// Most calls under way at once.
pub const MAX_IN_FLIGHT: usize = if UNBATCHED { 1024 } else { 4 };
/// A batch of this many requests leaves at once, even if no call has returned.
pub const FULL_BATCH: usize = if UNBATCHED { 1 } else { 256 };
/// Most requests of one call. The bounds of its body may allow fewer.
const MAX_BATCH: usize = if UNBATCHED { 1 } else { usize::MAX };
/// The longest that requests gather while calls are under way, or a quarter of the timeout if that
/// is less.
pub const GATHER: Duration = Duration::from_millis(5);
/// Most requests that wait for units at once, and most that wait for slots.
pub const MAX_WAITING: usize = 8192;

/// The quotas of one Envoy worker.
///
/// The caller owns sockets, streams and the clock, and identifies waiting requests by `W`. Units
/// are those of policies. Times are moments on the caller's monotonic clock, which never goes back.
///
/// # Call order
///
/// 1. For each request: [`observe_traffic`](Self::observe_traffic), which returns the
///    configuration to [evaluate](Config::evaluate) it with, then [`submit`](Self::submit) with its
///    checks.
/// 2. After each `submit`, and after each event below: send what [`next_call`](Self::next_call) and
///    [`next_fetch`](Self::next_fetch) return, until they return `None`.
/// 3. When a call or a fetch ends: [`call_ended`](Self::call_ended). If the host refuses to send
///    it: [`call_not_sent`](Self::call_not_sent).
/// 4. Every 10 ms or so, unless [`is_idle`](Self::is_idle): [`tick`](Self::tick).
/// 5. After 3 and 4: carry out what [`next_decision`](Self::next_decision) returns, and write
///    [`take_notices`](Self::take_notices) to the log.
/// 6. Now and then: add what [`take_tally`](Self::take_tally) returns to the metrics.
///
/// A client that leaves while its request waits is [cancelled](Self::cancel). Units that an answer
/// does not spend are [refunded](Self::refund), and a cost that is known only after the response is
/// [settled](Self::settle). The [slots](crate::decision::Admission::slots) of an admission are
/// [freed](Self::free) when the stream ends, whatever its answer was.
///
/// # Guarantees
///
/// A waiting request gets its decision by its deadline (`store.timeout` after it arrived; with
/// `in_flight` up to `max_wait` and once more `store.timeout` later) plus one tick, whatever the
/// store does. At most [`MAX_WAITING`] requests wait for units, and as many for slots. The worker
/// decides further ones as if the store had failed. Of these, it refuses the ones that want slots
/// of a counter that is known to be full.
///
/// The first call leaves at once. While a call is under way that a request waits for, further
/// requests gather. They leave together when it returns, when there are [`FULL_BATCH`] of them, or
/// after [`GATHER`], with at most [`MAX_IN_FLIGHT`] calls under way. So a lone request never waits
/// for others, and the busier a worker is, the fewer calls a request costs.
///
/// # Example
///
/// ```
/// use std::num::NonZeroU64;
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use quotagate_quota::config::Config;
/// use quotagate_quota::decision::Decision;
/// use quotagate_quota::evaluate::{Check, Counter};
/// use quotagate_protocol::Mode;
/// use quotagate_quota::time::Monotonic;
/// use quotagate_quota::worker::{AnsweredBy, CallEnd, Submitted, Worker};
///
/// let document = br#"{"domain": "shop", "store": {"cluster": "quota_store"}, "policies": [
///     {"name": "all", "partition_by": [], "quota": 5, "window": "1m"}]}"#;
/// let config = Config::parse(document).unwrap();
/// let mut worker: Worker<&str> = Worker::new(Arc::new(config), 1);
/// let at = |ms| Monotonic::new(Duration::from_millis(ms));
///
/// // A request arrives. Adapters get the checks from `Config::evaluate`.
/// let window = worker.observe_traffic(at(0)).policies[0].window.clone();
/// let counter = Counter { key: "shop:all:{*}".into(), quota: 5, window };
/// let check = Check { policy: 0, counter, cost: NonZeroU64::MIN, mode: Mode::Enforce };
/// assert!(matches!(worker.submit("request 1", vec![check], at(0)), Submitted::Waiting(_)));
///
/// // Its call leaves, and the store answers.
/// let call = worker.next_call(at(0)).unwrap();
/// let body = br#"{"grants": [
///     {"granted": 1, "used": 1, "quota": 5, "reset_ms": 30000, "window": 9}]}"#.to_vec();
/// let size = body.len();
/// let end = CallEnd::Answered { status: 200, by: AnsweredBy::Store, body, size };
/// worker.call_ended(call.id, &end, at(2));
///
/// // The decision: 4 units remain.
/// let (request, decision) = worker.next_decision().unwrap();
/// let Decision::Admit(admission) = decision else { panic!("refused") };
/// assert_eq!((request, admission.standings[0].balance.remaining), ("request 1", 4));
/// ```
#[derive(Clone, Debug)]
pub struct Worker<W> {
    /// The configuration in force, as dials changed it.
    config: Arc<Config>,
    overrides: ChangesInForce,
    live: LiveState,
    requests: PendingRequests<W>,
    calls: Calls,
    known: Known,
    leases: Leases,
    slots: Slots<W>,
    telemetry: Telemetry,
    scratch: EvaluationScratch,
    /// The last number given to a ticket or a call.
    serial: u64,
    /// Which of the workers of its process it is, for reports.
    index: u32,
}

/// A request that waits for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// A call or a fetch under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub(crate) u64);

/// What a request gets on arrival.
#[derive(Debug, PartialEq, Eq)]
pub enum Submitted {
    /// Its decision.
    Decided(Decision),
    /// It waits. [`Worker::next_decision`] returns its decision later.
    Waiting(Ticket),
    /// All policies that may refuse it admit it. Shadow policies still ask the store, so a call may
    /// be due. [`Worker::next_decision`] returns their result later, as an admission to
    /// [join](Admission::join) to this one.
    Counting(Admission),
}

/// A call to send to the store.
#[derive(Debug)]
pub struct OutgoingCall {
    /// Its id in [`Worker::call_ended`] and [`Worker::call_not_sent`].
    pub id: CallId,
    /// What it asks for.
    pub request: ReserveRequest,
    /// How long to wait for the reply, at least 1 ms.
    pub timeout: Duration,
}

/// Reads the reply to a call.
fn read_reply(body: &[u8]) -> Result<ReserveReply, Misread> {
    // As a whole, because the parser would look for invalid text in each name of a field.
    let text = std::str::from_utf8(body).map_err(|error| Misread::Form(error.to_string()))?;
    serde_json::from_str(text).map_err(|error| Misread::Form(error.to_string()))
}

impl OutgoingCall {
    /// The body for [`RESERVE_PATH`](quotagate_protocol::RESERVE_PATH).
    pub fn body(&self) -> Vec<u8> {
        // Writing numbers and strings into memory cannot fail; the store would reject an empty
        // body.
        serde_json::to_vec(&self.request).unwrap_or_default()
    }
}

impl<W> Worker<W> {
    /// A worker without counters or requests. `seed` varies the pauses of its breaker, so each
    /// worker needs a different one.
    pub fn new(config: Arc<Config>, seed: u64) -> Self {
        let mut telemetry = Telemetry::new(config.policies.len());
        if config.refused.is_some() {
            telemetry.tally.count_refused_document();
        }
        Self {
            overrides: ChangesInForce::new(Arc::clone(&config)),
            live: LiveState::new(&config),
            requests: PendingRequests::default(),
            calls: Calls::new(seed),
            known: Known::default(),
            leases: Leases::default(),
            slots: Slots::new(seed),
            telemetry,
            scratch: EvaluationScratch::default(),
            serial: 0,
            index: 0,
            config,
        }
    }

    /// The same worker, which reports that it is this one of the workers of its process.
    #[must_use]
    pub fn with_index(self, index: u32) -> Self {
        Self { index, ..self }
    }

    /// A worker that takes over from this one, which panicked or is no longer needed: without its
    /// counters, leases, requests, dials and counts. It ignores the ends of its predecessor's
    /// calls. Units of the predecessor are lost until their windows end.
    #[must_use]
    pub fn successor(&self, seed: u64) -> Self {
        let configured = Arc::clone(self.overrides.configured());
        let live = self.live.inherited();
        Self { serial: self.serial, index: self.index, live, ..Self::new(configured, seed) }
    }

    /// A request arrives. Returns the configuration to evaluate it with. Call this for every
    /// request, even if no policy counts it: traffic makes fetches due.
    pub fn observe_traffic(&mut self, now: Monotonic) -> &Arc<Config> {
        self.traffic(now);
        &self.config
    }

    /// Memory for the next request, to [evaluate](Config::evaluate_in) it in.
    pub const fn scratch(&mut self) -> &mut EvaluationScratch {
        &mut self.scratch
    }

    /// The configuration in force.
    pub const fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// A call or a fetch has ended. An `id` that has ended before is ignored.
    pub fn call_ended(&mut self, id: CallId, end: &CallEnd, now: Monotonic) {
        match end.body() {
            Ok(body) if self.fetch_ended(id, &Ok(body), now) => (),
            Ok(body) => {
                self.call_replied(id, read_reply(body), now);
            }
            Err(fault) => self.call_not_sent(id, &fault, now),
        }
    }

    /// The host did not send a call or a fetch.
    pub fn call_not_sent(&mut self, id: CallId, fault: &CallFault<'_>, now: Monotonic) {
        if !self.fetch_ended(id, &Err(fault.clone()), now) {
            self.one_failed(id, fault, now);
        }
    }

    /// Whether the end of this call would decide anything.
    pub fn awaits(&self, id: CallId) -> bool {
        self.calls.is_under_way(id)
    }

    /// Whether several requests shared the last call that requests waited for, and no request waits
    /// for a call now.
    pub(crate) fn shares_next_call(&self) -> bool {
        self.calls.last_was_shared && !self.requests_wait_for_call()
    }

    /// A store in this process carried out a call.
    pub fn carried_out(&mut self, id: CallId, reply: ReserveReply, now: Monotonic) {
        self.call_replied(id, Ok(reply), now);
    }

    /// Time has passed. Decides requests whose deadline has come, and makes refunds, refills and
    /// fetches due.
    pub fn tick(&mut self, now: Monotonic) {
        self.tick_calls(now);
        self.tick_slots(now);
        self.known.expire(now);
        let (ledger, refunds) = (&mut self.known.ledger, &mut self.calls.refunds);
        self.leases.tick(now, |counter, units| {
            ledger.refunded(counter, units.window, units.amount, now);
            refunds.add(counter, units);
        });
        self.calls.adjustments_due = self.calls.has_adjustments();
        self.calls.refills_due = self.leases.refill_is_due(now);
        self.telemetry.notices.tick(now);
        self.tick_fetches(now);
    }

    /// The next decision on a request that waited, or that shadow policies counted.
    pub fn next_decision(&mut self) -> Option<(W, Decision)> {
        let decided = self.requests.next_decision()?;
        let (wants, under) = (&decided.wants, decided.arrived_under.as_ref());
        self.under(under, |worker| worker.telemetry.count_wants(wants));
        Some((decided.who, decided.decision))
    }

    /// Whether [`next_decision`](Self::next_decision) has more.
    pub fn has_decisions(&self) -> bool {
        self.requests.has_decisions()
    }

    /// The client of a waiting request left. The worker refunds the units that the request got or
    /// that are under way.
    pub fn cancel(&mut self, ticket: Ticket, now: Monotonic) {
        let Some(ticket) = self.cancel_slots(ticket, now) else { return };
        let (wants, admission) = self.requests.cancel(ticket);
        if wants.is_empty() {
            // Its slots came with a call, but all its units from leases.
            let granted =
                admission.standings.iter().filter(|it| it.granted && !it.counter.is_slots());
            for taken in granted.filter(|taken| taken.counts_until > now) {
                self.leases.undo(&taken.counter, taken.cost.get());
            }
        }
        for mut want in wants {
            self.release(&mut want, now);
        }
        self.free(admission.slots, now);
    }

    /// Refunds units held by requests whose answer does not count. Pass each `Held` only once.
    pub fn refund(&mut self, held: Vec<Held>, now: Monotonic) {
        for Held { counter, units, .. } in held {
            self.take_back(&counter, units, now);
        }
    }

    /// Replaces the reserved cost of a request by its real one: the worker refunds the rest, or
    /// charges what is missing. Pass each `Held` only once.
    ///
    /// A charge is sent once and never refused. If it is lost, the reservation stands.
    pub fn settle(&mut self, held: Held, cost: u64, now: Monotonic) {
        let Held { counter, units, .. } = held;
        let reserved = units.amount;
        if cost <= reserved {
            self.take_back(&counter, units.of(reserved - cost), now);
        } else {
            let charge = units.of(cost - reserved);
            self.known.ledger.charged(&counter, charge.window, charge.amount, now);
            self.calls.charges.add(&counter, charge);
        }
    }

    /// Learns what a counter had left in this window, which its caller asked the store for.
    pub fn learn(&mut self, counter: &Counter, window: u64, balance: Balance, now: Monotonic) {
        self.known.learn(counter, window, balance, false, now);
    }

    /// Counts a request that its caller decided without units of it, such as one that only looks.
    pub fn count_standing(&mut self, standing: &Standing) {
        self.telemetry.count_standings(std::iter::once(standing));
    }

    /// Counts an outcome that the worker does not see itself ([`Outcome::MissingIdentity`]).
    pub fn count(&mut self, policy: usize, outcome: Outcome) {
        self.telemetry.count(policy, outcome);
    }

    /// Counts a request that arrived under `config` and cost `if_missing`.
    pub(crate) fn count_missing_cost(&mut self, config: Option<&Arc<Config>>, policy: usize) {
        self.under(config, |worker| worker.count(policy, Outcome::SettledIfMissing));
    }

    /// Takes note of what the identities of a request found, and logs what operators should know:
    /// identities that no request has a verified token for, and numbers that Envoy has rounded.
    pub(crate) fn saw_findings(&mut self, findings: IdentityFindings) {
        let name_of = |is_meant: &dyn Fn(&Identity) -> bool| {
            let mut policies = self.config.policies.iter();
            policies.find_map(|policy| policy.partition.name_of(is_meant))
        };
        let mut over = self.telemetry.identities.without_token(findings);
        while over != 0 {
            let bit = 1 << over.trailing_zeros();
            over &= !bit;
            if let Some(name) = name_of(&|identity| identity.token == bit) {
                self.telemetry.notices.no_token(name);
            }
        }
        let rounded = self.telemetry.identities.newly_rounded(findings);
        if let Some(name) = rounded.and_then(|id| name_of(&|identity| identity.id == id)) {
            self.telemetry.notices.rounded(name);
        }
    }

    /// Whether [`take_tally`](Self::take_tally) has counts.
    pub fn has_tally(&self) -> bool {
        !self.telemetry.tally.is_empty()
    }

    /// Takes the counts since the last call, for metrics.
    pub fn take_tally(&mut self) -> Vec<(Counted, u64)> {
        self.telemetry.tally.take()
    }

    /// Whether [`take_notices`](Self::take_notices) has lines.
    pub(crate) const fn has_notices(&self) -> bool {
        self.telemetry.notices.are_due()
    }

    /// Takes the lines for the log.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        self.telemetry.notices.take()
    }

    /// Whether units are leased or slots held, a call is under way, or refunds or charges wait for
    /// one. A host that ends may go on ticking until that is over: leases end a moment after the
    /// last request.
    pub fn holds_units(&self) -> bool {
        !self.calls.is_idle() || !self.leases.is_empty() || !self.slots.is_empty()
    }

    /// Whether no [`tick`](Self::tick) is needed, and everything has been taken.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
            && self.calls.is_idle()
            && self.leases.is_empty()
            && self.slots.is_empty()
            && self.telemetry.is_idle()
            && !self.fetch_needs_time()
            && !self.report_needs_time()
    }

    /// Takes back granted units that will not be spent: leases keep what they need, and the rest is
    /// refunded.
    fn take_back(&mut self, counter: &Counter, units: GrantedUnits, now: Monotonic) {
        let surplus = self.leases.take_back(counter, units, now);
        self.send_back(counter, units.of(surplus), now);
    }

    /// Refunds units with the next call.
    fn send_back(&mut self, counter: &Counter, units: GrantedUnits, now: Monotonic) {
        self.known.ledger.refunded(counter, units.window, units.amount, now);
        self.calls.refunds.add(counter, units);
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }
}
