//! Internal redirects: Envoy ends the stream of a request, and serves the same request again with another stream.
//!
//! What the first stream was counted by is kept for the second one, so that each policy counts the request once. Envoy
//! carries a mark from one to the other, in filter state that lives as long as the request: the id of the first stream.

use std::cell::RefCell;
use std::collections::VecDeque;

use quotagate_quota::decision::Admission;

use crate::host;

/// Most requests that were redirected and have not come back. What makes room is counted again.
const MAX: usize = 64;

/// The requests of one root that were redirected and have not come back.
pub struct Redirects {
    /// The name of the mark. Each root has its own, since another plugin may serve the same request.
    mark: String,
    kept: RefCell<VecDeque<(u32, Admission)>>,
}

impl Redirects {
    /// None yet. In a callback of the root; `random` tells it from others.
    pub fn new(random: u64) -> Self {
        let mark = format!("quotagate.redirected.{random:016x}");
        host::declare_for_request(&mark);
        Self { mark, kept: RefCell::default() }
    }

    /// Keeps what counted the active stream `id`, which ends for a redirect. Returns the oldest entry where there was no
    /// room: refund its units.
    pub fn keep(&self, id: u32, admission: Admission) -> Option<Admission> {
        let mut kept = self.kept.borrow_mut();
        let oldest = if kept.len() < MAX { None } else { kept.pop_front() };
        kept.push_back((id, admission));
        host::set_property(&self.mark, id.to_string().as_bytes());
        oldest.map(|(_, admission)| admission)
    }

    /// What the request of the active stream was counted by before it was redirected.
    pub fn take(&self) -> Option<Admission> {
        let mut kept = self.kept.borrow_mut();
        if kept.is_empty() {
            return None;
        }
        let mark = host::property(&[&self.mark])?;
        let id: u32 = std::str::from_utf8(&mark).ok()?.parse().ok()?;
        let index = kept.iter().position(|(stream, _)| *stream == id)?;
        kept.remove(index).map(|(_, admission)| admission)
    }
}
