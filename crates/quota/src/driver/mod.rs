//! The driver does all that an adapter needs between its host and the [`Worker`], the same way in
//! every host.
//!
//! | part | owns |
//! | --- | --- |
//! | `action` | what the host does with a request |
//! | `bodies` | the requests whose bodies are read, and which of them take too long |
//! | `redirects` | the admissions of requests that the host redirected |
//! | `ticks` | when ticks begin and rest |

mod action;
mod bodies;
mod redirects;
#[cfg(test)]
mod tests;
mod ticks;

use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::{OnFailure, ReserveReply};

pub use action::Action;
pub use ticks::{RESTING_TICK, TICK};

use crate::config::{Config, PublishedDocument};
use crate::decision::{Admission, Decision, HeldSlots, Uncounted};
use crate::evaluate::{Evaluation, EvaluationScratch};
use crate::exchange::counting::{GRPC_STATUS, ResponseEvent};
use crate::exchange::{Arrival, Exchange, StreamState, abandon};
use crate::response::Upstream;
use crate::time::Monotonic;
use crate::worker::{
    CallEnd, CallFault, CallId, Counted, Notice, OutgoingCall, OutgoingFetch, Worker,
};
use bodies::Bodies;
use redirects::Redirects;
use ticks::Ticks;

/// The quotas of one Envoy worker, as its adapter drives them.
///
/// The adapter owns streams, sockets, locks and the clock. It reports what happens as values, and
/// carries out the values that come back. It keeps the [`Exchange`] of each request with the
/// request's stream. `K` identifies a stream, and `W` is how the adapter finds it again.
///
/// # Call order
///
/// 1. A request arrives: [`observe_traffic`](Self::observe_traffic) returns the configuration to
///    [evaluate](Config::evaluate) it with. Then [`arrive`](Self::arrive), and
///    [`Action::on_arrival`] says what the host does.
/// 2. After [`Arrival::Reading`]: [`request_body`](Self::request_body) with each chunk, until it
///    returns an arrival. If the host's buffer may be too small for the body,
///    [`body_came`](Self::body_came) first. At each tick,
///    [`request_body_late`](Self::request_body_late) for each of
///    [`late_bodies`](Self::late_bodies).
/// 3. After each event: [`next_send`](Self::next_send) until it returns `None`, and
///    [`take_notices`](Self::take_notices) for the log. Then ticks begin if
///    [`begins_ticks`](Self::begins_ticks) says so.
/// 4. When a call or a fetch ends: [`call_ended`](Self::call_ended),
///    [`call_not_sent`](Self::call_not_sent) or [`carried_out`](Self::carried_out).
/// 5. Every [`TICK`]: [`tick`](Self::tick), then [`needs_next_tick`](Self::needs_next_tick).
/// 6. After 4 and 5: [`next_decision`](Self::next_decision) until it returns `None`, each with
///    [`decided`](Self::decided) and [`Action::on_decision`].
/// 7. After 4, if there is a [`document`](Self::document): [`take_up`](Self::take_up), soon. A
///    request ends by the configuration under which it arrived ([`Exchange::config_or`]).
/// 8. A response comes: [`response_headers`](Self::response_headers),
///    [`response_ends`](Self::response_ends) or [`response_trailers`](Self::response_trailers),
///    unless [`Exchange::is_settled`]. When the stream is over: [`end`](Self::end).
///
/// # Example
///
/// ```
/// use std::sync::Arc;
///
/// use quotagate_quota::config::Config;
/// use quotagate_quota::driver::{Action, Arriving, ClientMark, Driver, RequestBody, Stream};
/// use quotagate_quota::evaluate::Evaluation;
/// use quotagate_quota::exchange::Exchange;
/// use quotagate_quota::response::Now;
/// use quotagate_quota::time::Monotonic;
///
/// let document = br#"{"domain": "shop", "store": {"cluster": "quota_store"}, "policies": []}"#;
/// let config = Arc::new(Config::parse(document).unwrap());
/// let mut driver: Driver<u32, &str> = Driver::new(config, 1);
/// let now = Monotonic::default();
///
/// let config = Arc::clone(driver.observe_traffic(now));
/// // Adapters get this from `Config::evaluate`.
/// let evaluation =
///     Evaluation { checks: Ok(vec![]), missing: vec![], findings: Default::default() };
/// let mut exchange = Exchange::default();
/// let stream = Stream { id: 1, who: &"request 1", exchange: &mut exchange };
/// let (body, mark) = (RequestBody::Absent, ClientMark::Harmless);
/// let arriving = Arriving { evaluation, earlier: None, body, mark };
/// let arrival = driver.arrive(stream, arriving, now);
///
/// let time = || Now { monotonic: now, epoch: Default::default() };
/// let action = Action::on_arrival(&arrival, &exchange, &config, time);
/// assert_eq!(action, Action::Continue(None));
/// ```
#[derive(Debug)]
pub struct Driver<K, W> {
    worker: Worker<W>,
    bodies: Bodies<K, W>,
    redirects: Redirects<K>,
    ticks: Ticks,
}

