//! Internal redirects: Envoy ends the stream of a request, and serves the same request again with
//! another stream.
//!
//! The filter keeps the admission of the first stream for the second, so that each policy counts
//! the request once. A mark with the id of the first stream travels in filter state that lives as
//! long as the request.

use std::cell::RefCell;
use std::collections::VecDeque;

use quotagate_quota::decision::Admission;

use crate::host;

/// Most redirected requests that have not come back. Beyond that, the oldest is dropped and counts
/// again.
const MAX: usize = 64;

/// The redirected requests of one root that have not come back.
pub struct Redirects {
    /// The name of the mark. It differs by root, since another plugin may serve the same request.
    mark: String,
    kept: RefCell<VecDeque<(u32, Admission)>>,
}

impl Redirects {
    /// Nothing kept yet. Call it in a callback of the root; `random` distinguishes roots.
    pub fn new(random: u64) -> Self {
        let mark = format!("quotagate.redirected.{random:016x}");
        host::declare_for_request(&mark);
        Self { mark, kept: RefCell::default() }
    }

    /// Keeps the admission of the active stream `id`, which ends with a redirect. Returns the
    /// oldest admission if there was no room: refund its units.
    pub fn keep(&self, id: u32, admission: Admission) -> Option<Admission> {
        let mut kept = self.kept.borrow_mut();
        let oldest = if kept.len() < MAX { None } else { kept.pop_front() };
        kept.push_back((id, admission));
        host::set_property(&self.mark, id.to_string().as_bytes());
        oldest.map(|(_, admission)| admission)
    }

    /// Takes the admission of the active stream's request from before its redirect.
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
