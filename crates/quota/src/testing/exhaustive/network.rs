//! Calls on their way: what a network, a host and a store can do to them.

use std::sync::Arc;

use quotagate_protocol::ReserveRequest;

use super::properties::Property;
use super::{SearchSetup, SearchState};
use crate::worker::{CallId, OutgoingCall};

/// Which parts of a call the network delivers to the store a second time. The product repeats
/// nothing; the other variants show why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    Nothing,
    Refunds,
    Charges,
    Reservations,
}

/// The host reports a call at most this many milliseconds after its timeout.
const HOST_MS: u64 = 10;

/// A call under way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) id: CallId,
    /// When it times out, in milliseconds.
    pub(super) due: u64,
    pub(super) message: Message,
}

#[derive(Clone, Debug)]
pub(super) enum Message {
    /// On its way to the store.
    Call(Arc<ReserveRequest>),
    /// On its way back.
    Reply(Arc<str>),
    /// On its way to the store, and nobody waits for the reply any more.
    Stray(Arc<ReserveRequest>),
}

impl Flight {
    pub(super) fn new(call: OutgoingCall, now_ms: u64) -> Self {
        let mut request: ReserveRequest = serde_json::from_slice(&call.body()).unwrap();
        // A worker keeps them in no order.
        for list in [&mut request.refunds, &mut request.charges] {
            list.sort_by(|a, b| (&a.key, a.window).cmp(&(&b.key, b.window)));
        }
        let due = now_ms + u64::try_from(call.timeout.as_millis()).unwrap();
        Self { id: call.id, due, message: Message::Call(Arc::new(request)) }
    }

    pub(super) fn stray(request: Arc<ReserveRequest>) -> Self {
        Self { id: CallId(0), due: 0, message: Message::Stray(request) }
    }

    /// Whether the host may report it only after `ms`.
    pub(super) fn may_last_until(&self, ms: u64) -> bool {
        matches!(self.message, Message::Stray(_)) || ms <= self.due + HOST_MS
    }
}

impl SearchSetup {
    /// The store carries out the flight at this index, and returns its reply.
    pub(super) fn carry_out(
        &self,
        state: &mut SearchState,
        worker: usize,
        flight: usize,
    ) -> Arc<str> {
        let now_ms = self.moments[state.step];
        let mut request = match &state.nodes[worker].flights[flight].message {
            Message::Call(request) | Message::Stray(request) => ReserveRequest::clone(request),
            Message::Reply(_) => unreachable!("a reply is not carried out"),
        };
        for back in &mut request.refunds {
            let used = state.store.used(&(back.key.clone(), back.window));
            if now_ms / 1000 / u64::from(back.window_s) == back.window && back.units > used {
                state.wrong = state.wrong.or(Some(Property::NothingReturnedTwice));
                // Like the script: never below 0.
                back.units = used;
            }
        }
        request.refunds.retain(|back| back.units > 0);
        serde_json::to_string(&state.store.carry_out(&request, now_ms)).unwrap().into()
    }
}

impl Repeats {
    /// The part of a call that reaches the store a second time.
    pub(super) fn of(self, request: &ReserveRequest) -> Option<Arc<ReserveRequest>> {
        let mut again = request.clone();
        match self {
            Self::Nothing => return None,
            Self::Refunds => (again.charges, again.reservations) = (vec![], vec![]),
            Self::Charges => (again.refunds, again.reservations) = (vec![], vec![]),
            Self::Reservations => (again.refunds, again.charges) = (vec![], vec![]),
        }
        let is_empty =
            again.refunds.is_empty() && again.charges.is_empty() && again.reservations.is_empty();
        (!is_empty).then(|| Arc::new(again))
    }
}
