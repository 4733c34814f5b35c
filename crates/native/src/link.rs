//! The way from a shard to the store: the store's library in this process, or Envoy's callouts to a
//! store beside it.

mod callouts;
mod library;

use std::sync::Arc;

use quotagate_quota::driver::Outgoing;

pub use callouts::{Callouts, Closed};
pub use library::{Library, check};

use crate::inbox::Recipient;

/// How calls of a configuration reach the store.
#[derive(Clone)]
pub enum Link {
    /// `store.redis`.
    Library(Arc<Library>),
    /// `store.cluster`.
    Callouts(Arc<Callouts>),
    /// Nowhere: Envoy only validates its configuration.
    Nowhere,
}

impl Link {
    /// Whether calls reach the store.
    pub fn is_reachable(&self) -> bool {
        match self {
            Self::Callouts(callouts) => callouts.is_reachable(),
            Self::Library(_) | Self::Nowhere => true,
        }
    }

    /// Sends a message, whose end is reported to `sender`.
    pub fn send(&self, sender: Arc<dyn Recipient>, message: Outgoing) {
        match (self, message) {
            (Self::Library(library), Outgoing::Call(call)) => library.call(sender, call),
            (Self::Library(library), Outgoing::Fetch(fetch)) => library.fetch(sender, fetch),
            (Self::Callouts(callouts), message) => callouts.send(&sender, message),
            (Self::Nowhere, _) => {}
        }
    }
}
