//! Internal redirects: Envoy ends a stream because of the upstream's answer, and routes its request
//! again as another stream.
//!
//! What counted the request in its first pass waits for the second in Envoy's filter state, where
//! Envoy keeps it exactly as long as the request, and where no client can write.

use std::sync::{Arc, Mutex, PoisonError};

use quotagate_quota::decision::Admission;

/// Who counts redirected requests: a shard.
pub trait RedirectOwner: Send + Sync {
    /// Envoy has destroyed a [`Redirect`]. `unclaimed`: the admission in it, which no pass has
    /// taken.
    fn redirect_ends(self: Arc<Self>, unclaimed: Option<Admission>);
}

/// The admission of a request between two of its passes. If it is dropped with one, no pass has
/// taken it.
pub struct Redirect {
    owner: Arc<dyn RedirectOwner>,
    admission: Mutex<Option<Admission>>,
}

impl Redirect {
    /// Nothing kept yet.
    pub fn new(owner: Arc<dyn RedirectOwner>) -> Self {
        Self { owner, admission: Mutex::default() }
    }

    /// A pass ends with a redirect.
    pub fn keep(&self, admission: Admission) {
        *self.admission.lock().unwrap_or_else(PoisonError::into_inner) = Some(admission);
    }

    /// The next pass begins.
    pub fn take(&self) -> Option<Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Redirect {
    fn drop(&mut self) {
        Arc::clone(&self.owner).redirect_ends(self.take());
    }
}
