//! One request and its response, the same in every host: which of its states the request is in, and
//! which units the worker gets back.
//!
//! The adapters own streams and host calls. They report what happens to a stream here, and carry
//! out what comes back.

pub mod counting;
mod reading;
mod settle;
#[cfg(test)]
mod tests;
pub mod usage;

pub use reading::{MAX_REQUEST_BODY, READS_REQUEST_FOR};

use std::sync::Arc;

use self::counting::ResponseEvent;
use self::settle::{RealCost, SettleProgress};
use crate::config::{Config, Settle};
use crate::decision::{Admission, Decision, Held, Outcome};
use crate::evaluate::{Check, Evaluation, MissingIdentity};
use crate::response::Upstream;
use crate::time::Monotonic;
use crate::worker::{Submitted, Ticket, Worker};
use reading::{BodyExtent, BodyReading};

/// A request and its response.
///
/// # Call order
///
/// 1. [`arrive`](Self::arrive), once, with the request's headers.
/// 2. After [`Arrival::Reading`]: [`request_body`](Self::request_body) with each chunk, or
///    [`request_body_late`](Self::request_body_late), until one returns what `arrive` returns for
///    other requests.
/// 3. After [`Arrival::Waiting`] or [`Arrival::Counting`]: [`decided`](Self::decided), with what
///    [`Worker::next_decision`] returns for it.
/// 4. With response headers: [`response_begins`](Self::response_begins),
///    [`count_response`](Self::count_response) and [`response_headers`](Self::response_headers).
///    With each chunk of the body, while [`reads_body`](Self::reads_body): [`body`](Self::body).
///    With the trailers: `count_response` and [`response_trailers`](Self::response_trailers). After
///    each of these, and after what shadow policies say:
///    [`release_config`](Self::release_config), once headers and access log are written.
/// 5. [`redirected`](Self::redirected), then [`end`](Self::end), once, when the stream ends.
///
/// Units are those of policies. Whatever the order of 3 to 5, every unit that the request holds is
/// spent, refunded or settled once.
#[derive(Debug, Default)]
pub struct Exchange {
    phase: Phase,
    /// The configuration under which it arrived, if published documents may replace that. Whatever
    /// it says of a policy holds until nothing is left to do by it.
    arrived_under: Option<Arc<Config>>,
    /// Whether it has response headers, from the upstream or from the host.
    has_response: bool,
    /// Whether shadow policies will still say something about it.
    is_counting: bool,
    /// What the response says of the cost, if a policy settles by it.
    progress: Option<Box<SettleProgress>>,
}

#[derive(Debug, Default)]
enum Phase {
    /// No policy counts it, or the filter answered it because of a missing identity.
    #[default]
    Uncounted,
    /// Its body is read for its cost.
    Reading(Box<BodyReading>),
    /// It waits for a call. After a redirect, with the admission from before it.
    Waiting(Ticket, Option<Admission>),
    /// Admitted after the stream was gone: it never reaches the upstream, so these units must be
    /// refunded.
    Unreached(Vec<Held>),
    /// Admitted, or answered by the filter. Shadow policies may still wait for the store.
    Decided(Decision),
}

/// Whether a request's stream still exists when its decision comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// It exists, so the host can resume or answer it.
    Open,
    /// The client has left, or the host has reset it.
    Gone,
}

/// What becomes of a request on arrival.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// No policy counts it. It goes on.
    Uncounted,
    /// No document is in force, so `on_failure` says whether it goes on. Only
    /// [`Driver::arrive`](crate::driver::Driver::arrive) returns this.
    WithoutDocument,
    /// Answer it with 400, because the client's own mark has chosen its route. Only
    /// [`Driver::arrive`](crate::driver::Driver::arrive) returns this.
    MarkedByClient,
    /// Hold it, and read its body: at most [`MAX_REQUEST_BODY`] bytes, for at most
    /// [`READS_REQUEST_FOR`].
    Reading,
    /// Answer it with 401.
    MissingIdentity(MissingIdentity),
    /// [`Exchange::decision`] says whether it goes on.
    Decided,
    /// It goes on, and shadow policies ask the store, so a call may be due.
    Counting,
    /// Hold it. A call may be due.
    Waiting,
}

