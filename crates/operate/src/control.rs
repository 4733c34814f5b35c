//! What operators change and read in the backend.

use std::ops::Deref;
use std::sync::Arc;

use quotagate_store::control::ControlStore;
use quotagate_store::store::{Store, StoreError};

/// The control store of the backend, which every part of [`Operate`](crate::Operate) holds.
#[derive(Clone)]
pub struct ControlHandle(Arc<dyn Store>);

impl ControlHandle {
    /// The control store of this backend.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }

    /// Whether only a part of the backend is away: other keys can still be read.
    pub fn is_partial(&self, error: &StoreError) -> bool {
        error.is_outage() && self.0.serves_others()
    }

    /// Whether the backend can count every request.
    pub fn is_ready(&self) -> bool {
        self.0.health().faults.is_empty()
    }
}

impl Deref for ControlHandle {
    type Target = dyn ControlStore;

    fn deref(&self) -> &Self::Target {
        self.0.control()
    }
}
