//! Internal redirects: Envoy ends a stream because of the upstream's answer, and routes its request
//! again as another stream.
//!
//! What counted the request in its first pass waits for the second in Envoy's filter state, where
//! Envoy keeps it exactly as long as the request, and where no client can write.

use std::sync::{Arc, Mutex, PoisonError};

use quotagate_quota::decision::Admission;

use crate::shard::Shard;

/// The admission of a request between two of its passes. If it is dropped with one, no pass has
/// taken it.
pub struct Redirect {
    shard: Arc<Shard>,
    admission: Mutex<Option<Admission>>,
}

impl Redirect {
    /// Nothing kept yet.
    pub fn new(shard: &Arc<Shard>) -> Self {
        shard.redirect_begins();
        Self { shard: Arc::clone(shard), admission: Mutex::default() }
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
        self.shard.redirect_ends();
        if let Some(admission) = self.take() {
            self.shard.work(|driver, now| driver.abandon(admission, now));
        }
    }
}