impl Exchange {
    /// The request arrives. `evaluation` comes from the configuration that
    /// [`Worker::observe_traffic`] returned; `earlier` is the admission of the same request from
    /// before an internal redirect.
    ///
    /// What a policy counted then stands for this pass only with the same counter and cost, while
    /// its window lasts. Otherwise that pass is [abandoned](abandon), and this one counts, too.
    pub fn arrive<W>(
        &mut self,
        who: W,
        evaluation: Evaluation,
        mut earlier: Option<Admission>,
        worker: &mut Worker<W>,
        now: Monotonic,
    ) -> Arrival {
        for policy in evaluation.missing {
            worker.count(policy, Outcome::MissingIdentity);
        }
        worker.saw_findings(evaluation.findings);
        let mut checks = match evaluation.checks {
            Ok(checks) => checks,
            Err(missing) => {
                abandon(earlier, worker, now);
                return Arrival::MissingIdentity(missing);
            }
        };
        let config = worker.config();
        // Policies have other indexes in another document: what it counted under that one stays
        // counted.
        let is_replaced = |earlier: &mut Admission| earlier.generation != config.generation();
        let replaced = earlier.take_if(is_replaced);
        let arrived_under = config.is_live().then(|| Arc::clone(config));
        if replaced.is_some() {
            abandon(replaced, worker, now);
        }
        if let Some(earlier) = &mut earlier {
            checks.retain(|check| !earlier.covers(check, worker.config(), now));
            let counts_again = |policy| checks.iter().any(|check| check.policy == policy);
            abandon(Some(earlier.split_off(counts_again)), worker, now);
        }
        if checks.is_empty() {
            worker.scratch().keep(checks);
            let Some(earlier) = earlier else { return Arrival::Uncounted };
            self.arrived_under = arrived_under;
            self.phase = Phase::Decided(Decision::Admit(earlier));
            return Arrival::Decided;
        }
        self.arrived_under = arrived_under;
        if !BodyReading::is_wanted(&checks, worker.config()) {
            return self.submit(who, checks, earlier, worker, now);
        }
        let reading = BodyReading::begin(checks, earlier, worker.config());
        self.phase = Phase::Reading(Box::new(reading));
        Arrival::Reading
    }

    /// The next chunk of the request's body, and whether it is the last. `None`: hold the request,
    /// and go on reading.
    pub fn request_body<W>(
        &mut self,
        who: W,
        chunk: &[u8],
        end: bool,
        worker: &mut Worker<W>,
        now: Monotonic,
    ) -> Option<Arrival> {
        let Phase::Reading(reading) = &mut self.phase else { return None };
        let extent = reading.feed(chunk, end)?;
        self.stop_reading(who, extent, worker, now)
    }

    /// The request's body takes too long, or its end has come as trailers. `None` if it is not read
    /// any more.
    pub fn request_body_late<W>(
        &mut self,
        who: W,
        worker: &mut Worker<W>,
        now: Monotonic,
    ) -> Option<Arrival> {
        self.stop_reading(who, BodyExtent::Part, worker, now)
    }

    fn stop_reading<W>(
        &mut self,
        who: W,
        extent: BodyExtent,
        worker: &mut Worker<W>,
        now: Monotonic,
    ) -> Option<Arrival> {
        match std::mem::take(&mut self.phase) {
            Phase::Reading(reading) => {
                let (checks, earlier) = reading.finish(extent);
                Some(self.submit(who, checks, earlier, worker, now))
            }
            phase => {
                self.phase = phase;
                None
            }
        }
    }

    fn submit<W>(
        &mut self,
        who: W,
        checks: Vec<Check>,
        earlier: Option<Admission>,
        worker: &mut Worker<W>,
        now: Monotonic,
    ) -> Arrival {
        match worker.submit_under(self.arrived_under.as_ref(), who, checks, now) {
            Submitted::Decided(decision) => {
                self.phase = Phase::Decided(self.join(earlier, decision, worker, now));
                Arrival::Decided
            }
            Submitted::Waiting(ticket) => {
                self.phase = Phase::Waiting(ticket, earlier);
                Arrival::Waiting
            }
            Submitted::Counting(admission) => {
                let decision = self.join(earlier, Decision::Admit(admission), worker, now);
                self.phase = Phase::Decided(decision);
                self.is_counting = true;
                Arrival::Counting
            }
        }
    }

