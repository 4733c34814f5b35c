//! A request that waits, or is counted while it runs, as the root finds it again.

use std::cell::RefCell;
use std::rc::Rc;

use quotagate_quota::config::Config;
use quotagate_quota::decision::Decision;
use quotagate_quota::evaluate::MissingIdentity;
use quotagate_quota::response::{self, Now};
use quotagate_quota::worker::Ticket;

use crate::host;

/// How far a request is.
#[derive(Debug)]
pub enum Phase {
    /// Nothing counts it.
    Uncounted,
    /// Answered by the filter, because this is missing.
    Unidentified(MissingIdentity),
    /// Paused.
    Waiting(Ticket),
    /// Let through, or answered by the filter. Policies that only count may not have heard from the store yet.
    Decided(Decision),
}

/// How the root finds a request.
pub struct Waiting {
    pub stream: u32,
    pub phase: Rc<RefCell<Phase>>,
}

impl Waiting {
    /// Carries out what became of the request, from a callback of the root. Whether the host was called for it.
    pub fn carry_out(self, decision: Decision, config: &Config, now: impl FnOnce() -> Now) -> bool {
        if let Phase::Decided(Decision::Admit(admission)) = &mut *self.phase.borrow_mut() {
            if let Decision::Admit(counted) = decision {
                admission.join(counted);
            }
            return false;
        }
        let paused = matches!(*self.phase.borrow(), Phase::Waiting(_));
        // A stream that is gone needs nothing, and whatever is active instead must not get it. Envoy says that a
        // stream is done before it is gone, and `Worker::cancel` has then taken its units back.
        let resumed = paused && host::enter(self.stream);
        if resumed {
            match response::answer(config, &decision, now) {
                Some(answer) => host::send(&answer),
                None => host::resume_request(),
            }
        }
        self.phase.replace(Phase::Decided(decision));
        resumed
    }
}
