//! The dials of a worker: what operators have turned, and for which policies the store knows overrides.
//!
//! The store is asked when `schedule` says so; nobody waits for that. Until the first reply the configuration holds, and
//! after a failure what was known. What a reply says is read by `patch`, leniently. A dial with a time reverts by itself,
//! counted from receipt.
//!
//! A store that tells of an older version than another one did is not believed for [`SETTLES`]: of several stores one may
//! be behind. After that it is, for a store in memory that was started anew begins again.

mod patch;
mod schedule;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::time::Duration;

use super::call::faults::{CallFault, CallOutcome, Misread};
use super::call::flight::LOST_AFTER;
use super::telemetry::report;
use super::telemetry::tally::Counts;
use super::{CallId, Worker};
use crate::config::{Config, Turned};
use crate::protocol::Mode;
use crate::protocol::dials::TELEMETRY_PATH;
use crate::time::Monotonic;
use patch::{Ignored, Reading, Timed};
use schedule::Schedule;

/// A fetch may take so long at least, whatever `store.timeout` is: nobody waits for it.
const LEAST_TIMEOUT: Duration = Duration::from_secs(1);
/// So long after a version was last heard of an older one is that of a store that is behind.
const SETTLES: Duration = Duration::from_secs(10);

/// What is turned, and when to ask again.
#[derive(Clone, Debug)]
pub(super) struct Dials {
    configured: Rc<Config>,
    dials: Vec<Timed>,
    overridden: Vec<usize>,
    /// Of each policy, by its place, as it is in force.
    turned: Vec<Turned>,
    /// When the first dial reverts.
    reverts_at: Option<Monotonic>,
    /// The version in force, and when it or a newer one was last heard of.
    version: u64,
    confirmed: Monotonic,
    /// The newest version that replies to other calls have told of since the last fetch left.
    newest: u64,
    schedule: Schedule,
    /// What the fetch that is under way tells of requests.
    reported: Vec<Counts>,
    /// The policy that says first in the next report what it counts by.
    turn: usize,
    /// What was left out of the last reply: it is told once.
    ignored: Ignored,
    /// That the store knows no dials is told once.
    told_old: bool,
}

/// A fetch to be sent to the store: a `POST` whose body is the report.
#[derive(Debug)]
pub struct OutgoingFetch {
    /// To tell its outcome by, as of a call.
    pub id: CallId,
    /// Path and query.
    pub path: String,
    /// The body, a [`Report`](crate::protocol::dials::Report) as JSON in at most
    /// [`MAX_REPORT`](crate::protocol::dials::MAX_REPORT) bytes; empty without one.
    pub report: Option<String>,
    /// The longest to wait for the reply.
    pub timeout: Duration,
}

impl Dials {
    /// Nothing is turned.
    pub(super) fn new(configured: Rc<Config>) -> Self {
        Self {
            turned: vec![Turned::default(); configured.policies.len()],
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
            told_old: false,
        }
    }

    /// A reply to another call told this version.
    pub(super) fn hear(&mut self, version: u64, now: Monotonic) {
        if version >= self.version && version > 0 {
            self.confirmed = now;
        }
        if version > self.version.max(self.newest) {
            self.newest = version;
            self.schedule.news();
        }
    }

    /// The configuration that is in force from now on, where that is another one.
    fn learn(&mut self, reading: Reading, now: Monotonic) -> Option<Config> {
        let Reading { version, dials, overridden, ignored } = reading;
        self.ignored = ignored;
        if version < self.version && now.since(self.confirmed) < SETTLES {
            return None;
        }
        (self.version, self.confirmed) = (version, now);
        if version >= self.newest {
            self.schedule.no_news();
        }
        (self.dials, self.overridden) = (dials, overridden);
        self.apply(now)
    }

    /// The same where a dial has reverted.
    fn revert(&mut self, now: Monotonic) -> Option<Config> {
        if self.reverts_at.is_none_or(|at| at > now) { None } else { self.apply(now) }
    }

    fn apply(&mut self, now: Monotonic) -> Option<Config> {
        self.dials.retain(|dial| dial.until.is_none_or(|until| until > now));
        self.reverts_at = self.dials.iter().filter_map(|dial| dial.until).min();
        let turned: Vec<Turned> = (0..self.turned.len()).map(|place| self.turned_of(place)).collect();
        if turned == self.turned {
            return None;
        }
        self.turned = turned;
        Some(self.configured.dialed(&self.turned))
    }

