//! How a redirected request is found again: by the id of its first stream, in filter
//! state that lives as long as the request.

use std::cell::RefCell;

use quotagate_quota::decision::Admission;
use quotagate_quota::redirects;

use crate::host;

/// The redirected requests of one root that have not come back.
pub struct Redirects {
    /// The name of the filter state that has the id. It differs by root, since another plugin may
    /// serve the same request.
    name: String,
    kept: RefCell<redirects::Redirects<u32>>,
}

impl Redirects {
    /// Nothing kept yet. Call it in a callback of the root; `random` distinguishes roots.
    pub fn new(random: u64) -> Self {
        let name = format!("quotagate.redirected.{random:016x}");
        host::declare_for_request(&name);
        Self { name, kept: RefCell::default() }
    }

    /// Keeps the admission of the active stream `id`, which ends with a redirect. Returns one to
    /// abandon, if there was no room.
    pub fn keep(&self, id: u32, admission: Admission) -> Option<Admission> {
        host::set_property(&self.name, id.to_string().as_bytes());
        self.kept.borrow_mut().keep(id, admission)
    }

    /// Takes the admission of the active stream's request from before its redirect.
    pub fn take(&self) -> Option<Admission> {
        let mut kept = self.kept.borrow_mut();
        if kept.is_empty() {
            return None;
        }
        let id = host::property(&[&self.name])?;
        kept.take(&std::str::from_utf8(&id).ok()?.parse().ok()?)
    }
}
