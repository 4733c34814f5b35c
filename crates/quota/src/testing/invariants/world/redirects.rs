//! Requests that reached the upstream and are redirected: to a request of any kind, or to where no
//! policy sees them.

use super::*;
use crate::config::MissingCost;
use crate::evaluate::Evaluation;
use crate::exchange::{Arrival, Exchange, StreamState, abandon};
use crate::request::tokens::Tokens;

/// A redirected request that waits.
pub(super) struct SecondPass {
    exchange: Exchange,
    /// What its first pass holds, and its second does not replace.
    earlier: Admission,
}

impl World {
    pub(super) fn redirect(&mut self, worker: usize, earlier: Admission) {
        let (now, since, id) = (self.time(), self.now, self.serial);
        self.serial += 1;
        if self.random.percent(30) {
            self.is_abandoned(&earlier);
            return abandon(Some(earlier), &mut self.workers[worker], now);
        }
        let mut checks = self.checks();
        let evaluation =
            Evaluation { checks: Ok(checks.clone()), missing: vec![], tokens: Tokens::default() };
        let stands = |check: &Check| {
            let counted = |standing: &Standing| {
                standing.key == check.counter.key
                    && standing.cost == check.cost
                    && now < standing.balance.resets
            };
            earlier.standings.iter().any(counted)
                || earlier.pending.iter().any(|pending| pending.key == check.counter.key)
        };
        checks.retain(|check| !stands(check));
        let counts_again = |held: &Held| checks.iter().any(|check| check.policy == held.policy);
        let (mut kept, mut replaced) = (earlier.clone(), earlier.clone());
        for held in [&mut replaced.held, &mut replaced.unsettled] {
            held.retain(counts_again);
        }
        for held in [&mut kept.held, &mut kept.unsettled] {
            held.retain(|held| !counts_again(held));
        }
        self.is_abandoned(&replaced);
        let mut exchange = Exchange::default();
        let arrival =
            exchange.arrive(id, evaluation, Some(earlier), &mut self.workers[worker], now);
        match arrival {
            Arrival::Waiting => {
                let redirected = Some(SecondPass { exchange, earlier: kept });
                let ticket = None;
                self.clients.insert(id, WorldClient { worker, ticket, since, checks, redirected });
            }
            Arrival::Decided | Arrival::Counting => {
                let decision = exchange.decision().unwrap().clone();
                let asked = match &decision {
                    Decision::Admit(admission) => {
                        let is_pending = |check: &Check| {
                            admission.pending.iter().any(|it| it.policy == check.policy)
                        };
                        checks.extract_if(.., |check| is_pending(check)).collect()
                    }
                    _ => vec![],
                };
                self.decided(worker, &checks, &decision);
                if matches!(decision, Decision::Admit(_)) {
                    self.runs(worker, decision);
                } else {
                    self.is_abandoned(&kept);
                }
                if arrival == Arrival::Counting {
                    let (ticket, checks, redirected) = (None, asked, None);
                    self.clients
                        .insert(id, WorldClient { worker, ticket, since, checks, redirected });
                }
            }
            other => unreachable!("{other:?}"),
        }
    }

    /// The worker decided on the second pass of a request.
    pub(super) fn redirect_decided(
        &mut self,
        worker: usize,
        redirected: SecondPass,
        decision: Decision,
    ) {
        let (now, SecondPass { mut exchange, earlier }) = (self.time(), redirected);
        exchange.decided(decision, StreamState::Open, &mut self.workers[worker], now);
        match exchange.decision() {
            Some(joined @ Decision::Admit(_)) => self.runs(worker, joined.clone()),
            _ => self.is_abandoned(&earlier),
        }
    }

    /// A request reached the upstream, and nobody sees an answer: it costs what its policies say.
    fn is_abandoned(&mut self, admission: &Admission) {
        if !self.counts_abandoned() {
            admission.held.iter().for_each(|held| self.costs(held, 0));
        }
        let counted = admission.held.iter().filter(|_| self.counts_abandoned());
        for held in counted.chain(&admission.unsettled).cloned().collect::<Vec<_>>() {
            let settle = self.config.policies[held.policy].settle.as_deref();
            if let Some(MissingCost::Units(cost)) = settle.map(|settle| settle.missing) {
                self.costs(&held, cost);
            }
        }
    }

    /// Whether policies that count by answer count requests without one: all do, or none.
    pub(super) fn counts_abandoned(&self) -> bool {
        self.config.policies.iter().any(|policy| {
            matches!(&policy.count, Count::Responses(of) if of.abandoned == Abandoned::Count)
        })
    }
}
