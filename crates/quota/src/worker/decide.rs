//! Decides a request that waited: it takes the units of all its policies, or of none if an enforced
//! policy refuses it or fails closed.

use std::sync::Arc;

use quotagate_protocol::{Mode, OnFailure};

use super::Worker;
use super::call::allocation::Allocation;
use super::known::local;
use super::requests::{Stage, Want};
use super::telemetry::exceeded;
use crate::config::Policy;
use crate::decision::{
    Admission, Balance, Decision, GrantedUnits, Outcome, Refusal, Standing, Uncounted,
};
use crate::evaluate::Check;
use crate::time::Monotonic;

/// Why a request is not admitted.
enum Obstacle {
    Refused,
    Unavailable(Uncounted),
}

/// The standing of a request with the policy of `check`, which counts it until its window ends.
pub(super) fn standing(check: &Check, granted: bool, balance: Balance) -> Standing {
    let &Check { policy, mode, cost, .. } = check;
    let counter = check.counter.clone();
    let (by_store, counts_until) = (false, balance.resets);
    Standing { policy, counter, granted, by_store, mode, cost, counts_until, balance }
}

/// The standing of a request that the policy of `check` refuses.
fn refused(check: &Check, balance: Balance, by_store: bool) -> Standing {
    Standing { by_store, ..standing(check, false, balance) }
}

/// The standing of a request with the policy of `check`, which granted it these units.
pub(super) fn granted(check: &Check, units: GrantedUnits, balance: Balance) -> Standing {
    Standing { counts_until: units.resets, ..standing(check, true, balance) }
}

/// The policy of `check`, which has not counted the request.
pub(super) fn uncounted(check: &Check) -> Uncounted {
    Uncounted { policy: check.policy, key: Arc::clone(&check.counter.key) }
}

impl<W> Worker<W> {
    /// Decides a request with the grants of its call. Without `allocation` the store has not
    /// counted it.
    pub(super) fn decide(
        &mut self,
        wants: &mut [Want],
        mut allocation: Option<&mut Allocation>,
        now: Monotonic,
    ) -> Decision {
        for want in wants.iter_mut() {
            want.stage = self.stage(want, allocation.as_deref_mut(), now);
        }
        let obstacle = self.obstacle(wants, now);
        // A request that cannot be counted costs nothing, whatever its shadow policies say of it.
        let counts = !matches!(obstacle, Some(Obstacle::Unavailable(_)));
        for want in wants.iter_mut() {
            want.outcome = outcome(want, obstacle.is_none());
            if counts
                && let (
                    Stage::Refused { by_store: true, .. },
                    Some((reservation, cost)),
                    Some(allocation),
                ) = (want.stage, want.asked(), allocation.as_deref_mut())
            {
                allocation.count(reservation, cost);
            }
        }
        let Some(obstacle) = obstacle else {
            return Decision::Admit(self.admit(wants, allocation, now));
        };
        let decision = match obstacle {
            Obstacle::Unavailable(failed) => Decision::Unavailable(failed),
            Obstacle::Refused => Decision::Refuse(self.refusal(wants, allocation.as_deref(), now)),
        };
        for want in wants {
            self.release(want, now);
        }
        decision
    }

    /// Takes back the units of a request that will not spend them.
    pub(super) fn release(&mut self, want: &mut Want, now: Monotonic) {
        if let Some((units, _)) = want.taken.take() {
            self.take_back(&want.check.counter, units, now);
        }
    }

    /// Where a request can take its units.
    fn stage(&mut self, want: &Want, allocation: Option<&mut Allocation>, now: Monotonic) -> Stage {
        if let Stage::Refused { .. } = want.stage {
            return want.stage;
        }
        // Leased units that may no longer be spent do not count.
        if want.taken.is_some_and(|(units, _)| units.spendable_until > now) {
            return Stage::Taken;
        }
        let offer = match (want.asked(), allocation) {
            (Some((reservation, cost)), Some(allocation)) => allocation.offer(reservation, cost),
            _ => Stage::Open,
        };
        let (counter, cost) = (&want.check.counter, want.check.cost.get());
        match offer {
            Stage::Granted(_) => offer,
            _ if self.leases.has(counter, cost, now) => Stage::Leased,
            Stage::Refused { .. } => offer,
            _ => {
                let overrides = self.runtime_overrides(&want.check);
                match self.known.refuses_for_good(counter, cost, overrides, now) {
                    Some(balance) => Stage::Refused { balance, by_store: false },
                    None => Stage::Open,
                }
            }
        }
    }

