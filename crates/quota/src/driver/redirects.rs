//! Internal redirects: Envoy ends a stream because of the upstream's answer, and routes its request
//! again as another stream.
//!
//! The filter keeps the admission of the first stream for the second, so that each policy counts
//! the request once. The host finds the first stream again by an id of type `K`.

use std::collections::VecDeque;

use crate::decision::Admission;

/// Most redirected requests that have not come back. Beyond that, the oldest is abandoned: each
/// policy decides on its units as for a client that left.
const MAX: usize = 64;

/// The redirected requests of one worker that have not come back.
#[derive(Debug)]
pub(super) struct Redirects<K>(VecDeque<(K, Admission)>);

impl<K> Default for Redirects<K> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K: PartialEq> Redirects<K> {
    /// Keeps the admission of a stream that ends with a redirect. Returns the oldest admission if
    /// there was no room: [abandon](crate::exchange::abandon) it.
    #[must_use]
    pub(super) fn keep(&mut self, id: K, admission: Admission) -> Option<Admission> {
        let oldest = if self.0.len() < MAX { None } else { self.0.pop_front() };
        self.0.push_back((id, admission));
        oldest.map(|(_, admission)| admission)
    }

    /// Takes the admission of the request that has this id.
    pub(super) fn take(&mut self, id: &K) -> Option<Admission> {
        let index = self.0.iter().position(|(known, _)| known == id)?;
        self.0.remove(index).map(|(_, admission)| admission)
    }

    /// Whether no request is expected back.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