/// A request on its stream.
#[derive(Debug)]
pub struct Stream<'s, K, W> {
    /// The id of its stream.
    pub id: K,
    /// How the adapter finds it again.
    pub who: &'s W,
    /// Its state.
    pub exchange: &'s mut Exchange,
}

/// What is known of a request that arrives.
#[derive(Debug)]
pub struct Arriving {
    /// The counters that count it.
    pub evaluation: Evaluation,
    /// Its admission from before an internal redirect.
    pub earlier: Option<Admission>,
    /// Its body.
    pub body: RequestBody,
    /// The client's own mark.
    pub mark: ClientMark,
}

/// Whether a request has a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBody {
    /// The headers are the whole request.
    Absent,
    /// It follows.
    Follows,
}

/// What the client's own [mark](crate::response::mark) did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientMark {
    /// There was none, or no policy read the route.
    Harmless,
    /// Envoy chose by it the route that policies read.
    ChoseRoute,
}

/// Whether the adapter itself holds something that needs ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostWork {
    /// It holds nothing.
    None,
    /// It holds decisions that no stream has taken yet.
    Pending,
}

/// A message to the store.
#[derive(Debug)]
pub enum Outgoing {
    /// A call for units.
    Call(OutgoingCall),
    /// A report, and a fetch of dials.
    Fetch(OutgoingFetch),
}

impl<K: Copy + Ord, W: Clone> Driver<K, W> {
    /// A driver that has counted nothing. `seed` differs between workers.
    pub fn new(config: Arc<Config>, seed: u64) -> Self {
        Self {
            worker: Worker::new(config, seed),
            bodies: Bodies::default(),
            redirects: Redirects::default(),
            ticks: Ticks::default(),
        }
    }

    /// The same driver, whose worker [reports](Worker::with_index) this index.
    #[must_use]
    pub fn with_index(self, index: u32) -> Self {
        Self { worker: self.worker.with_index(index), ..self }
    }

    /// Replaces the worker, which panicked or is no longer needed, by its
    /// [successor](Worker::successor). Returns the decision on the requests that waited for it: the
    /// store's `on_failure`, because the policies of the requests are not known any more.
    pub fn replace_worker(&mut self, seed: u64) -> Decision {
        self.worker = self.worker.successor(seed);
        match self.worker.config().store.on_failure {
            OnFailure::Deny => Decision::Unavailable(Uncounted { policy: 0, key: "".into() }),
            OnFailure::Allow | OnFailure::Local => Decision::Admit(Admission::default()),
        }
    }

    /// The configuration in force.
    pub const fn config(&self) -> &Arc<Config> {
        self.worker.config()
    }

    /// A request arrives. Returns the configuration to evaluate it with. Call this for every
    /// request.
    pub fn observe_traffic(&mut self, now: Monotonic) -> &Arc<Config> {
        self.worker.observe_traffic(now)
    }

    /// Memory for the next request, to [evaluate](Config::evaluate_in) it in.
    pub const fn scratch(&mut self) -> &mut EvaluationScratch {
        self.worker.scratch()
    }

    /// The request was evaluated.
    pub fn arrive(
        &mut self,
        stream: Stream<'_, K, W>,
        arriving: Arriving,
        now: Monotonic,
    ) -> Arrival {
        let Stream { id, who, exchange } = stream;
        let Arriving { evaluation, earlier, body, mark } = arriving;
        let worker = &mut self.worker;
        if worker.config().without_document().is_some() {
            abandon(earlier, worker, now);
            return Arrival::WithoutDocument;
        }
        // Of a redirected request, the filter itself set the header.
        if mark == ClientMark::ChoseRoute && earlier.is_none() {
            return Arrival::MarkedByClient;
        }
        let mut arrival = exchange.arrive(who.clone(), evaluation, earlier, worker, now);
        if arrival == Arrival::Reading {
            match body {
                RequestBody::Absent => {
                    let read = exchange.request_body(who.clone(), &[], true, worker, now);
                    arrival = read.unwrap_or(arrival);
                }
                RequestBody::Follows => self.bodies.begin(id, who.clone(), now),
            }
        }
        arrival
    }

    /// More of a request's body has come, in a host whose buffer may be too small for the whole of
    /// it and that does not say so: a long silence then ends the wait. Call it before
    /// [`request_body`](Self::request_body).
    pub fn body_came(&mut self, id: &K, bytes: usize, now: Monotonic) {
        self.bodies.came(id, bytes, now);
    }