    /// Of a policy its own dial comes before the one for all, field by field.
    fn turned_of(&self, place: usize) -> Turned {
        let of = |policy| self.dials.iter().find(|dial| dial.policy == policy).map(|dial| dial.turned);
        let (own, all) = (of(Some(place)).unwrap_or_default(), of(None).unwrap_or_default());
        Turned {
            mode: own.mode.or(all.mode),
            quota: own.quota,
            on_failure: own.on_failure.or(all.on_failure),
            is_overridden: self.overridden.binary_search(&place).is_ok(),
        }
    }
}

impl<W> Worker<W> {
    /// A request arrives: the configuration that it is to be evaluated by. To be called before [`Worker::submit`], and
    /// for requests too that nothing counts; a fetch may be due afterwards.
    pub fn arrives(&mut self, now: Monotonic) -> &Rc<Config> {
        self.dials.schedule.traffic(now);
        self.revert_dials(now);
        &self.config
    }

    /// The configuration in force.
    pub fn config(&self) -> &Rc<Config> {
        &self.config
    }

    /// The fetch of dials that is due, if one is.
    pub fn next_fetch(&mut self, now: Monotonic) -> Option<OutgoingFetch> {
        if !self.dials.schedule.is_due(now) {
            return None;
        }
        self.serial += 1;
        let id = CallId(self.serial);
        let timeout = self.config.store.timeout.max(LEAST_TIMEOUT);
        self.dials.schedule.leaves(id, now + timeout + LOST_AFTER, now);
        self.dials.newest = 0;
        let path = format!("{TELEMETRY_PATH}?domain={}", self.config.domain);
        let counts = self.tally.take_unreported();
        self.dials.schedule.reports(!self.tally.has_unreported());
        let Dials { configured, turn, .. } = &mut self.dials;
        let report = report::write(configured, &counts, self.refusals.take(), turn);
        self.dials.reported = counts;
        Some(OutgoingFetch { id, path, report, timeout })
    }

    /// Whether a fetch is due that nothing else may let leave: with a policy that is off, requests may pass uncounted.
    pub(super) fn fetch_needs_time(&self) -> bool {
        self.dials.schedule.waits() && self.config.policies.iter().any(|policy| policy.mode == Mode::Off)
    }

    /// Whether traffic is unreported, which the next fetch will tell of though nobody arrives any more.
    pub(super) fn report_needs_time(&self) -> bool {
        self.dials.schedule.owes() && self.tally.has_unreported()
    }

    /// Takes note of the end of a fetch; `false` if that was another call.
    pub(super) fn fetch_ended(
        &mut self,
        id: CallId,
        end: &Result<&[u8], CallFault<'_>>,
        now: Monotonic,
    ) -> bool {
        if !self.dials.schedule.ended(id) {
            return false;
        }
        let reported = std::mem::take(&mut self.dials.reported);
        let read = match end {
            Ok(body) => patch::read(body, &self.dials.configured, now)
                .map_err(|why| CallFault::Malformed(Misread::Form(why))),
            Err(fault) => Err(fault.clone()),
        };
        match read {
            Ok(reading) => self.dials_are(reading, now),
            Err(CallFault::Refused { status: 404, .. }) => {
                if !std::mem::replace(&mut self.dials.told_old, true) {
                    self.notices.no_dials();
                }
            }
            Err(fault) => {
                self.dials.schedule.failed(now);
                self.tally.give_back(&reported);
                self.tally.count_call(CallOutcome::DialsFailed);
                self.notices.fetch_failed(&fault, self.config.store.token.as_deref(), now);
            }
        }
        true
    }

    /// Time has passed.
    pub(super) fn tick_dials(&mut self, now: Monotonic) {
        if let Some(id) = self.dials.schedule.lost(now) {
            self.fetch_ended(id, &Err(CallFault::TimedOut), now);
        }
        if self.report_needs_time() {
            self.dials.schedule.unreported(now);
        }
        self.revert_dials(now);
    }

    fn dials_are(&mut self, reading: Reading, now: Monotonic) {
        if let Some(ignored) = reading.ignored.text().filter(|_| reading.ignored != self.dials.ignored) {
            self.notices.dials_ignored(&ignored, self.config.store.token.as_deref(), now);
        }
        if let Some(config) = self.dials.learn(reading, now) {
            self.config = Rc::new(config);
        }
    }

    fn revert_dials(&mut self, now: Monotonic) {
        if let Some(config) = self.dials.revert(now) {
            self.config = Rc::new(config);
        }
    }
}
