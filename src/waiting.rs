//! How the root finds a request that waits, or that shadow policies count while it runs.

use std::cell::RefCell;
use std::rc::Rc;

use quotagate_quota::decision::{Admission, Decision, Held};
use quotagate_quota::worker::Ticket;

/// The state of a request.
#[derive(Debug)]
pub enum Phase {
    /// No policy counts it, or the filter answered it because of a missing identity.
    Uncounted,
    /// Paused. After a redirect, with the admission from before it.
    Waiting(Ticket, Option<Admission>),
    /// Admitted after the stream was gone: it never reaches the upstream, so these units must be
    /// refunded.
    Unreached(Vec<Held>),
    /// Admitted, or answered by the filter. Shadow policies may still wait for the store.
    Decided(Decision),
}

/// A request of a worker.
pub struct Waiting {
    pub stream: u32,
    pub phase: Rc<RefCell<Phase>>,
}
