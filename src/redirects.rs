//! How a redirected request is found again: by the id of its first stream, in filter
//! state that lives as long as the request.

use crate::host;

/// The filter state of the requests of one root that Envoy redirects.
pub struct Redirects {
    /// Its name. It differs by root, since another plugin may serve the same request.
    name: String,
}

impl Redirects {
    /// Declares it. Call it in a callback of the root; `random` distinguishes roots.
    pub fn new(random: u64) -> Self {
        let name = format!("quotagate.redirected.{random:016x}");
        host::declare_for_request(&name);
        Self { name }
    }

    /// The active stream `id` ends with a redirect.
    pub fn keep(&self, id: u32) {
        host::set_property(&self.name, id.to_string().as_bytes());
    }

    /// The id of the first stream of the active stream's request, if Envoy redirected it.
    pub fn first(&self) -> Option<u32> {
        std::str::from_utf8(&host::property(&[&self.name])?).ok()?.parse().ok()
    }
}
