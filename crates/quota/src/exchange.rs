//! One request and its response, the same in every host: which of its states the request is in, and
//! which units the worker gets back.
//!
//! The adapters own streams and host calls. They report what happens to a stream here, and carry
//! out what comes back.

use crate::answered::Answered;
use crate::decision::{Admission, Decision, Held, Outcome};
use crate::evaluate::{Evaluation, MissingIdentity};
use crate::time::Monotonic;
use crate::worker::{Submitted, Ticket, Worker};

/// A request and its response.
///
/// # Call order
///
/// 1. [`arrive`](Self::arrive), once, with the request's headers.
/// 2. After [`Arrival::Waiting`] or [`Arrival::Counting`]: [`decided`](Self::decided), with what
///    [`Worker::next_decision`] returns for it.
/// 3. [`response_begins`](Self::response_begins) and [`answered`](Self::answered), with response
///    headers and trailers.
/// 4. [`redirected`](Self::redirected), then [`end`](Self::end), once, when the stream ends.
///
/// Units are those of policies. Whatever the order of 2 to 4, every unit that the request holds is
/// either spent or refunded once.
#[derive(Debug, Default)]
pub struct Exchange {
    phase: Phase,
    /// Whether it has response headers, from the upstream or from the host.
    has_response: bool,
}

#[derive(Debug, Default)]
enum Phase {
    /// No policy counts it, or the filter answered it because of a missing identity.
    #[default]
    Uncounted,
    /// It waits for a call. After a redirect, with the admission from before it.
    Waiting(Ticket, Option<Admission>),
    /// Admitted after the stream was gone: it never reaches the upstream, so these units must be
    /// refunded.
    Unreached(Vec<Held>),
    /// Admitted, or answered by the filter. Shadow policies may still wait for the store.
    Decided(Decision),
}

/// What becomes of a request on arrival.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// No policy counts it. It goes on.
    Uncounted,
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
    /// The request arrives. `evaluation` comes from the configuration that [`Worker::arrives`]
    /// returned; `earlier` is the admission from before an internal redirect.
    pub fn arrive<W>(
        &mut self,
        who: W,
        evaluation: Evaluation,
        earlier: Option<Admission>,
        worker: &mut Worker<W>,
        now: Monotonic,
    ) -> Arrival {
        for policy in evaluation.missing {
            worker.count(policy, Outcome::MissingIdentity);
        }
        let mut checks = match evaluation.checks {
            Ok(checks) => checks,
            Err(missing) => {
                worker.refund(earlier.map(|earlier| earlier.held).unwrap_or_default(), now);
                return Arrival::MissingIdentity(missing);
            }
        };
        if let Some(earlier) = &earlier {
            checks.retain(|check| !earlier.knows(check.policy));
        }
        if checks.is_empty() {
            let Some(earlier) = earlier else { return Arrival::Uncounted };
            self.phase = Phase::Decided(Decision::Admit(earlier));
            return Arrival::Decided;
        }
        match worker.submit(who, checks, now) {
            Submitted::Decided(decision) => {
                self.phase = Phase::Decided(join(earlier, decision, worker, now));
                Arrival::Decided
            }
            Submitted::Waiting(ticket) => {
                self.phase = Phase::Waiting(ticket, earlier);
                Arrival::Waiting
            }
            Submitted::Counting(admission) => {
                let decision = join(earlier, Decision::Admit(admission), worker, now);
                self.phase = Phase::Decided(decision);
                Arrival::Counting
            }
        }
    }

    /// The worker decided the request, or shadow policies counted it. `there` says whether the
    /// stream still exists. Returns whether the stream is held: resume it, or answer it.
    pub fn decided<W>(
        &mut self,
        decision: Decision,
        there: bool,
        worker: &mut Worker<W>,
        now: Monotonic,
    ) -> bool {
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
            Phase::Waiting(_, earlier) if there => (join(earlier, decision, worker, now), true),
            Phase::Waiting(_, earlier) => {
                abandon(earlier, worker, now);
                (decision, true)
            }
            // The stream is done.
            Phase::Uncounted | Phase::Unreached(_) => (decision, false),
        };
        self.phase = match decision {
            Decision::Admit(admission) if held && !there => Phase::Unreached(admission.held),
            decision => Phase::Decided(decision),
        };
        there && held
    }

    /// Whether the request waits for its decision, so that its body must wait, too.
    pub const fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting(..))
    }

    /// The decision, once there is one.
    pub const fn decision(&self) -> Option<&Decision> {
        match &self.phase {
            Phase::Decided(decision) => Some(decision),
            Phase::Uncounted | Phase::Waiting(..) | Phase::Unreached(_) => None,
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

    /// Refunds the held units that an answer does not count. `answered` reads the answer; its
    /// argument says whether a gRPC status matters. Returns whether it refunded any: the access log
    /// entry is another one then.
    pub fn answered<W>(
        &mut self,
        answered: impl FnOnce(bool) -> Option<Answered>,
        worker: &mut Worker<W>,
        now: Monotonic,
    ) -> bool {
        let Phase::Decided(Decision::Admit(admission)) = &mut self.phase else { return false };
        if admission.held.is_empty() {
            return false;
        }
        let Some(answered) = answered(admission.counts_by_grpc(worker.config())) else {
            return false;
        };
        let refunds = admission.answered(answered, worker.config());
        let refunded = !refunds.is_empty();
        worker.refund(refunds, now);
        refunded
    }

    /// Takes the admission if the stream ends because of an internal redirect, as `is_redirected`
    /// says. Pass it to [`arrive`](Self::arrive) of the stream that follows.
    pub fn redirected(&mut self, is_redirected: impl FnOnce() -> bool) -> Option<Admission> {
        if self.has_response || self.admission().is_none() || !is_redirected() {
            return None;
        }
        match std::mem::take(&mut self.phase) {
            Phase::Decided(Decision::Admit(admission)) => Some(admission),
            _ => None,
        }
    }

    /// Whether the end of the stream changes nothing any more.
    pub fn is_settled(&self) -> bool {
        match &self.phase {
            Phase::Uncounted | Phase::Decided(Decision::Refuse(_) | Decision::Unavailable(_)) => {
                true
            }
            Phase::Decided(Decision::Admit(admission)) => {
                self.has_response && admission.held.is_empty()
            }
            Phase::Waiting(..) | Phase::Unreached(_) => false,
        }
    }

    /// The stream ends. No answer can come after this.
    pub fn end<W>(&mut self, worker: &mut Worker<W>, now: Monotonic) {
        match &mut self.phase {
            Phase::Waiting(ticket, earlier) => {
                worker.cancel(*ticket, now);
                abandon(earlier.take(), worker, now);
            }
            Phase::Unreached(held) => worker.refund(std::mem::take(held), now),
            Phase::Uncounted | Phase::Decided(_) => {}
        }
        self.answered(|_| Some(Answered::Abandoned), worker, now);
    }
}

/// Joins a decision to the admission from before the request was redirected.
fn join<W>(
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
        (Some(earlier), refused) => {
            worker.refund(earlier.held, now);
            refused
        }
        (None, decision) => decision,
    }
}

/// The client left after its request was admitted `earlier` and redirected.
fn abandon<W>(earlier: Option<Admission>, worker: &mut Worker<W>, now: Monotonic) {
    if let Some(mut earlier) = earlier {
        let refunds = earlier.answered(Answered::Abandoned, worker.config());
        worker.refund(refunds, now);
    }
}
