//! What can happen next in a world, and the state that follows.

use std::collections::HashMap;
use std::sync::Arc;

use super::network::{Flight, Message};
use super::node::{Effects, ModelNode, NodeEvent, Step};
use super::{SearchSetup, SearchState};

/// What happens next, and to which worker; time passes for all of them.
pub(super) type StepChoice = (usize, NodeEvent);

/// The steps of nodes that were carried out before, by fingerprint and moment.
pub(super) type KnownSteps = HashMap<(u64, usize, NodeEvent), (Arc<ModelNode>, Effects)>;

impl SearchSetup {
    /// All that can happen next.
    pub(super) fn actions(&self, state: &SearchState) -> Vec<StepChoice> {
        let mut actions = Vec::new();
        for (worker, node) in state.nodes.iter().enumerate() {
            let mut may = |event| actions.push((worker, event));
            (0..state.requests.len())
                .filter(|kind| state.requests[*kind] > 0)
                .map(NodeEvent::Arrive)
                .for_each(&mut may);
            if state.departures > 0 {
                (0..node.worker.open_tickets().count()).map(NodeEvent::Leave).for_each(&mut may);
            }
            for (index, admission) in node.running.iter().enumerate() {
                if state.redirects > 0 {
                    let kinds = (0..self.requests.len()).map(Some);
                    kinds.chain([None]).map(|to| NodeEvent::Redirect(index, to)).for_each(&mut may);
                }
                if admission.held.is_empty() {
                    self.costs
                        .iter()
                        .map(|cost| NodeEvent::Settle(index, *cost))
                        .for_each(&mut may);
                    may(NodeEvent::Vanish(index));
                } else {
                    may(NodeEvent::Answer(index, true));
                    may(NodeEvent::Answer(index, false));
                }
            }
            for (index, Flight { message, .. }) in node.flights.iter().enumerate() {
                may(match message {
                    Message::Reply(_) => NodeEvent::Deliver(index),
                    // The reply is filled in when the store carries out the call.
                    Message::Call(_) | Message::Stray(_) => NodeEvent::Carried(index, "".into()),
                });
                if state.faults > 0 && !matches!(message, Message::Stray(_)) {
                    may(NodeEvent::Fail(index));
                }
            }
            if state.swaps > 0 && !node.is_swapped() {
                may(NodeEvent::Swap);
            }
            if node.worker.has_decisions() {
                may(NodeEvent::Hear);
            }
            if !node.ticked {
                may(NodeEvent::Tick);
            }
        }
        let next = self.moments.get(state.step + 1);
        let may_end = |node: &Arc<ModelNode>, ms| {
            let may_stay = |flight: &Flight| flight.may_last_until(ms);
            node.ticked && !node.worker.has_decisions() && node.flights.iter().all(may_stay)
        };
        if next.is_some_and(|ms| state.nodes.iter().all(|node| may_end(node, *ms))) {
            actions.push((0, NodeEvent::Pass));
        }
        actions
    }

    pub(super) fn next(
        &self,
        state: &SearchState,
        (worker, event): &StepChoice,
        known: &mut KnownSteps,
    ) -> SearchState {
        let mut next = state.clone();
        match event {
            NodeEvent::Pass => {
                next.step += 1;
                for worker in 0..next.nodes.len() {
                    self.happens(&mut next, worker, NodeEvent::Pass, known);
                }
                return next;
            }
            NodeEvent::Carried(flight, _) => {
                let reply = self.carry_out(&mut next, *worker, *flight);
                self.happens(&mut next, *worker, NodeEvent::Carried(*flight, reply), known);
                return next;
            }
            NodeEvent::Arrive(kind) => next.requests[*kind] -= 1,
            NodeEvent::Leave(_) => next.departures -= 1,
            NodeEvent::Fail(_) => next.faults -= 1,
            NodeEvent::Redirect(..) => next.redirects -= 1,
            NodeEvent::Swap => next.swaps -= 1,
            NodeEvent::Answer(..)
            | NodeEvent::Settle(..)
            | NodeEvent::Vanish(_)
            | NodeEvent::Deliver(_)
            | NodeEvent::Tick
            | NodeEvent::Hear => {}
        }
        self.happens(&mut next, *worker, event.clone(), known);
        next
    }

    fn happens(
        &self,
        state: &mut SearchState,
        worker: usize,
        event: NodeEvent,
        known: &mut KnownSteps,
    ) {
        let (node, moment) = (&mut state.nodes[worker], state.step);
        let (after, effects) =
            known.entry((node.print, moment, event)).or_insert_with_key(|(_, _, event)| {
                let (after, effects) = Step::new(self, (**node).clone(), moment).take(event);
                (Arc::new(after), effects)
            });
        *node = Arc::clone(after);
        for (window, units) in &effects.admitted {
            *state.admitted.entry(window.clone()).or_default() += units;
        }
        for (window, units) in &effects.uncounted {
            *state.admitted.get_mut(window).unwrap() -= units;
        }
        for (window, units) in &effects.charged {
            *state.charged.entry(window.clone()).or_default() += units;
        }
        state.wrong = state.wrong.or(effects.wrong);
    }
}