    /// The next chunk of a request's body, and whether it is the last. `None`: hold the request,
    /// and go on reading.
    pub fn request_body(
        &mut self,
        stream: Stream<'_, K, W>,
        chunk: &[u8],
        end: bool,
        now: Monotonic,
    ) -> Option<Arrival> {
        let Stream { id, who, exchange } = stream;
        let arrival = exchange.request_body(who.clone(), chunk, end, &mut self.worker, now)?;
        self.bodies.end(&id);
        Some(arrival)
    }

    /// The requests whose bodies take too long.
    pub fn late_bodies(&self, now: Monotonic) -> impl Iterator<Item = &W> {
        self.bodies.late(now)
    }

    /// Stops reading a request's body if it takes too long. `None`: go on as before.
    pub fn request_body_late(
        &mut self,
        stream: Stream<'_, K, W>,
        now: Monotonic,
    ) -> Option<Arrival> {
        let Stream { id, who, exchange } = stream;
        if !self.bodies.is_late(&id, now) {
            return None;
        }
        self.bodies.end(&id);
        exchange.request_body_late(who.clone(), &mut self.worker, now)
    }

    /// A stream is gone, or its request's body is not needed any more.
    pub fn stop_reading(&mut self, id: &K) {
        self.bodies.end(id);
    }

    /// The next decision on a request that waited, or that shadow policies counted.
    pub fn next_decision(&mut self) -> Option<(W, Decision)> {
        self.worker.next_decision()
    }

    /// Whether [`next_decision`](Self::next_decision) has more.
    pub fn has_decisions(&self) -> bool {
        self.worker.has_decisions()
    }

    /// Takes a decision to its request. Returns whether the stream is held: resume it, or answer
    /// it.
    pub fn decided(
        &mut self,
        exchange: &mut Exchange,
        decision: Decision,
        stream: StreamState,
        now: Monotonic,
    ) -> bool {
        exchange.decided(decision, stream, &mut self.worker, now)
    }

    /// The response's headers have come, after [`Exchange::response_begins`]. `whole`: they are the
    /// whole response. Returns whether units were refunded: the access log entry is another one
    /// then.
    pub fn response_headers(
        &mut self,
        exchange: &mut Exchange,
        response: &impl Upstream,
        whole: bool,
        now: Monotonic,
    ) -> bool {
        let head = |grpc| ResponseEvent::head(response, whole, grpc);
        let refunded = exchange.count_response(head, &mut self.worker, now);
        exchange.response_headers(response, whole, &mut self.worker, now);
        refunded
    }

    /// The response's trailers have come. Returns whether units were refunded.
    pub fn response_trailers(
        &mut self,
        exchange: &mut Exchange,
        response: &impl Upstream,
        now: Monotonic,
    ) -> bool {
        let trailers =
            |_| Some(ResponseEvent::trailers(response.first_trailer(GRPC_STATUS).as_deref()));
        let refunded = exchange.count_response(trailers, &mut self.worker, now);
        exchange.response_trailers(response, &mut self.worker, now);
        refunded
    }

    /// The whole response has come, without trailers.
    pub fn response_ends(
        &mut self,
        exchange: &mut Exchange,
        response: &impl Upstream,
        now: Monotonic,
    ) {
        exchange.response_ends(response, &mut self.worker, now);
    }

    /// The stream is over.
    pub fn end(
        &mut self,
        id: &K,
        exchange: &mut Exchange,
        response: &impl Upstream,
        now: Monotonic,
    ) {
        if exchange.is_reading() {
            self.bodies.end(id);
        }
        exchange.end(response, &mut self.worker, now);
    }

    /// Keeps the admission of a stream that ends with an internal redirect, for a host that keeps
    /// no more than the stream's id with the request. The oldest is abandoned if there is no room.
    pub fn keep_redirected(&mut self, id: K, admission: Admission, now: Monotonic) {
        let oldest = self.redirects.keep(id, admission, now);
        abandon(oldest, &mut self.worker, now);
    }

    /// Takes the admission that was kept for a redirected request. `id` reads the id of its first
    /// stream; it is not asked for if none is kept.
    pub fn take_redirected(&mut self, id: impl FnOnce() -> Option<K>) -> Option<Admission> {
        if self.redirects.is_empty() { None } else { self.redirects.take(&id()?) }
    }

    /// Slots of an admission that no stream takes are free.
    pub fn free(&mut self, slots: HeldSlots, now: Monotonic) {
        self.worker.free(slots, now);
    }

    /// A redirected request never came back.
    pub fn abandon(&mut self, admission: Admission, now: Monotonic) {
        abandon(Some(admission), &mut self.worker, now);
    }