    /// The worker decided the request, or shadow policies counted it. Returns whether the stream is
    /// held: resume it, or answer it.
    pub fn decided<W>(
        &mut self,
        decision: Decision,
        stream: StreamState,
        worker: &mut Worker<W>,
        now: Monotonic,
    ) -> bool {
        self.is_counting = false;
        let (decision, held) = match std::mem::take(&mut self.phase) {
            // It went on, and this is what shadow policies say.
            Phase::Decided(mut decided) => {
                if let (Decision::Admit(admission), Decision::Admit(counted)) =
                    (&mut decided, decision)
                {
                    admission.join(counted);
                }
                (decided, false)
            }
            Phase::Waiting(_, earlier) if stream == StreamState::Open => {
                (self.join(earlier, decision, worker, now), true)
            }
            Phase::Waiting(_, earlier) => {
                abandon_under(self.arrived_under.as_ref(), earlier, worker, now);
                (decision, true)
            }
            // The stream is done, or was never submitted.
            Phase::Uncounted | Phase::Reading(_) | Phase::Unreached(_) => (decision, false),
        };
        self.phase = match decision {
            Decision::Admit(mut admission) if held && stream == StreamState::Gone => {
                worker.free(admission.slots.take(), now);
                Phase::Unreached(admission.into_held())
            }
            decision => Phase::Decided(decision),
        };
        stream == StreamState::Open && held
    }

    /// Whether the request holds nothing: no policy counts it, or it was answered without a
    /// decision, or its admission was taken. Neither its response nor its end matter. Ask after it
    /// has arrived.
    pub const fn is_uncounted(&self) -> bool {
        matches!(self.phase, Phase::Uncounted)
    }

