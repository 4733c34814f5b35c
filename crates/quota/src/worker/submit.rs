//! A request arrives: it is decided by what the worker knows and holds, or waits for a call.

use super::call::batch::{State, Want};
use super::known::ledger::{Above, Spent, Verdict};
use super::lease::pool::{Extent, Taken};
use super::settle::{standing, uncounted};
use super::{MAX_WAITING, Submitted, Ticket, Waiter, Worker};
use crate::config::{Count, Policy, Precision};
use crate::decision::{Admission, Decision, Held, Outcome, Refusal, Standing};
use crate::evaluate::Check;
use crate::time::Monotonic;

/// Whether the store must be asked about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Asks {
    #[default]
    No,
    /// By policies that only count: the request does not wait for that.
    InPassing,
    /// By others.
    Yes,
}

/// What a worker can say of a request by itself, so far.
#[derive(Default)]
struct Known {
    /// With the policies that it knows enough of, in the order of the policies.
    standings: Vec<Standing>,
    held: Vec<Held>,
    /// Whether the store must be asked.
    asks: Asks,
    /// An enforced policy refuses, and when the last such resets.
    refused_until: Option<Monotonic>,
}

impl<W> Worker<W> {
    /// A request arrives with the units that it needs, one check a policy.
    pub fn submit(&mut self, who: W, checks: Vec<Check>, now: Monotonic) -> Submitted {
        let known = self.know(&checks, now);
        if let Some(until) = known.refused_until {
            return Submitted::Decided(Decision::Refuse(self.refuse(&checks, known.standings, until)));
        }
        let deadline = now + self.config.store.timeout;
        let mut wants = match known.asks {
            Asks::Yes => self.wants(checks, &known.standings, deadline, now),
            Asks::No | Asks::InPassing => return self.admit_known(who, checks, known, now),
        };
        if self.nobody_may_wait(now) {
            let decision = self.settle(&mut wants, None, now);
            self.count_outcomes(&wants);
            return Submitted::Decided(decision);
        }
        Submitted::Waiting(self.wait(Waiter { who, wants, deadline }, now))
    }

    /// The request goes on by what is known; policies that only count may ask without it.
    fn admit_known(&mut self, who: W, mut checks: Vec<Check>, known: Known, now: Monotonic) -> Submitted {
        let Known { standings, held, asks, .. } = known;
        self.count_known(&standings);
        let mut admission = Admission { standings, held, ..Admission::default() };
        if asks == Asks::No {
            return Submitted::Decided(Decision::Admit(admission));
        }
        checks.retain(|check| admission.standings.iter().all(|known| known.policy != check.policy));
        let mut wants: Vec<Want> = checks.into_iter().map(Want::from).collect();
        if self.nobody_may_wait(now) {
            if let Decision::Admit(failed) = self.settle(&mut wants, None, now) {
                admission.join(failed);
            }
            self.count_outcomes(&wants);
            return Submitted::Decided(Decision::Admit(admission));
        }
        admission.pending = wants.iter().map(|want| uncounted(&want.check)).collect();
        self.wait(Waiter { who, wants, deadline: now + self.config.store.timeout }, now);
        Submitted::Counting(admission)
    }

    fn nobody_may_wait(&self, now: Monotonic) -> bool {
        !self.breaker.lets_through(now) || self.waiting.len() >= MAX_WAITING
    }

    fn wait(&mut self, waiter: Waiter<W>, now: Monotonic) -> Ticket {
        if self.gathering.len() >= 2 * MAX_WAITING {
            self.gathering.retain(|ticket| self.waiting.contains_key(ticket));
        }
        for want in waiter.wants.iter().filter(|want| matches!(want.state, State::Open)) {
            self.ledger.asking(&want.check.counter, now);
        }
        self.serial += 1;
        let ticket = Ticket(self.serial);
        self.waiting.insert(ticket, waiter);
        self.gathering.push_back(ticket);
        ticket
    }

