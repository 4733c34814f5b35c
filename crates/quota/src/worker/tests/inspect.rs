//! What models may inspect of a worker besides its API.

use std::fmt::Debug;

use super::super::{Ticket, Worker};
use crate::evaluate::Counter;

impl<W> Worker<W> {
    /// The requests that wait, then those whose decision has not been taken.
    pub(crate) fn open_tickets(&self) -> impl Iterator<Item = Ticket> {
        self.requests.waiting().keys().copied().chain(self.requests.decided())
    }

    /// The requests that wait, in the order of arrival.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &W> {
        self.requests.waiting().values().map(|waiter| &waiter.who)
    }

    /// Units of a counter that are leased, and that are under way.
    pub(crate) fn lease_load(&self, counter: &Counter) -> (u64, u64) {
        self.leases.load(counter)
    }

    /// A text that is equal for two workers that act alike. It leaves dials and metrics out.
    pub(crate) fn state_text(&self) -> String
    where
        W: Debug,
    {
        format!("{:?}", (&self.known, &self.leases, &self.calls, &self.requests))
    }
}