    /// Whether the request waits for its decision, so that its body must wait, too.
    pub const fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting(..) | Phase::Reading(_))
    }

    /// Whether the request's body is read for its cost.
    pub const fn is_reading(&self) -> bool {
        matches!(self.phase, Phase::Reading(_))
    }

    /// The decision, once there is one.
    pub const fn decision(&self) -> Option<&Decision> {
        match &self.phase {
            Phase::Decided(decision) => Some(decision),
            Phase::Uncounted | Phase::Reading(_) | Phase::Waiting(..) | Phase::Unreached(_) => None,
        }
    }

    /// The admission, if the request was admitted.
    pub const fn admission(&self) -> Option<&Admission> {
        match &self.phase {
            Phase::Decided(Decision::Admit(admission)) => Some(admission),
            _ => None,
        }
    }

    /// Response headers are there, from the upstream or from the host.
    pub const fn response_begins(&mut self) {
        self.has_response = true;
    }

    /// Refunds the held units that a response does not count. `event` reads the response; its
    /// argument says whether a gRPC status matters. Returns whether it refunded any: the access log
    /// entry is another one then.
    pub fn count_response<W>(
        &mut self,
        event: impl FnOnce(bool) -> Option<ResponseEvent>,
        worker: &mut Worker<W>,
        now: Monotonic,
    ) -> bool {
        let Phase::Decided(Decision::Admit(admission)) = &mut self.phase else { return false };
        if admission.held.is_empty() {
            return false;
        }
        let config = self.arrived_under.as_ref().unwrap_or_else(|| worker.config());
        let Some(event) = event(admission.counts_by_grpc(config)) else {
            return false;
        };
        let refunds = admission.count_response(event, config);
        let refunded = !refunds.is_empty();
        worker.refund(refunds, now);
        refunded
    }

    /// The response's headers have come, and [`count_response`](Self::count_response) has read
    /// them. `whole`: they are the whole response. Begins to read the real cost, if a policy
    /// settles by it.
    pub fn response_headers<W>(
        &mut self,
        response: &impl Upstream,
        whole: bool,
        worker: &mut Worker<W>,
        now: Monotonic,
    ) {
        let Some(admission) = self.admission() else { return };
        let mut settling = settling(admission, self.config(worker)).peekable();
        if settling.peek().is_none() {
            return;
        }
        let progress = SettleProgress::begin(settling, response);
        self.progress = Some(Box::new(progress));
        if whole {
            self.response_ends(response, worker, now);
        }
    }

    /// Whether the real cost may be in the response's body.
    pub fn reads_body(&self) -> bool {
        self.progress.as_ref().is_some_and(|progress| progress.reads_body())
    }

    /// The next chunk of the response's body. After the last one comes
    /// [`response_ends`](Self::response_ends), unless trailers follow.
    pub fn body(&mut self, chunk: &[u8]) {
        if let Some(progress) = &mut self.progress {
            progress.body(chunk);
        }
    }

    /// The response's trailers have come, and [`count_response`](Self::count_response) has read
    /// them.
    pub fn response_trailers<W>(
        &mut self,
        response: &impl Upstream,
        worker: &mut Worker<W>,
        now: Monotonic,
    ) {
        if let (Phase::Decided(Decision::Admit(admission)), Some(progress)) =
            (&self.phase, &mut self.progress)
        {
            let config = self.arrived_under.as_ref().unwrap_or_else(|| worker.config());
            progress.trailers(settling(admission, config), response);
        }
        self.response_ends(response, worker, now);
    }

    /// The whole response has come.
    pub fn response_ends<W>(
        &mut self,
        response: &impl Upstream,
        worker: &mut Worker<W>,
        now: Monotonic,
    ) {
        if let Some(progress) = &mut self.progress {
            progress.complete();
            self.settle(response, false, worker, now);
        }
    }

    /// Settles the units whose real cost is known. If the stream is over (`is_last`), all are.
    fn settle<W>(
        &mut self,
        response: &impl Upstream,
        is_last: bool,
        worker: &mut Worker<W>,
        now: Monotonic,
    ) {
        let Phase::Decided(Decision::Admit(admission)) = &mut self.phase else { return };
        if admission.unsettled.is_empty() {
            return;
        }
        let config = Arc::clone(self.arrived_under.as_ref().unwrap_or_else(|| worker.config()));
        // Without response headers nothing is known.
        let progress = self.progress.get_or_insert_default();
        for held in std::mem::take(&mut admission.unsettled) {
            let cost = settle_of(&held, &config).and_then(|settle| {
                progress.cost(held.policy, settle, held.units.amount, response, is_last)
            });
            match cost {
                Some(RealCost { units, is_missing }) => {
                    if is_missing {
                        worker.count_missing_cost(self.arrived_under.as_ref(), held.policy);
                    }
                    worker.settle(held, units, now);
                }
                None => admission.unsettled.push(held),
            }
        }
    }

    /// Takes the admission if the stream ends because of an internal redirect, as `is_redirected`
    /// says. Pass it to [`arrive`](Self::arrive) of the stream that follows.
    pub fn redirected(&mut self, is_redirected: impl FnOnce() -> bool) -> Option<Admission> {
        if self.has_response || self.admission().is_none() || !is_redirected() {
            return None;
        }
        let generation = self.arrived_under.as_ref().map_or(0, |config| config.generation());
        match std::mem::take(&mut self.phase) {
            Phase::Decided(Decision::Admit(admission)) => {
                Some(Admission { generation, ..admission })
            }
            _ => None,
        }
    }

    /// Lets go of the configuration under which the request arrived, if the rest of the stream
    /// changes nothing any more: a long stream must not keep one that was replaced. Returns whether
    /// it did. From then on [`config_or`](Self::config_or) is the configuration in force, so the
    /// host has written headers and access log before.
    pub fn release_config(&mut self) -> bool {
        let is_over = self.has_response && self.has_settled_units() && !self.is_counting;
        if is_over {
            self.arrived_under = None;
        }
        is_over
    }

    /// The configuration that says what its policies are, with the one in force given.
    pub fn config_or<'c>(&'c self, in_force: &'c Arc<Config>) -> &'c Arc<Config> {
        self.arrived_under.as_ref().unwrap_or(in_force)
    }

    fn config<'c, W>(&'c self, worker: &'c Worker<W>) -> &'c Arc<Config> {
        self.config_or(worker.config())
    }

    /// Joins a decision to the admission from before the request was redirected.
    fn join<W>(
        &self,
        earlier: Option<Admission>,
        decision: Decision,
        worker: &mut Worker<W>,
        now: Monotonic,
    ) -> Decision {
        match (earlier, decision) {
            (Some(mut earlier), Decision::Admit(admission)) => {
                earlier.join(admission);
                Decision::Admit(earlier)
            }
            (earlier @ Some(_), refused) => {
                abandon_under(self.arrived_under.as_ref(), earlier, worker, now);
                refused
            }
            (None, decision) => decision,
        }
    }

    /// Whether the end of the stream changes nothing any more.
    pub fn is_settled(&self) -> bool {
        self.has_settled_units() && self.admission().is_none_or(|it| it.slots.is_empty())
    }

    /// The same, but for slots, which need no configuration.
    fn has_settled_units(&self) -> bool {
        match &self.phase {
            Phase::Uncounted | Phase::Decided(Decision::Refuse(_) | Decision::Unavailable(_)) => {
                true
            }
            Phase::Decided(Decision::Admit(admission)) => {
                self.has_response && admission.held.is_empty() && admission.unsettled.is_empty()
            }
            Phase::Reading(_) | Phase::Waiting(..) | Phase::Unreached(_) => false,
        }
    }

    /// The stream ends. No answer can come after this.
    pub fn end<W>(&mut self, response: &impl Upstream, worker: &mut Worker<W>, now: Monotonic) {
        match &mut self.phase {
            Phase::Waiting(ticket, earlier) => {
                worker.cancel(*ticket, now);
                abandon_under(self.arrived_under.as_ref(), earlier.take(), worker, now);
            }
            Phase::Reading(reading) => {
                abandon_under(self.arrived_under.as_ref(), reading.earlier.take(), worker, now);
                // A timer that is still due finds nothing to submit.
                self.phase = Phase::Uncounted;
            }
            Phase::Unreached(held) => worker.refund(std::mem::take(held), now),
            Phase::Decided(Decision::Admit(admission)) if !admission.slots.is_empty() => {
                worker.free(admission.slots.take(), now);
            }
            Phase::Uncounted | Phase::Decided(_) => {}
        }
        self.count_response(|_| Some(ResponseEvent::Abandoned), worker, now);
        self.settle(response, true, worker, now);
    }
}

