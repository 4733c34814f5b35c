//! What becomes of a request that waited: it takes its units of every policy, or, where one that is enforced
//! refuses or fails closed, of none.

use std::rc::Rc;

use super::Worker;
use super::call::allocation::{Offer, Pools};
use super::call::batch::{State, Want};
use super::known::ledger::{Heard, Spent, Verdict};
use super::known::local;
use super::lease::pool::{Taken, Units};
use crate::config::{Count, Policy};
use crate::decision::{Admission, Decision, Held, Outcome, Refusal, Standing, Uncounted};
use crate::evaluate::Check;
use crate::protocol::OnFailure;
use crate::time::Monotonic;

/// What one policy says of a request.
#[derive(Clone, Copy, Debug)]
enum Found {
    /// The request has its units already.
    Own(Taken),
    /// The call brought enough, for the reservation at this place.
    Brought(usize),
    /// It did not, but enough is held ahead.
    Ahead,
    /// The store refused, by the reservation at this place.
    Refused(usize, Spent),
    /// The worker refuses by what it knows.
    Known(Spent),
    /// Nobody could be asked.
    Failed,
}

/// Why a request is not let through.
enum Obstacle {
    Refused,
    Unavailable(Uncounted),
}

/// Where a request stands with the policy of `check`.
pub(super) fn standing(check: &Check, granted: bool, at: Spent) -> Standing {
    let Spent { left, quota, ends } = at;
    let key = Rc::clone(&check.counter.key);
    let enforced = check.enforced;
    Standing { policy: check.policy, key, granted, enforced, quota, remaining: left, resets: ends }
}

/// The policy of `check`, which has not counted the request.
pub(super) fn uncounted(check: &Check) -> Uncounted {
    Uncounted { policy: check.policy, key: Rc::clone(&check.counter.key) }
}

impl<W> Worker<W> {
    /// Decides a request by what its call brought; without one, as a request that the store has not counted.
    pub(super) fn settle(
        &mut self,
        wants: &mut [Want],
        mut pools: Option<&mut Pools>,
        now: Monotonic,
    ) -> Decision {
        let mut found: Vec<Found> = Vec::with_capacity(wants.len());
        for want in wants.iter() {
            found.push(self.find(want, pools.as_deref_mut(), now));
        }
        let obstacle = self.obstacle(wants, &mut found, now);
        for (want, found) in wants.iter_mut().zip(&found) {
            want.outcome = self.outcome(&want.check, *found, obstacle.is_none());
            if let (Found::Refused(slot, _), Some(pools)) = (found, pools.as_deref_mut()) {
                pools.counts(*slot, want.check.cost.get());
            }
        }
        let Some(obstacle) = obstacle else {
            return Decision::Admit(self.admit(wants, &found, pools, now));
        };
        let decision = match obstacle {
            Obstacle::Unavailable(failed) => Decision::Unavailable(failed),
            Obstacle::Refused => Decision::Refuse(self.refusal(wants, &found, pools, now)),
        };
        for want in wants {
            self.release(want, now);
        }
        decision
    }

    /// Gives back what a request got and will not use.
    pub(super) fn release(&mut self, want: &mut Want, now: Monotonic) {
        if let State::Taken(taken) = want.state {
            want.state = State::Open;
            self.put_back(&want.check.counter, taken.units, now);
        }
    }

    /// The policy of a check, unless it only counted when the request arrived.
    pub(super) fn enforced(&self, check: &Check) -> Option<&Policy> {
        self.config.policies.get(check.policy).filter(|_| check.enforced)
    }

    /// Units that a request holds until it is answered, if its policy counts by answer.
    pub(super) fn held(&self, check: &Check, units: Units) -> Option<Held> {
        let policy = self.config.policies.get(check.policy)?;
        if policy.count == Count::All || units.units == 0 {
            return None;
        }
        let Units { units, window, until, ends } = units;
        Some(Held { policy: check.policy, counter: check.counter.clone(), window, units, until, ends })
    }

    fn find(&mut self, want: &Want, pools: Option<&mut Pools>, now: Monotonic) -> Found {
        let (counter, cost) = (&want.check.counter, want.check.cost.get());
        let offer = match want.state {
            State::Taken(taken) if taken.units.until > now => return Found::Own(taken),
            State::Spent(spent) => return Found::Known(spent),
            State::Asked(slot) => pools.map_or(Offer::Failed, |pools| pools.offer(slot, cost)),
            // Units held ahead that were taken, and that nobody may spend any more, are as good as none.
            State::Taken(_) | State::Open => Offer::Failed,
        };
        match (offer, want.state) {
            (Offer::Enough(slot), _) => Found::Brought(slot),
            _ if self.leases.has(counter, cost, now) => Found::Ahead,
            (Offer::Short(spent), State::Asked(slot)) => Found::Refused(slot, spent),
            _ => match self.ledger.last_word(counter, cost, self.above(&want.check), now) {
                Verdict::Refuse(spent) => Found::Known(spent),
                Verdict::Ask => Found::Failed,
            },
        }
    }

