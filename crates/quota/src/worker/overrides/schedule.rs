//! When dials are fetched: with the first traffic, with traffic after [`EVERY`], and when a reply of the store tells of a
//! newer version; once more after the last traffic where that is not reported yet, and then not until there is some. One fetch is under way at most, and between two [`PAUSE`] passes, after a failure [`RETRY`].

use std::time::Duration;

use super::super::CallId;
use crate::time::Monotonic;

/// A worker with traffic fetches so often.
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// Between the beginnings of two fetches, however often the store tells of news.
pub(super) const PAUSE: Duration = Duration::from_millis(500);
/// The same after one that failed.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// When the next fetch leaves, and the one that is under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Schedule {
    /// One is wanted, and not before this moment.
    wanted: Option<Monotonic>,
    /// There is traffic that none has told of.
    owes: bool,
    /// From when on traffic wants one.
    next: Monotonic,
    /// Until when none may leave.
    soonest: Monotonic,
    /// Which is under way, and when it is given up.
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

    /// Something is unreported. Of traffic that has been told of in vain nobody is told again without more.
    pub(super) fn unreported(&mut self, now: Monotonic) {
        if self.owes && self.next <= now && self.wanted.is_none() {
            self.wanted = Some(now);
        }
    }

    /// What leaves reports everything, or not.
    pub(super) const fn reports(&mut self, everything: bool) {
        self.owes = !everything;
    }

    /// Whether what is unreported will be told once its time has come.
    pub(super) const fn owes(&self) -> bool {
        self.owes
    }

    /// The store has told of a newer version.
    pub(super) fn news(&mut self) {
        self.wanted.get_or_insert(self.soonest);
    }

    /// What was told of has been fetched.
    pub(super) fn no_news(&mut self) {
        self.wanted = None;
    }

    /// Whether one waits to leave, now or a little later.
    pub(super) fn waits(&self) -> bool {
        self.wanted.is_some() && self.under_way.is_none()
    }

    /// Whether one is to leave now.
    pub(super) fn is_due(&self, now: Monotonic) -> bool {
        self.waits() && self.wanted.is_some_and(|at| at <= now && self.soonest <= now)
    }

    /// One leaves, and is given up at `lost_at`.
    pub(super) fn leaves(&mut self, id: CallId, lost_at: Monotonic, now: Monotonic) {
        self.wanted = None;
        self.next = now + EVERY;
        self.soonest = now + PAUSE;
        self.under_way = Some((id, lost_at));
    }

    /// Whether a call that has ended is the one under way, which it then is no more.
    pub(super) fn ended(&mut self, id: CallId) -> bool {
        self.under_way.take_if(|(known, _)| *known == id).is_some()
    }

    /// It has ended in vain.
    pub(super) fn failed(&mut self, now: Monotonic) {
        self.soonest = now + RETRY;
    }

    /// The one under way, if nothing will be heard of it any more.
    pub(super) fn lost(&self, now: Monotonic) -> Option<CallId> {
        self.under_way.filter(|(_, lost_at)| *lost_at <= now).map(|(id, _)| id)
    }
}
