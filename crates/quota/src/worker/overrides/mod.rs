//! What operators changed while the fleet runs: the dials of policies, and which policies have
//! runtime overrides.
//!
//! A worker fetches both when `schedule` says so, and no request waits for a fetch. Until the first
//! reply the configuration is in force. After a failure the last known dials stay in force. `patch`
//! reads replies leniently. A dial with a time limit reverts by itself. Its time runs from the
//! receipt of the reply.
//!
//! One of several stores may lag. So for [`SETTLES`] a worker ignores a version that is older than
//! the known one. After that it accepts the older version, since a memory store starts at 0 again
//! with each start of its process.

mod patch;
mod schedule;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::Mode;
use quotagate_protocol::dials::DocumentVersion;

use super::call::LOST_AFTER;
use super::call::faults::{CallFault, CallOutcome, Misread};
use super::fetch::OutgoingFetch;
use super::telemetry::report::{self, ReportingWorker};
use super::telemetry::{Counts, Telemetry};
use super::{CallId, Worker};
use crate::config::{Config, Dialed, Reach};
use crate::time::Monotonic;
use patch::{Ignored, StoredChanges, Timed};
use schedule::Schedule;

/// A fetch may take this long, even with a shorter `store.timeout`, because no request waits for
/// it.
const LEAST_TIMEOUT: Duration = Duration::from_secs(1);
/// For this long after a reply with a version, an older version must come from a lagging store.
const SETTLES: Duration = Duration::from_secs(10);

/// The changes in force, and when to fetch them again.
#[derive(Clone, Debug)]
pub(super) struct ChangesInForce {
    /// The configuration without changes.
    configured: Arc<Config>,
    dials: Vec<Timed>,
    overridden: Vec<usize>,
    /// The changes in force, by the index of the policy.
    dialed: Vec<Dialed>,
    /// When the first dial reverts.
    reverts_at: Option<Monotonic>,
    /// The version in force, and the last reply with it or a newer one.
    version: u64,
    confirmed: Monotonic,
    /// The newest version in replies to other calls since the last fetch left.
    newest: u64,
    pub(super) schedule: Schedule,
    /// The counts of requests in the report of the fetch under way.
    reported: Vec<Counts>,
    /// The policy whose `partition_by` comes first in the next report.
    turn: usize,
    /// What was ignored in the last reply. It is logged once.
    ignored: Ignored,
    /// Whether the log says already that the store does not support dials.
    logged_lagging: bool,
}

impl ChangesInForce {
    /// No changes yet.
    pub(super) fn new(configured: Arc<Config>) -> Self {
        Self {
            dialed: vec![Dialed::default(); configured.policies.len()],
            configured,
            dials: Vec::new(),
            overridden: Vec::new(),
            reverts_at: None,
            version: 0,
            confirmed: Monotonic::default(),
            newest: 0,
            schedule: Schedule::default(),
            reported: Vec::new(),
            turn: 0,
            ignored: Ignored::default(),
            logged_lagging: false,
        }
    }

    /// The configuration without changes.
    pub(super) const fn configured(&self) -> &Arc<Config> {
        &self.configured
    }

    /// Another configuration of the same policies is in force. Returns it with the dials.
    pub(super) fn reconfigured(&mut self, configured: Arc<Config>) -> Arc<Config> {
        self.configured = configured;
        let is_dialed = self.dialed.iter().any(|dialed| *dialed != Dialed::default());
        if is_dialed {
            Arc::new(self.configured.dialed(&self.dialed))
        } else {
            Arc::clone(&self.configured)
        }
    }

