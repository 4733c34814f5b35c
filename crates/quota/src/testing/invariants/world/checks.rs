//! What must hold of all workers at any time.

use super::*;

impl World {
    pub(super) fn leases_are_bounded(&self) {
        for (policy, counters) in self.config.policies.iter().zip(&self.counters) {
            let Precision::Lease { max, .. } = policy.precision else { continue };
            for counter in counters {
                for worker in &self.workers {
                    let (held, under_way) = worker.lease_load(counter);
                    assert!(
                        held + under_way <= max.get().min(policy.quota / 100),
                        "{held} + {under_way}"
                    );
                }
            }
        }
    }

    /// The workers' counts match the decisions that the world saw.
    pub(in super::super) fn statistics_are_true(&mut self) {
        let mut tallied: BTreeMap<(usize, Outcome), u64> = BTreeMap::new();
        for (counted, n) in self.workers.iter_mut().flat_map(Worker::take_tally) {
            let Counted::Requests(policy, outcome) = counted else { continue };
            *tallied.entry((policy, outcome)).or_default() += n;
        }
        for policy in 0..self.config.policies.len() {
            let of = |outcomes: &BTreeMap<_, u64>, outcome| {
                outcomes.get(&(policy, outcome)).copied().unwrap_or_default()
            };
            for outcome in [Outcome::Admitted, Outcome::Refused] {
                assert_eq!(
                    of(&tallied, outcome),
                    of(&self.outcomes, outcome),
                    "{policy} {outcome:?}"
                );
            }
            // A decision for 503 does not say what a shadow policy would have done.
            let seen = of(&self.outcomes, Outcome::ShadowRefused);
            assert!(of(&tallied, Outcome::ShadowRefused) >= seen, "{policy}");
        }
    }
}
