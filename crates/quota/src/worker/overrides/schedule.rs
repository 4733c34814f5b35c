//! When a worker fetches dials: with the first traffic, then once per [`EVERY`] while there is
//! traffic, and when a reply carries a newer version. After the last traffic it fetches once more
//! if requests are unreported. At most one fetch is under way. A fetch leaves at least [`PAUSE`]
//! after the one before, and at least [`RETRY`] after a failure.

use std::time::Duration;

use super::super::CallId;
use crate::time::Monotonic;

/// The time between fetches while there is traffic.
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// The shortest time between the starts of two fetches.
pub(super) const PAUSE: Duration = Duration::from_millis(500);
/// The shortest time from the failure of a fetch to the next fetch.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// The next fetch, and the one under way.
#[derive(Clone, Debug, Default)]
pub(in crate::worker) struct Schedule {
    /// The moment from which a fetch is wanted.
    wanted: Option<Monotonic>,
    /// There is traffic that no fetch has reported yet.
    owes: bool,
    /// The moment from which traffic wants a fetch.
    next: Monotonic,
    /// No fetch leaves earlier.
    soonest: Monotonic,
    /// The fetch under way, and when the worker gives it up.
    under_way: Option<(CallId, Monotonic)>,
}

impl Schedule {
    /// A request arrives.
    pub(super) fn traffic(&mut self, now: Monotonic) {
        self.owes = true;
        if self.next <= now && self.wanted.is_none() {
            self.wanted = Some(now);
        }
    }

    /// Requests are unreported. A report that failed is not repeated without further traffic.
    pub(super) fn unreported(&mut self, now: Monotonic) {
        if self.owes && self.next <= now && self.wanted.is_none() {
            self.wanted = Some(now);
        }
    }

    /// Time has passed, and fetches go on without traffic. `soon`: they do not wait for their turn.
    pub(in crate::worker) fn poll(&mut self, soon: bool, now: Monotonic) {
        if (soon || self.next <= now) && self.under_way.is_none() {
            self.wanted.get_or_insert(now);
        }
    }

    /// A fetch leaves, and reports everything or only a part.
    pub(super) const fn reports(&mut self, everything: bool) {
        self.owes = !everything;
    }

    /// Whether a fetch will report what is unreported.
    pub(super) const fn owes(&self) -> bool {
        self.owes
    }

    /// A reply carried a newer version.
    pub(super) fn news(&mut self) {
        self.wanted.get_or_insert(self.soonest);
    }

    /// The newest version has been fetched.
    pub(super) fn no_news(&mut self) {
        self.wanted = None;
    }

    /// Whether a fetch waits to leave.
    pub(super) fn waits(&self) -> bool {
        self.wanted.is_some() && self.under_way.is_none()
    }

    /// Whether a fetch must leave now.
    pub(in crate::worker) fn is_due(&self, now: Monotonic) -> bool {
        self.waits() && self.wanted.is_some_and(|at| at <= now && self.soonest <= now)
    }

    /// A fetch leaves. The worker gives it up at `lost_at`.
    pub(super) fn leaves(&mut self, id: CallId, lost_at: Monotonic, now: Monotonic) {
        self.wanted = None;
        self.next = now + EVERY;
        self.soonest = now + PAUSE;
        self.under_way = Some((id, lost_at));
    }

    /// A call ended. Returns whether it was the fetch under way.
    pub(in crate::worker) fn ended(&mut self, id: CallId) -> bool {
        self.under_way.take_if(|(known, _)| *known == id).is_some()
    }

    /// The fetch failed.
    pub(super) fn failed(&mut self, now: Monotonic) {
        self.soonest = now + RETRY;
    }

    /// The fetch under way, if the host should have reported its end by now.
    pub(in crate::worker) fn lost(&self, now: Monotonic) -> Option<CallId> {
        self.under_way.filter(|(_, lost_at)| *lost_at <= now).map(|(id, _)| id)
    }
}