    /// A configuration of other policies is in force, in which policies have the indexes that
    /// `index` returns. Returns it with the dials that are known. Those of new policies are
    /// fetched.
    pub(super) fn swapped(
        &mut self,
        configured: &Arc<Config>,
        index: impl Fn(usize) -> Option<usize>,
    ) -> Arc<Config> {
        self.dials = std::mem::take(&mut self.dials)
            .into_iter()
            .filter_map(|dial| match dial.policy {
                None => Some(dial),
                Some(policy) => Some(Timed { policy: Some(index(policy)?), ..dial }),
            })
            .collect();
        self.overridden = self.overridden.iter().filter_map(|policy| index(*policy)).collect();
        self.overridden.sort_unstable();
        let mut reported = vec![Counts::default(); configured.policies.len()];
        for (policy, counts) in self.reported.iter().enumerate() {
            let is_any = counts.iter().any(|count| *count > 0);
            let moved = if is_any { index(policy) } else { None };
            if let Some(slot) = moved.and_then(|policy| reported.get_mut(policy)) {
                *slot = *counts;
            }
        }
        self.reported = reported;
        self.turn = 0;
        self.dialed = vec![Dialed::default(); configured.policies.len()];
        self.dialed = (0..self.dialed.len()).map(|policy| self.dialed_of(policy)).collect();
        self.schedule.news();
        self.reconfigured(Arc::clone(configured))
    }

    /// A reply to another call carried this version.
    pub(super) fn hear(&mut self, version: u64, now: Monotonic) {
        if version >= self.version && version > 0 {
            self.confirmed = now;
        }
        if version > self.version.max(self.newest) {
            self.newest = version;
            self.schedule.news();
        }
    }

    /// Learns from a reply. Returns the configuration in force if it changed.
    fn learn(&mut self, reading: StoredChanges, now: Monotonic) -> Option<Config> {
        let StoredChanges { version, dials, overridden, ignored, document: _ } = reading;
        self.ignored = ignored;
        if self.is_lagging(version, now) {
            return None;
        }
        (self.version, self.confirmed) = (version, now);
        if version >= self.newest {
            self.schedule.no_news();
        }
        (self.dials, self.overridden) = (dials, overridden);
        self.apply(now)
    }

    /// Whether a reply with this version comes from a store that lags.
    fn is_lagging(&self, version: u64, now: Monotonic) -> bool {
        version < self.version && now.since(self.confirmed) < SETTLES
    }

    /// Reverts dials whose time is over. Returns the configuration in force if it changed.
    fn revert(&mut self, now: Monotonic) -> Option<Config> {
        if self.reverts_at.is_none_or(|at| at > now) { None } else { self.apply(now) }
    }

    fn apply(&mut self, now: Monotonic) -> Option<Config> {
        self.dials.retain(|dial| dial.until.is_none_or(|until| until > now));
        self.reverts_at = self.dials.iter().filter_map(|dial| dial.until).min();
        let dialed: Vec<Dialed> =
            (0..self.dialed.len()).map(|policy| self.dialed_of(policy)).collect();
        if dialed == self.dialed {
            return None;
        }
        self.dialed = dialed;
        Some(self.configured.dialed(&self.dialed))
    }

    /// The dial of a policy takes precedence over the one for all policies, field by field.
    fn dialed_of(&self, policy: usize) -> Dialed {
        let of = |policy| self.dials.iter().find(|dial| dial.policy == policy);
        let of = |policy| of(policy).map(|dial| dial.dialed.clone()).unwrap_or_default();
        let (own, all) = (of(Some(policy)), of(None));
        Dialed {
            mode: own.mode.or(all.mode),
            enforced_for: if own.mode.is_some() { own.enforced_for } else { all.enforced_for },
            quota: own.quota,
            on_failure: own.on_failure.or(all.on_failure),
            is_overridden: self.overridden.binary_search(&policy).is_ok(),
        }
    }
}

impl<W> Worker<W> {
    /// A request arrives: traffic may make a fetch due, and dials whose time is over revert.
    pub(super) fn traffic(&mut self, now: Monotonic) {
        self.overrides.schedule.traffic(now);
        self.revert_dials(now);
    }

