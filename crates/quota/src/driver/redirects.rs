//! Internal redirects: Envoy ends a stream because of the upstream's answer, and routes its request
//! again as another stream.
//!
//! The filter keeps the admission of the first stream for the second, so that each policy counts
//! the request once. The host finds the first stream again by an id of type `K`.

use std::collections::VecDeque;
use std::time::Duration;

use crate::decision::Admission;
use crate::time::Monotonic;

/// Most redirected requests that have not come back. Beyond that, the oldest is abandoned: each
/// policy decides on its units as for a client that left.
const MAX: usize = 64;
/// How long a redirected request with slots is expected back. Envoy makes its second stream at
/// once, and filters before this one may take some time. A later pass only counts anew.
const EXPECTED: Duration = Duration::from_secs(2);

/// The redirected requests of one worker that have not come back.
#[derive(Debug)]
pub(super) struct Redirects<K>(VecDeque<(K, Admission, Monotonic)>);

impl<K> Default for Redirects<K> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K: PartialEq> Redirects<K> {
    /// Keeps the admission of a stream that ends with a redirect. Returns the oldest admission if
    /// there was no room: [abandon](crate::exchange::abandon) it.
    #[must_use]
    pub(super) fn keep(
        &mut self,
        id: K,
        admission: Admission,
        now: Monotonic,
    ) -> Option<Admission> {
        let oldest = if self.0.len() < MAX { None } else { self.0.pop_front() };
        self.0.push_back((id, admission, now));
        oldest.map(|(_, admission, _)| admission)
    }

    /// Takes the admission of the request that has this id.
    pub(super) fn take(&mut self, id: &K) -> Option<Admission> {
        let index = self.0.iter().position(|(known, ..)| known == id)?;
        self.0.remove(index).map(|(_, admission, _)| admission)
    }

    /// Takes the admission of a request that has not come back for so long that it must not keep
    /// its slots.
    pub(super) fn take_late(&mut self, now: Monotonic) -> Option<Admission> {
        let is_late = |(_, admission, since): &(K, Admission, Monotonic)| {
            !admission.slots.is_empty() && *since + EXPECTED <= now
        };
        let index = self.0.iter().position(is_late)?;
        self.0.remove(index).map(|(_, admission, _)| admission)
    }

    /// Whether no request is expected back.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::HeldSlot;

    #[test]
    fn redirected_request_that_does_not_come_back_within_two_seconds_is_late_if_it_holds_slots() {
        let at = |ms| Monotonic::new(Duration::from_millis(ms));
        let mut admission = Admission::default();
        let key = "d:a:{x}".into();
        admission.slots.push(HeldSlot { policy: 0, key, units: 1, since: at(0), worker: 1 });
        let mut redirects = Redirects::default();
        assert!(redirects.keep(1, Admission::default(), at(0)).is_none());
        assert!(redirects.keep(2, admission.clone(), at(0)).is_none());
        assert_eq!(redirects.take_late(at(1_999)), None);
        assert_eq!(redirects.take_late(at(2_000)), Some(admission));
        assert_eq!(redirects.take_late(at(60_000)), None, "units of quotas block nobody");
    }
}
