//! Internal redirects: Envoy ends a stream because of the upstream's answer, and routes its request
//! again as another stream.
//!
//! What counted the request in its first pass waits for the second in Envoy's filter state, where
//! Envoy keeps it exactly as long as the request, and where no client can write.

use std::sync::{Mutex, PoisonError};

use quotagate_quota::decision::Admission;

type Ended = Box<dyn FnOnce(Option<Admission>) + Send + Sync>;

/// The admission of a request between two of its passes.
pub struct Redirect {
    admission: Mutex<Option<Admission>>,
    ended: Option<Ended>,
}

impl Redirect {
    /// A request's first pass ends with a redirect. `ended` runs when Envoy has destroyed the
    /// request, with the admission that no pass has taken.
    pub fn new(
        admission: Admission,
        ended: impl FnOnce(Option<Admission>) + Send + Sync + 'static,
    ) -> Self {
        Self { admission: Mutex::new(Some(admission)), ended: Some(Box::new(ended)) }
    }

    /// A later pass ends with a redirect, too.
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
        if let Some(ended) = self.ended.take() {
            ended(self.take());
        }
    }
}