    /// What is known of each policy. Units that are held ahead are taken.
    fn know(&mut self, checks: &[Check], now: Monotonic) -> Known {
        let mut known = Known { standings: Vec::with_capacity(checks.len()), ..Known::default() };
        for check in checks {
            if let Some(taken) = self.take_ahead(check, now, now) {
                known.held.extend(self.held(check, taken.units));
                known.standings.push(standing(check, true, taken.standing()));
                continue;
            }
            match self.verdict(check, now) {
                Verdict::Ask if self.only_counts(check) => known.asks = known.asks.max(Asks::InPassing),
                Verdict::Ask => known.asks = Asks::Yes,
                Verdict::Refuse(spent) => {
                    known.standings.push(standing(check, false, spent));
                    if self.enforced(check).is_some() {
                        known.refused_until = known.refused_until.max(Some(spent.ends));
                    }
                }
            }
        }
        known
    }

    /// Takes units that are held ahead, if they may be spent until `until`.
    fn take_ahead(&mut self, check: &Check, until: Monotonic, now: Monotonic) -> Option<Taken> {
        let Precision::Lease { ahead, max } = self.policy(check)?.precision else { return None };
        self.leases.take(&check.counter, check.cost.get(), Extent { ahead, max: max.get() }, until, now)
    }

    fn verdict(&self, check: &Check, now: Monotonic) -> Verdict {
        if self.policy(check).is_some_and(|policy| policy.count_denied) {
            // Only the store can count what is refused.
            return Verdict::Ask;
        }
        self.ledger.verdict(&check.counter, check.cost.get(), self.above(check), now)
    }

    /// The request spends nothing of what others grant.
    fn refuse(&mut self, checks: &[Check], mut standings: Vec<Standing>, until: Monotonic) -> Refusal {
        for granted in standings.iter().filter(|standing| standing.granted) {
            if let Some(check) = checks.iter().find(|check| check.policy == granted.policy) {
                self.leases.undo(&check.counter, check.cost.get());
            }
        }
        standings.retain(|standing| !standing.granted);
        self.count_known(&standings);
        Refusal { standings, until }
    }

    fn count_known(&mut self, standings: &[Standing]) {
        for standing in standings {
            let outcome = match (standing.granted, standing.enforced) {
                (true, _) => Outcome::Admitted,
                (false, true) => Outcome::Refused,
                (false, false) => Outcome::ShadowRefused,
            };
            self.tally.count(standing.policy, outcome);
            self.tally.count(standing.policy, Outcome::FromLedger);
            if outcome == Outcome::Refused {
                self.refusals.note(&standing.key);
            }
        }
    }

    /// The wishes of a request that may wait until `deadline`: of units held ahead it takes only those that may
    /// be spent then.
    fn wants(
        &mut self,
        checks: Vec<Check>,
        known: &[Standing],
        deadline: Monotonic,
        now: Monotonic,
    ) -> Vec<Want> {
        let mut wants = Vec::with_capacity(checks.len());
        for check in checks {
            let state = match known.iter().find(|standing| standing.policy == check.policy) {
                None => State::Open,
                Some(&Standing { granted: false, quota, remaining: left, resets: ends, .. }) => {
                    State::Spent(Spent { left, quota, ends })
                }
                Some(_) => {
                    self.leases.undo(&check.counter, check.cost.get());
                    self.take_ahead(&check, deadline, now).map_or(State::Open, State::Taken)
                }
            };
            wants.push(Want { state, ..Want::from(check) });
        }
        wants
    }

    /// Whether the policy of a check has run-time overrides: only the store knows then whose quota is how large.
    pub(super) fn above(&self, check: &Check) -> Above {
        if self.policy(check).is_some_and(|policy| policy.is_overridden) {
            Above::Perhaps
        } else {
            Above::Never
        }
    }

    fn policy(&self, check: &Check) -> Option<&Policy> {
        self.config.policies.get(check.policy)
    }

    /// Whether the policy of a check neither refuses a request nor gives it units to hold.
    fn only_counts(&self, check: &Check) -> bool {
        self.enforced(check).is_none() && self.policy(check).is_none_or(|policy| policy.count == Count::All)
    }
}
