//! A request that waits, or is counted while it runs, as the root finds it again.

use std::cell::RefCell;
use std::rc::Rc;

use quotagate_quota::access_log;
use quotagate_quota::config::Config;
use quotagate_quota::decision::{Admission, Decision, Held};
use quotagate_quota::response;
use quotagate_quota::worker::Ticket;

use crate::host;
use crate::plugin::Plugin;

/// How far a request is.
#[derive(Debug)]
pub enum Phase {
    /// Nothing counts it, or the filter has answered it for want of an identity.
    Uncounted,
    /// Paused. Where it was redirected, with what it was counted by before.
    Waiting(Ticket, Option<Admission>),
    /// Admitted when the stream was gone: it never reaches the upstream, and these units are to be refunded.
    Unreached(Vec<Held>),
    /// Let through, or answered by the filter. Policies that only count may not have heard from the store yet.
    Decided(Decision),
}

/// How the root finds a request.
pub struct Waiting {
    pub stream: u32,
    pub phase: Rc<RefCell<Phase>>,
}

impl Waiting {
    /// Carries out what became of the request, from a callback of the root. Whether the host was called to let it
    /// go on, or to answer it.
    pub fn carry_out(self, decision: Decision, plugin: &Plugin, config: &Config) -> bool {
        // A stream that is gone needs nothing, and whatever is active instead must not get it. Envoy says that a
        // stream is done before it is gone, and `Worker::cancel` has then taken its units back.
        let there = host::enter(self.stream);
        let (decision, paused) = match self.phase.replace(Phase::Uncounted) {
            // It has gone on, and this is what the policies say that only count.
            Phase::Decided(mut decided) => {
                if let (Decision::Admit(admission), Decision::Admit(counted)) = (&mut decided, decision) {
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
