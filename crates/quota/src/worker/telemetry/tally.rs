//! Counts of decisions and calls. Metrics take them first, and reports take what metrics have
//! taken.

use crate::decision::Outcome;
use crate::worker::call::faults::CallOutcome;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counted {
    /// Requests, by the index of a policy and their outcome with it.
    Requests(usize, Outcome),
    /// Calls to the store, by how they ended.
    Calls(CallOutcome),
    /// That the worker's document was refused: once, and again with each report.
    RefusedDocument,
}

/// The requests of one policy, by outcome.
pub(crate) type Counts = [u64; Outcome::ALL.len()];

/// One count for each policy and outcome, and for each outcome of calls.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    requests: Vec<Counts>,
    /// Taken for metrics, and not yet for a report.
    unreported: Vec<Counts>,
    /// The policies with counts in `requests`, each once.
    counted: Vec<usize>,
    has_unreported: bool,
    calls: [u64; CallOutcome::ALL.len()],
    refused_document: u64,
    is_empty: bool,
}

impl Tally {
    /// Counts of 0 for `policies` policies.
    pub(crate) fn new(policies: usize) -> Self {
        Self {
            requests: vec![[0; Outcome::ALL.len()]; policies],
            unreported: vec![[0; Outcome::ALL.len()]; policies],
            counted: Vec::new(),
            has_unreported: false,
            calls: [0; CallOutcome::ALL.len()],
            refused_document: 0,
            is_empty: true,
        }
    }

    /// One more request.
    pub(crate) fn count(&mut self, policy: usize, outcome: Outcome) {
        let Some(counts) = self.requests.get_mut(policy) else { return };
        if counts.iter().all(|count| *count == 0) {
            self.counted.push(policy);
        }
        self.is_empty &= !one_more(counts.get_mut(outcome as usize));
        self.has_unreported = true;
    }

    /// One more call.
    pub(crate) fn count_call(&mut self, outcome: CallOutcome) {
        self.is_empty &= !one_more(self.calls.get_mut(outcome as usize));
    }

    /// The worker's document was refused.
    pub(crate) fn count_refused_document(&mut self) {
        self.is_empty &= !one_more(Some(&mut self.refused_document));
    }

    /// Whether nothing waits to be taken.
    pub(crate) const fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Takes the counts for metrics, and starts at 0 again.
    pub(crate) fn take(&mut self) -> Vec<(Counted, u64)> {
        if std::mem::replace(&mut self.is_empty, true) {
            return Vec::new();
        }
        let mut taken = Vec::new();
        self.counted.sort_unstable();
        for policy in self.counted.drain(..) {
            let (Some(counts), Some(unreported)) =
                (self.requests.get_mut(policy), self.unreported.get_mut(policy))
            else {
                continue;
            };
            add(unreported, counts);
            let of = |outcome| Counted::Requests(policy, outcome);
            taken.extend(Outcome::ALL.into_iter().map(of).zip(std::mem::take(counts)));
        }
        let calls =
            CallOutcome::ALL.into_iter().map(Counted::Calls).zip(std::mem::take(&mut self.calls));
        taken.extend(calls);
        taken.push((Counted::RefusedDocument, std::mem::take(&mut self.refused_document)));
        taken.retain(|(_, n)| *n > 0);
        taken
    }

    /// The same counts for another configuration of this many policies, in which policies have the
    /// indexes that `to` returns. Counts of policies that it does not have are dropped.
    pub(crate) fn moved(self, policies: usize, to: impl Fn(usize) -> Option<usize>) -> Self {
        let Self { requests, unreported, calls, refused_document, .. } = self;
        let mut moved = Self {
            calls,
            refused_document,
            is_empty: self.is_empty,
            has_unreported: self.has_unreported,
            ..Self::new(policies)
        };
        for (policy, (requests, unreported)) in requests.iter().zip(&unreported).enumerate() {
            if requests.iter().chain(unreported).any(|count| *count > 0)
                && let Some(policy) = to(policy)
            {
                moved.add_of(policy, requests, unreported);
            }
        }
        moved
    }

    fn add_of(&mut self, policy: usize, requests: &Counts, unreported: &Counts) {
        let (Some(own), Some(own_unreported)) =
            (self.requests.get_mut(policy), self.unreported.get_mut(policy))
        else {
            return;
        };
        let is_counted = own.iter().any(|count| *count > 0);
        add(own, requests);
        add(own_unreported, unreported);
        if !is_counted && own.iter().any(|count| *count > 0) {
            self.counted.push(policy);
        }
    }

    /// Whether requests were counted since the last report.
    pub(crate) const fn has_unreported(&self) -> bool {
        self.has_unreported
    }

    /// A report was lost: its counts are unreported again.
    pub(crate) fn restore(&mut self, reported: &[Counts]) {
        for (counts, unreported) in reported.iter().zip(&mut self.unreported) {
            add(unreported, counts);
        }
        self.has_unreported |= reported.iter().flatten().any(|count| *count > 0);
    }

    /// Takes the counts for a report, by the index of the policy.
    pub(crate) fn take_unreported(&mut self) -> Vec<Counts> {
        self.has_unreported = !self.counted.is_empty();
        let nothing = vec![[0; Outcome::ALL.len()]; self.unreported.len()];
        std::mem::replace(&mut self.unreported, nothing)
    }
}

fn add(sum: &mut Counts, counts: &Counts) {
    for (sum, count) in sum.iter_mut().zip(counts) {
        *sum = sum.saturating_add(*count);
    }
}

/// Counts one more, if there is such a count.
fn one_more(counted: Option<&mut u64>) -> bool {
    counted.is_some_and(|counted| {
        *counted = counted.saturating_add(1);
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_has_its_own_count_and_is_taken_once() {
        let mut tally = Tally::new(2);
        for outcome in Outcome::ALL {
            tally.count(1, outcome);
        }
        for outcome in CallOutcome::ALL {
            tally.count_call(outcome);
        }
        tally.count_refused_document();
        tally.count(0, Outcome::FromLedger);
        tally.count(0, Outcome::FromLedger);
        tally.count(2, Outcome::Admitted);
        assert!(!tally.is_empty());
        let mut taken = vec![(Counted::Requests(0, Outcome::FromLedger), 2)];
        taken.extend(Outcome::ALL.map(|outcome| (Counted::Requests(1, outcome), 1)));
        taken.extend(CallOutcome::ALL.map(|outcome| (Counted::Calls(outcome), 1)));
        taken.push((Counted::RefusedDocument, 1));
        assert_eq!(tally.take(), taken, "an unknown policy is not counted");
        assert!(tally.is_empty() && tally.take().is_empty());
    }

    #[test]
    fn counts_taken_for_metrics_are_reported_once() {
        let mut tally = Tally::new(2);
        for _ in 0..3 {
            tally.count(1, Outcome::Refused);
            tally.take();
        }
        tally.count(1, Outcome::Refused);
        assert_eq!(
            tally.take_unreported(),
            [[0; 8], [0, 3, 0, 0, 0, 0, 0, 0]],
            "not what metrics have yet to take"
        );
        assert_eq!(tally.take_unreported(), [[0; 8]; 2]);
        tally.take();
        assert_eq!(tally.take_unreported(), [[0; 8], [0, 1, 0, 0, 0, 0, 0, 0]]);
    }

    #[test]
    fn unknown_policy_is_not_counted() {
        let mut tally = Tally::new(1);
        tally.count(1, Outcome::Admitted);
        assert!(tally.is_empty());
        tally.count_call(CallOutcome::Ok);
        assert!(!tally.is_empty());
    }
}