    /// What keeps the request from being admitted: first a policy that refuses, then one that fails
    /// closed, then this worker's own share.
    fn obstacle(&self, wants: &mut [Want], now: Monotonic) -> Option<Obstacle> {
        let refuses =
            |want: &Want| want.check.enforced() && matches!(want.stage, Stage::Refused { .. });
        if wants.iter().any(refuses) {
            return Some(Obstacle::Refused);
        }
        if let Some(failed) = self.uncounted(wants, |policy| policy.on_failure == OnFailure::Deny) {
            return Some(Obstacle::Unavailable(failed));
        }
        let mut obstacle = None;
        for Want { check, stage, .. } in wants {
            if let (Stage::Open, Some(share)) = (&*stage, self.share(check))
                && let Some(balance) = self.known.refuses_locally(check, share, now)
            {
                *stage = Stage::Refused { balance, by_store: false };
                if check.enforced() {
                    obstacle = Some(Obstacle::Refused);
                }
            }
        }
        obstacle
    }

    /// The units that this worker may admit by itself, if the policy has `on_failure: local`.
    fn share(&self, check: &Check) -> Option<u64> {
        let policy = check.awaited_policy(&self.config)?;
        (policy.on_failure == OnFailure::Local)
            .then(|| local::share(check.counter.quota, self.config.store.local_share))
    }

    /// The first policy that the request waits for and that could not count it, of those that
    /// `which` selects.
    fn uncounted(&self, wants: &[Want], which: impl Fn(&Policy) -> bool) -> Option<Uncounted> {
        let mut open = wants.iter().filter(|want| want.is_open());
        let want = open.find(|want| want.check.awaited_policy(&self.config).is_some_and(&which))?;
        Some(uncounted(&want.check))
    }

    fn admit(
        &mut self,
        wants: &mut [Want],
        mut allocation: Option<&mut Allocation>,
        now: Monotonic,
    ) -> Admission {
        let failed = self.uncounted(wants, |_| true).map(Box::new);
        let standings = Vec::with_capacity(wants.len());
        let mut admission = Admission { standings, uncounted: failed, ..Admission::default() };
        for want in wants {
            let (counter, cost) = (&want.check.counter, want.check.cost.get());
            let taken = match want.stage {
                Stage::Taken => want.taken,
                Stage::Granted(reservation) => {
                    let taken =
                        allocation.as_deref_mut().and_then(|all| all.take(reservation, cost));
                    taken.map(|(units, balance)| {
                        (units, balance.plus(self.leases.units_of(counter, units.window, now)))
                    })
                }
                Stage::Leased => self.leases.take_instead(counter, cost, now),
                Stage::Refused { balance, by_store } => {
                    admission.standings.push(refused(&want.check, balance, by_store));
                    None
                }
                Stage::Open => {
                    if self.share(&want.check).is_some() {
                        self.known.take_locally(&want.check, now);
                    }
                    if !want.check.mode.is_awaited() {
                        admission.pending.push(uncounted(&want.check));
                    }
                    None
                }
            };
            let Some((units, balance)) = taken else { continue };
            want.taken = taken;
            admission.hold(&want.check, units, &self.config);
            admission.standings.push(granted(&want.check, units, balance));
        }
        admission
    }

    fn refusal(&self, wants: &[Want], allocation: Option<&Allocation>, now: Monotonic) -> Refusal {
        let mut refusal = Refusal { standings: Vec::with_capacity(wants.len()), until: now };
        for Want { check, stage, taken, .. } in wants {
            let balance = match *stage {
                Stage::Refused { balance, by_store } => {
                    if check.enforced() {
                        refusal.until = refusal.until.max(balance.resets);
                    }
                    refusal.standings.push(refused(check, balance, by_store));
                    continue;
                }
                Stage::Taken => taken.map(|(_, balance)| balance),
                Stage::Leased => self.leases.balance(&check.counter),
                Stage::Granted(reservation) => {
                    allocation.and_then(|all| all.balance(reservation)).map(|(window, balance)| {
                        balance.plus(self.leases.units_of(&check.counter, window, now))
                    })
                }
                Stage::Open => None,
            };
            refusal.standings.extend(balance.map(|balance| standing(check, true, balance)));
        }
        refusal
    }
}

/// For metrics: the outcome with a policy, and whether it needed no call.
fn outcome(want: &Want, admitted: bool) -> Option<(Outcome, bool)> {
    match want.stage {
        Stage::Taken | Stage::Leased => admitted.then_some((Outcome::Admitted, true)),
        Stage::Granted(_) => admitted.then_some((Outcome::Admitted, false)),
        // A request that another policy refuses is not marked.
        Stage::Refused { .. } if want.check.mode == Mode::Mark && !admitted => None,
        Stage::Refused { by_store, .. } => Some((exceeded(want.check.mode), !by_store)),
        Stage::Open => Some((Outcome::StoreError, false)),
    }
}