/// The policies that settle the cost of a request, by index.
fn settling<'c>(
    admission: &'c Admission,
    config: &'c Config,
) -> impl Iterator<Item = (usize, &'c Settle)> {
    let held = admission.held.iter().chain(&admission.unsettled);
    held.filter_map(|held| Some((held.policy, settle_of(held, config)?)))
}

fn settle_of<'c>(held: &Held, config: &'c Config) -> Option<&'c Settle> {
    config.policies.get(held.policy)?.settle.as_deref()
}

/// A request was admitted `earlier` and redirected, and that pass does not count for a later one:
/// that was refused, its client left, or nobody knows of it. The upstream did its work in the
/// earlier pass, so each policy decides on its units as it does for a stream that breaks off.
///
/// If another document has replaced the configuration since, nobody knows what its policies say.
/// Then its units stay counted. Its slots are free in any case.
pub fn abandon<W>(mut earlier: Option<Admission>, worker: &mut Worker<W>, now: Monotonic) {
    if let Some(earlier) = &mut earlier {
        worker.free(earlier.slots.take(), now);
    }
    let generation = worker.config().generation();
    let earlier = earlier.filter(|earlier| earlier.generation == generation);
    abandon_under(None, earlier, worker, now);
}

/// The same for an admission under `config`; without one, under the configuration in force.
fn abandon_under<W>(
    config: Option<&Arc<Config>>,
    earlier: Option<Admission>,
    worker: &mut Worker<W>,
    now: Monotonic,
) {
    let Some(mut earlier) = earlier else { return };
    worker.free(earlier.slots.take(), now);
    let config = Arc::clone(config.unwrap_or_else(|| worker.config()));
    worker.refund(earlier.count_response(ResponseEvent::Abandoned, &config), now);
    for held in earlier.unsettled {
        if let Some(settle) = settle_of(&held, &config) {
            let cost = settle.missing.cost(held.units.amount);
            worker.count_missing_cost(Some(&config), held.policy);
            worker.settle(held, cost, now);
        }
    }
}
