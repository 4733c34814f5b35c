//! What is counted of decisions until somebody takes it, by policy and outcome.

use crate::decision::Outcome;

/// Counts of outcomes; as many as there are policies and outcomes.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    counts: Vec<[u64; Outcome::ALL.len()]>,
    is_empty: bool,
}

impl Tally {
    /// Nothing counted of `policies` policies.
    pub(super) fn new(policies: usize) -> Self {
        Self { counts: vec![[0; Outcome::ALL.len()]; policies], is_empty: true }
    }

    /// One more.
    pub(super) fn count(&mut self, policy: usize, outcome: Outcome) {
        let counted = self.counts.get_mut(policy).and_then(|counts| counts.get_mut(outcome as usize));
        if let Some(counted) = counted {
            *counted = counted.saturating_add(1);
            self.is_empty = false;
        }
    }

    /// Whether nothing waits to be taken.
    pub(super) const fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// All of them, which then begin at nothing.
    pub(super) fn take(&mut self) -> Vec<(usize, Outcome, u64)> {
        if std::mem::replace(&mut self.is_empty, true) {
            return Vec::new();
        }
        let counts = self.counts.iter_mut().enumerate();
        let each = |(policy, counts): (usize, &mut [u64; Outcome::ALL.len()])| {
            let counts = std::mem::take(counts);
            Outcome::ALL.into_iter().zip(counts).map(move |(outcome, n)| (policy, outcome, n))
        };
        counts.flat_map(each).filter(|(.., n)| *n > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_counted_apart_and_taken_once() {
        let mut tally = Tally::new(2);
        for outcome in Outcome::ALL {
            tally.count(1, outcome);
        }
        tally.count(0, Outcome::FromLedger);
        tally.count(0, Outcome::FromLedger);
        tally.count(2, Outcome::Admitted);
        assert!(!tally.is_empty());
        let mut taken = vec![(0, Outcome::FromLedger, 2)];
        taken.extend(Outcome::ALL.map(|outcome| (1, outcome, 1)));
        assert_eq!(tally.take(), taken, "a policy that there is not is not counted");
        assert!(tally.is_empty() && tally.take().is_empty());
    }
}
