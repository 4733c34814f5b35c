//! How the root finds a request that waits, or that shadow policies count while it runs.

use std::cell::RefCell;
use std::rc::Rc;

use quotagate_quota::access_log;
use quotagate_quota::config::Config;
use quotagate_quota::decision::{Admission, Decision, Held};
use quotagate_quota::response;
use quotagate_quota::worker::Ticket;

use crate::host;
use crate::plugin::Plugin;

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

impl Waiting {
    /// Carries out the decision, in a callback of the root. Returns whether it resumed or answered
    /// the stream.
    pub fn carry_out(self, decision: Decision, plugin: &Plugin, config: &Config) -> bool {
        // A stream that is gone needs nothing, and the stream that is active instead must not get
        // its answer. `on_done` ran before, and `Worker::cancel` refunded the units.
        let there = host::enter(self.stream);
        let (decision, paused) = match self.phase.replace(Phase::Uncounted) {
            // It went on, and this is what shadow policies say.
            Phase::Decided(mut decided) => {
                if let (Decision::Admit(admission), Decision::Admit(counted)) =
                    (&mut decided, decision)
                {
                    admission.join(counted);
                }
                (decided, false)
            }
            Phase::Waiting(_, earlier) if there => (plugin.join(earlier, decision), true),
            Phase::Waiting(_, earlier) => {
                plugin.abandon(earlier);
                (decision, true)
            }
            // The stream is done.
            Phase::Uncounted | Phase::Unreached(_) => (decision, false),
        };
        if there {
            host::note(access_log::entry(config, &decision));
        }
        if there && paused {
            match response::answer(config, &decision, || plugin.response_time()) {
                Some(answer) => host::send(&answer),
                None => host::resume_request(),
            }
        }
        self.phase.replace(match decision {
            Decision::Admit(admission) if paused && !there => Phase::Unreached(admission.held),
            decision => Phase::Decided(decision),
        });
        there && paused
    }
}
