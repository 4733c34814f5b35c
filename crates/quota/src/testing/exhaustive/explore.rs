//! The search: breadth first, so that it finds a violation in the fewest steps.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use super::SearchSetup;
use super::node::NodeEvent;
use super::properties::{Property, is_quiet};
use super::steps::{KnownSteps, StepChoice};

/// The most states that fit into memory.
const MOST: usize = 5_000_000;

/// What a search has seen.
pub(super) struct Explored {
    /// States that differ.
    pub(super) states: usize,
    /// Those of them at the last moment, with nothing on its way.
    pub(super) quiet: usize,
    /// The property that the first wrong state violates, and the actions that lead there.
    pub(super) wrong: Option<(Property, Vec<StepChoice>)>,
}

impl SearchSetup {
    /// Visits every state, up to the first that violates one of `properties`.
    pub(super) fn explore(&self, properties: &[Property]) -> Explored {
        let begun = Instant::now();
        let (start, mut known) = (self.start(), KnownSteps::new());
        let mut seen = HashSet::from([self.fingerprint(&start)]);
        // How each state was reached: from which other, and by what.
        let mut ways: Vec<(usize, StepChoice)> = vec![(0, (0, NodeEvent::Pass))];
        let mut open = VecDeque::from([(start, 0)]);
        let (mut quiet, mut steps, mut wrong) = (0, 0_u64, None);
        while let Some((state, index)) = open.pop_front() {
            if let Some(property) =
                properties.iter().find(|property| !self.holds(**property, &state))
            {
                wrong = Some((*property, way(&ways, index)));
                break;
            }
            quiet += usize::from(state.step + 1 == self.moments.len() && is_quiet(&state));
            for action in self.actions(&state) {
                steps += 1;
                let next = self.next(&state, &action, &mut known);
                assert!(seen.len() < MOST, "the world is too large to search");
                if seen.insert(self.fingerprint(&next)) {
                    ways.push((index, action));
                    open.push_back((next, ways.len() - 1));
                }
            }
        }
        let states = seen.len();
        println!(
            "{states} states, {steps} steps, {quiet} quiet ends, {} steps of nodes, {:?}",
            known.len(),
            begun.elapsed()
        );
        Explored { states, quiet, wrong }
    }
}

fn way(ways: &[(usize, StepChoice)], mut index: usize) -> Vec<StepChoice> {
    let mut actions = Vec::new();
    while index != 0 {
        let (from, action) = &ways[index];
        actions.push(action.clone());
        index = *from;
    }
    actions.reverse();
    actions
}
