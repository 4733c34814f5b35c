//! What is counted of decisions until somebody takes it, by policy and outcome.

use std::collections::BTreeMap;

use crate::decision::Outcome;

/// Counts of outcomes; as many as there are policies and outcomes at most.
#[derive(Debug, Default)]
pub(super) struct Tally(BTreeMap<(usize, Outcome), u64>);

impl Tally {
    /// One more.
    pub(super) fn count(&mut self, policy: usize, outcome: Outcome) {
        let counted = self.0.entry((policy, outcome)).or_default();
        *counted = counted.saturating_add(1);
    }

    /// All of them, which then begin at nothing.
    pub(super) fn take(&mut self) -> Vec<(usize, Outcome, u64)> {
        std::mem::take(&mut self.0).into_iter().map(|((policy, outcome), n)| (policy, outcome, n)).collect()
    }
}
