//! Fetches: what a worker asks the store for while no request waits for it. One of dials carries
//! its report, and its answer names the published document. Another one fetches that document.

use std::time::Duration;

use quotagate_protocol::dials::{DOCUMENT_PATH, TELEMETRY_PATH};

use super::call::faults::CallFault;
use super::{CallId, Worker};
use crate::time::Monotonic;

/// A fetch of dials, or of the published document. Send it to the store as a `POST`, with the
/// report as the body.
#[derive(Debug)]
pub struct OutgoingFetch {
    /// Its id in [`Worker::call_ended`] and [`Worker::call_not_sent`].
    pub id: CallId,
    /// The domain whose dials it fetches.
    pub domain: Box<str>,
    /// The body, a [`Report`](quotagate_protocol::dials::Report) as JSON in at most
    /// [`MAX_REPORT`](quotagate_protocol::dials::MAX_REPORT) bytes; empty without one.
    pub report: Option<String>,
    /// How long to wait for the reply.
    pub timeout: Duration,
    /// If it fetches the published document: the digest of the document that the worker has.
    pub has_digest: Option<Box<str>>,
    /// And the number of the document that it fetches.
    pub number: u64,
}

impl OutgoingFetch {
    /// The path and the query.
    pub fn path(&self) -> String {
        match &self.has_digest {
            Some(digest) => {
                let Self { domain, number, .. } = self;
                format!("{DOCUMENT_PATH}?domain={domain}&digest={digest}&number={number}")
            }
            None => format!("{TELEMETRY_PATH}?domain={}", self.domain),
        }
    }
}

impl<W> Worker<W> {
    /// Whether [`next_fetch`](Self::next_fetch) may return a fetch.
    pub(crate) fn fetch_is_due(&self, now: Monotonic) -> bool {
        self.overrides.schedule.is_due(now) || self.live.is_due(now)
    }

    /// The fetch that is due, if any.
    pub fn next_fetch(&mut self, now: Monotonic) -> Option<OutgoingFetch> {
        if self.overrides.schedule.is_due(now) {
            self.next_dials_fetch(now)
        } else {
            self.next_document_fetch(now)
        }
    }

    /// A call ended. Learns from it if it is a fetch, else returns `false`.
    pub(super) fn fetch_ended(
        &mut self,
        id: CallId,
        end: &Result<&[u8], CallFault<'_>>,
        now: Monotonic,
    ) -> bool {
        if !self.overrides.schedule.ended(id) {
            return self.document_fetch_ended(id, end, now);
        }
        // One that cannot read what is published now is asked again soon.
        if matches!(end, Ok(_) | Err(CallFault::Refused { status: 400..=499, .. })) {
            self.live.informed();
        }
        if let Some(published) = self.dials_fetch_ended(end, now) {
            self.hear_document(published, now);
        }
        true
    }

    /// Time has passed: gives up a fetch that the host forgot, and makes the next one due.
    pub(super) fn tick_fetches(&mut self, now: Monotonic) {
        let lost = [self.overrides.schedule.lost(now), self.live.lost(now)];
        for id in lost.into_iter().flatten() {
            self.fetch_ended(id, &Err(CallFault::TimedOut), now);
        }
        if self.live.is_live() {
            // Without traffic, too.
            self.overrides.schedule.poll(self.live.is_uninformed(), now);
        }
        self.tick_dials(now);
    }
}