    /// The fetch of dials that is due.
    pub(super) fn next_dials_fetch(&mut self, now: Monotonic) -> Option<OutgoingFetch> {
        let id = CallId(self.next_serial());
        let timeout = self.config.store.timeout.max(LEAST_TIMEOUT);
        let domain = self.config.domain.clone();
        let Telemetry { tally, refusals, let_through, .. } = &mut self.telemetry;
        let counts = tally.take_unreported();
        let ChangesInForce { configured, schedule, newest, reported, turn, .. } =
            &mut self.overrides;
        schedule.leaves(id, now + timeout + LOST_AFTER, now);
        schedule.reports(!tally.has_unreported());
        if configured.refused.is_some() {
            tally.count_refused_document();
        }
        if configured.store.reach == Reach::Nowhere {
            schedule.ended(id);
            return None;
        }
        *newest = 0;
        let worker = ReportingWorker { index: self.index, in_force_s: self.live.in_force_s(now) };
        let beyond = [refusals.take(), let_through.take()];
        let report = report::write(worker, configured, &counts, beyond, turn);
        *reported = counts;
        Some(OutgoingFetch { id, domain, report, timeout, has_digest: None, number: 0 })
    }

    /// Whether a fetch needs a tick to leave: while a policy is off, or the document was refused,
    /// requests may pass without a call.
    pub(super) fn fetch_needs_time(&self) -> bool {
        self.overrides.schedule.waits()
            && (self.config.refused.is_some()
                || self.config.policies.iter().any(|policy| policy.mode == Mode::Off))
    }

    /// Whether requests are unreported, so that a tick must make a fetch due without traffic.
    pub(super) fn report_needs_time(&self) -> bool {
        self.overrides.schedule.owes() && self.telemetry.tally.has_unreported()
    }

    /// The fetch of dials ended. Returns which document is published, if the store said so.
    pub(super) fn dials_fetch_ended(
        &mut self,
        end: &Result<&[u8], CallFault<'_>>,
        now: Monotonic,
    ) -> Option<DocumentVersion> {
        let reported = std::mem::take(&mut self.overrides.reported);
        let read = match end {
            Ok(body) => patch::read(body, &self.overrides.configured, now)
                .map_err(|why| CallFault::Malformed(Misread::Form(why))),
            Err(fault) => Err(fault.clone()),
        };
        match read {
            Ok(reading) => return self.learn_dials(reading, now),
            Err(CallFault::Refused { status: 404, .. }) => {
                if !std::mem::replace(&mut self.overrides.logged_lagging, true) {
                    self.telemetry.notices.no_dials();
                }
            }
            Err(fault) => {
                self.overrides.schedule.failed(now);
                self.telemetry.tally.restore(&reported);
                self.telemetry.count_call(CallOutcome::DialsFailed);
                self.telemetry.notices.fetch_failed(&fault, self.config.store.reach.token(), now);
            }
        }
        None
    }

    /// Time has passed: dials whose time is over revert, and requests that are unreported make a
    /// fetch due.
    pub(super) fn tick_dials(&mut self, now: Monotonic) {
        if self.report_needs_time() {
            self.overrides.schedule.unreported(now);
        }
        self.revert_dials(now);
    }

    fn learn_dials(&mut self, reading: StoredChanges, now: Monotonic) -> Option<DocumentVersion> {
        if let Some(ignored) =
            reading.ignored.text().filter(|_| reading.ignored != self.overrides.ignored)
        {
            self.telemetry.notices.dials_ignored(&ignored, self.config.store.reach.token(), now);
        }
        let document =
            reading.document.clone().filter(|_| !self.overrides.is_lagging(reading.version, now));
        if let Some(config) = self.overrides.learn(reading, now) {
            self.config = Arc::new(config);
        }
        document
    }

    fn revert_dials(&mut self, now: Monotonic) {
        if let Some(config) = self.overrides.revert(now) {
            self.config = Arc::new(config);
        }
    }
}