    /// What stands against the request: first what is known to be spent, then a policy that fails closed, then
    /// this worker's own share.
    fn obstacle(&self, wants: &[Want], found: &mut [Found], now: Monotonic) -> Option<Obstacle> {
        let refuses = |found: &Found| matches!(found, Found::Refused(..) | Found::Known(_));
        if wants
            .iter()
            .zip(&*found)
            .any(|(want, found)| refuses(found) && self.enforced(&want.check).is_some())
        {
            return Some(Obstacle::Refused);
        }
        if let Some(failed) = self.uncounted(wants, found, |policy| policy.on_failure == OnFailure::Deny) {
            return Some(Obstacle::Unavailable(failed));
        }
        let mut obstacle = None;
        for (Want { check, .. }, found) in wants.iter().zip(found) {
            if let (Found::Failed, Some(share)) = (&*found, self.share(check))
                && let Verdict::Refuse(spent) =
                    self.local.verdict(&check.counter, check.cost.get(), share, &self.clock, now)
            {
                *found = Found::Known(spent);
                obstacle = Some(Obstacle::Refused);
            }
        }
        obstacle
    }

    /// The units that this worker may admit by itself, where the policy says so.
    fn share(&self, check: &Check) -> Option<u64> {
        let policy = self.enforced(check)?;
        (policy.on_failure == OnFailure::Local)
            .then(|| local::share(check.counter.quota, self.config.store.local_share))
    }

    /// The first enforced policy of a kind that could not count the request.
    fn uncounted(&self, wants: &[Want], found: &[Found], of: impl Fn(&Policy) -> bool) -> Option<Uncounted> {
        let mut failed = wants.iter().zip(found).filter(|(_, found)| matches!(found, Found::Failed));
        let (Want { check, .. }, _) = failed.find(|(want, _)| self.enforced(&want.check).is_some_and(&of))?;
        Some(uncounted(check))
    }

    fn outcome(&self, check: &Check, found: Found, admitted: bool) -> Option<(Outcome, bool)> {
        let refused = if self.enforced(check).is_some() { Outcome::Refused } else { Outcome::ShadowRefused };
        match found {
            Found::Own(_) | Found::Ahead => admitted.then_some((Outcome::Admitted, true)),
            Found::Brought(_) => admitted.then_some((Outcome::Admitted, false)),
            Found::Refused(..) => Some((refused, false)),
            Found::Known(_) => Some((refused, true)),
            Found::Failed => Some((Outcome::StoreError, false)),
        }
    }

    fn admit(
        &mut self,
        wants: &mut [Want],
        found: &[Found],
        mut pools: Option<&mut Pools>,
        now: Monotonic,
    ) -> Admission {
        let failed = self.uncounted(wants, found, |_| true);
        let mut admission = Admission { uncounted: failed, ..Admission::default() };
        for (want, found) in wants.iter_mut().zip(found) {
            let (counter, cost) = (&want.check.counter, want.check.cost.get());
            let taken = match *found {
                Found::Own(taken) => Some(taken),
                Found::Brought(slot) => pools.as_deref_mut().and_then(|pools| pools.take(slot, cost)),
                Found::Ahead => self.leases.take_instead(counter, cost, now),
                Found::Refused(_, spent) | Found::Known(spent) => {
                    admission.standings.push(standing(&want.check, false, spent));
                    None
                }
                Found::Failed => {
                    if self.share(&want.check).is_some() {
                        self.local.take(counter, cost, &self.clock, now);
                    }
                    if self.enforced(&want.check).is_none() {
                        admission.pending.push(uncounted(&want.check));
                    }
                    None
                }
            };
            let Some(mut taken) = taken else { continue };
            if let Found::Brought(_) = found {
                let held = self.leases.held(counter, taken.units.window, now);
                taken.remaining = taken.remaining.saturating_add(held);
            }
            want.state = State::Taken(taken);
            admission.held.extend(self.held(&want.check, taken.units));
            admission.standings.push(standing(&want.check, true, taken.standing()));
        }
        admission
    }

    fn refusal(
        &self,
        wants: &[Want],
        found: &[Found],
        mut pools: Option<&mut Pools>,
        now: Monotonic,
    ) -> Refusal {
        let mut refusal = Refusal { standings: Vec::with_capacity(wants.len()), until: now };
        for (Want { check, .. }, found) in wants.iter().zip(found) {
            let at = match *found {
                Found::Refused(_, spent) | Found::Known(spent) => {
                    if self.enforced(check).is_some() {
                        refusal.until = refusal.until.max(spent.ends);
                    }
                    refusal.standings.push(standing(check, false, spent));
                    continue;
                }
                Found::Own(taken) => Some(taken.standing()),
                Found::Ahead => self.leases.standing(&check.counter),
                Found::Brought(slot) => pools.as_deref_mut().and_then(|pools| {
                    let Heard { left, quota, window, ends } = pools.heard(slot)?;
                    let held = self.leases.held(&check.counter, window, now);
                    Some(Spent { left: left.saturating_add(held), quota, ends })
                }),
                Found::Failed => None,
            };
            refusal.standings.extend(at.map(|at| standing(check, true, at)));
        }
        refusal
    }
}
