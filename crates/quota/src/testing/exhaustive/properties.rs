//! What must hold in every state.

use std::collections::BTreeMap;

use super::{SearchSetup, SearchState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Property {
    /// Invariant 1: no window admits more than its quota, or the larger of its quotas.
    NeverOver,
    /// Invariant 3: nothing is let through that the store has not counted.
    NothingUncounted,
    /// Invariant 3: once all is quiet and no call failed, the store has counted what was let
    /// through, or its real cost, and no more.
    NothingPaidTwice,
    /// Invariant 3: no refund takes units that were granted to another request.
    NothingReturnedTwice,
    /// Invariant 2: no request waits past the tick that follows its deadline.
    NothingStuck,
    /// Held units are spent in their own window.
    InItsWindow,
}

impl Property {
    pub(super) const ALL: [Self; 6] = [
        Self::NeverOver,
        Self::NothingUncounted,
        Self::NothingPaidTwice,
        Self::NothingReturnedTwice,
        Self::NothingStuck,
        Self::InItsWindow,
    ];
}

impl SearchSetup {
    pub(super) fn holds(&self, property: Property, state: &SearchState) -> bool {
        if state.wrong == Some(property) {
            return false;
        }
        match property {
            Property::NeverOver => {
                state.admitted.iter().all(|((key, _), units)| *units <= self.quota(key))
            }
            Property::NothingUncounted => {
                state.admitted.iter().all(|(counter, units)| *units <= state.store.used(counter))
            }
            Property::NothingPaidTwice => {
                state.faults < self.faults || !is_quiet(state) || self.is_all_accounted_for(state)
            }
            Property::NothingReturnedTwice | Property::NothingStuck | Property::InItsWindow => true,
        }
    }

    fn quota(&self, key: &str) -> u64 {
        let named = |name: &str| key.split(':').nth(1) == Some(name);
        let published = Some(&self.published).filter(|_| self.swaps > 0);
        let documents = [&self.config].into_iter().chain(published);
        let policies = documents.flat_map(|document| &document.policies);
        policies.filter(|policy| named(&policy.name)).map(|policy| policy.quota).max().unwrap()
    }

    /// Checks only the current windows: refunds of earlier ones come too late.
    fn is_all_accounted_for(&self, state: &SearchState) -> bool {
        (0..self.config.policies.len()).all(|index| {
            let counter = (self.counter(index).key, self.current(state.step, index));
            let units = |of: &BTreeMap<_, u64>| of.get(&counter).copied().unwrap_or_default();
            units(&state.admitted) + units(&state.charged) == state.store.used(&counter)
        })
    }
}

/// Whether nothing is on its way, waits or is held.
pub(super) fn is_quiet(state: &SearchState) -> bool {
    state
        .nodes
        .iter()
        .all(|node| node.flights.is_empty() && node.running.is_empty() && node.worker.is_idle())
}
