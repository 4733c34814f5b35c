//! A request that waits, as the root finds it again.

use std::cell::RefCell;
use std::rc::Rc;

use quotagate_quota::config::Config;
use quotagate_quota::decision::{Admission, Decision};
use quotagate_quota::response::{self, Now};
use quotagate_quota::worker::Ticket;

use crate::host;

/// How far a request is.
#[derive(Debug)]
pub enum Phase {
    /// Not counted, or not yet.
    Uncounted,
    /// Paused.
    Waiting(Ticket),
    /// Let through; its response says where it stands.
    Admitted(Admission),
    /// Answered by the filter.
    Answered,
}

/// How the root finds a paused request.
pub struct Waiting {
    pub stream: u32,
    pub phase: Rc<RefCell<Phase>>,
}

impl Waiting {
    /// Carries out what became of the request, from a callback of the root.
    pub fn carry_out(self, decision: Decision, config: &Config, now: impl FnOnce() -> Now) {
        // A stream that is gone needs nothing, and whatever is active instead must not get it. Envoy says that a
        // stream is done before it is gone, and `Worker::cancel` has then taken its units back.
        if !host::enter(self.stream) {
            return;
        }
        match response::answer(config, decision, now) {
            Ok(admission) => {
                self.phase.replace(Phase::Admitted(admission));
                host::resume_request();
            }
            Err(answer) => {
                self.phase.replace(Phase::Answered);
                host::send(&answer);
            }
        }
    }
}
