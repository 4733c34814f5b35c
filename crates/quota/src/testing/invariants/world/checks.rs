//! What must hold of all workers at any time.

use super::*;

impl World {
    pub(super) fn leases_are_bounded(&self) {
        for (policy, counters) in self.config.policies.iter().zip(&self.counters) {
            let Precision::Lease { max, .. } = policy.precision else { continue };
            for counter in counters {
                for driver in &self.drivers {
                    let (held, under_way) = driver.worker().lease_load(counter);
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
        self.take_tallies();
        for policy in 0..self.config.policies.len() {
            let of = |outcomes: &BTreeMap<_, u64>, outcome| {
                outcomes.get(&(policy, outcome)).copied().unwrap_or_default()
            };
            for outcome in [Outcome::Admitted, Outcome::Refused] {
                assert_eq!(
                    of(&self.tallied, outcome),
                    of(&self.outcomes, outcome),
                    "{policy} {outcome:?}"
                );
            }
            // A decision for 503 does not say what a shadow policy would have done.
            let seen = of(&self.outcomes, Outcome::ShadowRefused);
            assert!(of(&self.tallied, Outcome::ShadowRefused) >= seen, "{policy}");
        }
    }
}