    /// Whether several requests shared the last call, and no request waits for a call that is under
    /// way. Then more requests may come in the same turn of the host's event loop, and a host that
    /// can should send the next call only at the end of this turn. If the last call had one
    /// request, the next one leaves at once.
    pub fn gathers(&self) -> bool {
        self.worker.shares_next_call()
    }

    /// Whether [`next_send`](Self::next_send) or [`take_notices`](Self::take_notices) may return
    /// something. For hosts in which asking these two costs more.
    pub fn has_messages(&mut self, now: Monotonic) -> bool {
        self.worker.call_is_due(now) || self.worker.fetch_is_due(now) || self.worker.has_notices()
    }

    /// The next message to the store that is due.
    pub fn next_send(&mut self, now: Monotonic) -> Option<Outgoing> {
        let call = self.worker.next_call(now).map(Outgoing::Call);
        call.or_else(|| self.worker.next_fetch(now).map(Outgoing::Fetch))
    }

    /// A call or a fetch has ended.
    pub fn call_ended(&mut self, id: CallId, end: &CallEnd, now: Monotonic) {
        self.worker.call_ended(id, end, now);
    }

    /// The host did not send a call or a fetch.
    pub fn call_not_sent(&mut self, id: CallId, fault: &CallFault<'_>, now: Monotonic) {
        self.worker.call_not_sent(id, fault, now);
    }

    /// A store in this process carried out a call. `reply` takes its reply, and with it the grants,
    /// unless the call has ended before.
    pub fn carried_out(
        &mut self,
        id: CallId,
        reply: impl FnOnce() -> ReserveReply,
        now: Monotonic,
    ) {
        if self.worker.awaits(id) {
            self.worker.carried_out(id, reply(), now);
        }
    }

    /// The published document that has come, if one has. Make a
    /// [configuration](PublishedDocument::config) of it with the [embedded](Self::embedded) one,
    /// check whether this form of the filter can carry that out, and [take it up](Self::take_up).
    pub const fn document(&self) -> Option<&Arc<PublishedDocument>> {
        self.worker.document()
    }

    /// The embedded configuration, if published documents replace it.
    pub fn embedded(&self) -> Option<&Arc<Config>> {
        self.worker.embedded()
    }

    /// Takes up the configuration of a document that has come, or refuses the document because of
    /// these faults. Returns whether it is in force now: then keep it, for
    /// [`inherit`](Self::inherit).
    pub fn take_up(
        &mut self,
        document: &Arc<PublishedDocument>,
        config: Result<Config, Vec<String>>,
        now: Monotonic,
    ) -> bool {
        self.worker.take_up(document, config, now)
    }

    /// Before the first request: a document that this filter took up in this process. The adapter
    /// then takes it up.
    pub fn inherit(&mut self, document: Arc<PublishedDocument>) {
        self.worker.inherit(document);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Monotonic) {
        self.worker.tick(now);
        while let Some(late) = self.redirects.take_late(now) {
            abandon(Some(late), &mut self.worker, now);
        }
    }

    /// Whether neither a request nor a message needs time.
    fn is_idle(&self) -> bool {
        self.worker.is_idle() && self.bodies.is_empty()
    }

    /// Whether ticks must begin now.
    pub fn begins_ticks(&mut self, work: HostWork) -> bool {
        if self.ticks.are_running() || work == HostWork::None && self.is_idle() {
            return false;
        }
        self.ticks.begin();
        true
    }

    /// After each tick: whether the next one must come, too.
    pub fn needs_next_tick(&mut self, work: HostWork) -> bool {
        let is_idle = work == HostWork::None && self.is_idle();
        self.ticks.go_on(is_idle)
    }

    /// How far apart ticks are while they rest: a worker that takes up published documents asks for
    /// them without traffic, too. `None`: none are needed.
    pub fn resting_period(&self) -> Option<Duration> {
        self.worker.embedded().map(|_| RESTING_TICK)
    }

    /// Whether [`take_tally`](Self::take_tally) has counts.
    pub fn has_tally(&self) -> bool {
        self.worker.has_tally()
    }

    /// Takes the counts since the last call, for metrics.
    pub fn take_tally(&mut self) -> Vec<(Counted, u64)> {
        self.worker.take_tally()
    }

    /// Takes the lines for the log.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        self.worker.take_notices()
    }
}

/// The headers of a call to the store. `authorization` is the value of that header.
pub fn call_headers<'h>(
    path: &'h str,
    authorization: Option<&'h str>,
) -> Vec<(&'static str, &'h str)> {
    let mut headers = vec![
        (":method", "POST"),
        (":path", path),
        // Not the cluster: its name may hold characters that an authority must not
        // (`outbound|9180||store.svc`).
        (":authority", "quotagate"),
        ("content-type", "application/json"),
    ];
    headers.extend(authorization.map(|value| ("authorization", value)));
    headers
}
