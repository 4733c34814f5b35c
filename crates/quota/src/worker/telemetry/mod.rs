//! What a worker tells operators: counts for metrics, log lines, and reports to the store.

mod identity_watch;
mod notices;
mod refusals;
pub(super) mod report;
mod tally;

use std::sync::Arc;

use quotagate_protocol::Mode;

pub use notices::{Notice, PAUSE as NOTICE_PAUSE};
pub use tally::Counted;
pub(super) use tally::Counts;

use super::call::faults::CallOutcome;
use super::requests::Want;
use crate::config::MovedPolicies;
use crate::decision::{Outcome, Standing};
use identity_watch::IdentityWatch;
use notices::Notices;
use refusals::Refusals;
pub(super) use tally::Tally;

/// What a policy in this mode makes of a request beyond its quota.
pub(super) const fn exceeded(mode: Mode) -> Outcome {
    match mode {
        Mode::Enforce => Outcome::Refused,
        Mode::Mark => Outcome::Marked,
        Mode::Shadow | Mode::Off => Outcome::ShadowRefused,
    }
}

/// The telemetry of a worker.
#[derive(Clone, Debug)]
pub(super) struct Telemetry {
    pub(super) tally: Tally,
    pub(super) refusals: Refusals,
    /// The same for requests that policies in shadow mode, or that mark, let through.
    pub(super) let_through: Refusals,
    pub(super) notices: Notices,
    pub(super) identities: IdentityWatch,
    /// While a request of another generation is decided: the indexes that its policies have in the
    /// configuration in force, whose policies are counted.
    pub(super) moved: Option<MovedPolicies>,
}

impl Telemetry {
    /// No telemetry yet, for `policies` policies.
    pub(super) fn new(policies: usize) -> Self {
        Self {
            tally: Tally::new(policies),
            refusals: Refusals::default(),
            let_through: Refusals::default(),
            notices: Notices::default(),
            identities: IdentityWatch::default(),
            moved: None,
        }
    }

    /// Whether no count waits to be taken, and no notice waits for the time when it may be logged.
    pub(super) fn is_idle(&self) -> bool {
        self.tally.is_empty() && self.notices.is_settled()
    }

    /// Counts a request that the worker decided on arrival.
    pub(super) fn count_standings<'s>(&mut self, standings: impl Iterator<Item = &'s Standing>) {
        for standing in standings {
            let outcome =
                if standing.granted { Outcome::Admitted } else { exceeded(standing.mode) };
            self.count_from_ledger(standing.policy, outcome, &standing.counter.key);
        }
    }

    /// Counts a request that waited.
    pub(super) fn count_wants(&mut self, wants: &[Want]) {
        for Want { check, outcome, .. } in wants {
            match *outcome {
                Some((outcome, true)) => {
                    self.count_from_ledger(check.policy, outcome, &check.counter.key);
                }
                Some((outcome, false)) => self.count(check.policy, outcome),
                None => {}
            }
        }
    }

    /// Counts a request. `by_worker`: it needed no call.
    pub(super) fn count_decided(
        &mut self,
        policy: usize,
        outcome: Outcome,
        key: &Arc<str>,
        by_worker: bool,
    ) {
        match by_worker {
            true => self.count_from_ledger(policy, outcome, key),
            false => self.count(policy, outcome),
        }
    }

    /// Counts a request. Nobody counts those of a policy that is gone.
    pub(super) fn count(&mut self, policy: usize, outcome: Outcome) {
        let index = match &self.moved {
            Some(moved) => moved.get(policy).copied().flatten(),
            None => Some(policy),
        };
        if let Some(policy) = index {
            self.tally.count(policy, outcome);
        }
    }

    /// Counts the end of a call.
    pub(super) fn count_call(&mut self, outcome: CallOutcome) {
        self.tally.count_call(outcome);
    }

    fn count_from_ledger(&mut self, policy: usize, outcome: Outcome, key: &Arc<str>) {
        self.count(policy, outcome);
        self.count(policy, Outcome::FromLedger);
        match outcome {
            Outcome::Refused => self.refusals.note(key),
            Outcome::ShadowRefused | Outcome::Marked => self.let_through.note(key),
            _ => {}
        }
    }
}
