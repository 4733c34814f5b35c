//! A request arrives: the worker decides it with known counters and leased units, or lets it wait
//! for a call.

use std::sync::Arc;

use quotagate_protocol::Mode;

use super::decide::{granted, standing, uncounted};
use super::known::RuntimeOverrides;
use super::lease::LeaseBounds;
use super::requests::{Stage, Waiter, Want};
use super::{Submitted, Ticket, Worker};
use crate::config::{Config, Policy, Precision};
use crate::decision::{Admission, Balance, Decision, GrantedUnits, Refusal, Standing};
use crate::evaluate::Check;
use crate::time::Monotonic;

/// Whether the store must be asked about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Asks {
    #[default]
    No,
    /// Only shadow policies ask it, and the request does not wait for that.
    InPassing,
    /// The request waits for it.
    Yes,
}

/// Whether policies in shadow mode let a request pass before the store has answered them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShadowPolicies {
    InPassing,
    Awaited,
}

/// What becomes of a request's quotas on arrival.
pub(super) enum Attempt {
    /// It is decided.
    Decided(Decision),
    /// It waits for a call.
    Waits(Vec<Want>),
    /// It is admitted, and shadow policies still ask the store.
    Passes(Admission, Vec<Want>),
}

/// What a worker knows about a request without a call.
#[derive(Default)]
struct LocalKnowledge {
    /// The standings with policies that need no call, and the leased units taken for them.
    admission: Admission,
    asks: Asks,
    /// If enforced policies refuse: the last of their resets.
    refused_until: Option<Monotonic>,
}

impl<W> Worker<W> {
    /// Decides a request or lets it wait. `checks` has one check for each policy that counts it, in
    /// the order of the policies.
    pub fn submit(&mut self, who: W, checks: Vec<Check>, now: Monotonic) -> Submitted {
        if self.config.has_slots && checks.iter().any(|check| check.counter.is_slots()) {
            return self.submit_slots(who, checks, now);
        }
        self.submit_quotas(who, checks, now)
    }

    /// The same for checks without slots.
    pub(super) fn submit_quotas(
        &mut self,
        who: W,
        checks: Vec<Check>,
        now: Monotonic,
    ) -> Submitted {
        match self.attempt(checks, ShadowPolicies::InPassing, now) {
            Attempt::Decided(decision) => Submitted::Decided(decision),
            Attempt::Waits(wants) => Submitted::Waiting(self.wait_for_call(who, wants, now)),
            Attempt::Passes(admission, wants) => {
                self.wait_for_call(who, wants, now);
                Submitted::Counting(admission)
            }
        }
    }

    /// Decides a request without a call, if that is possible.
    pub(super) fn attempt(
        &mut self,
        checks: Vec<Check>,
        shadow: ShadowPolicies,
        now: Monotonic,
    ) -> Attempt {
        let LocalKnowledge { admission, mut asks, refused_until } = self.know(&checks, now);
        if let Some(until) = refused_until {
            let refusal = self.refuse(&checks, admission.standings, until, now);
            self.scratch.keep(checks);
            return Attempt::Decided(Decision::Refuse(refusal));
        }
        if asks == Asks::InPassing && shadow == ShadowPolicies::Awaited {
            asks = Asks::Yes;
        }
        if asks != Asks::Yes {
            return self.admit_known(checks, admission, asks, now);
        }
        let deadline = now + self.config.store.timeout;
        let mut wants = self.wants(checks, &admission.standings, deadline, now);
        if !self.may_wait(now) {
            let decision = self.decide(&mut wants, None, now);
            self.telemetry.count_wants(&wants);
            return Attempt::Decided(decision);
        }
        Attempt::Waits(wants)
    }

    /// Like [`submit`](Self::submit), for checks of a configuration that may have been replaced
    /// since the request arrived.
    pub(crate) fn submit_under(
        &mut self,
        config: Option<&Arc<Config>>,
        who: W,
        checks: Vec<Check>,
        now: Monotonic,
    ) -> Submitted {
        let submitted = self.under(config, |worker| worker.submit(who, checks, now));
        self.serve_freed(now);
        submitted
    }

    /// Whether the policy of a check has runtime overrides. If so, only the store knows the quota
    /// of each partition.
    pub(super) fn runtime_overrides(&self, check: &Check) -> RuntimeOverrides {
        if check.policy(&self.config).is_some_and(|policy| policy.is_overridden) {
            RuntimeOverrides::Some
        } else {
            RuntimeOverrides::None
        }
    }

    /// Admits a request. Shadow policies may still ask the store, but the request does not wait.
    fn admit_known(
        &mut self,
        mut checks: Vec<Check>,
        mut admission: Admission,
        asks: Asks,
        now: Monotonic,
    ) -> Attempt {
        self.telemetry.count_standings(admission.standings.iter());
        if asks == Asks::No {
            self.scratch.keep(checks);
            return Attempt::Decided(Decision::Admit(admission));
        }
        checks.retain(|check| !admission.standings.iter().any(|known| known.is_of(check)));
        let mut wants: Vec<Want> = checks.into_iter().map(Want::from).collect();
        if !self.may_wait(now) {
            if let Decision::Admit(failed) = self.decide(&mut wants, None, now) {
                admission.join(failed);
            }
            self.telemetry.count_wants(&wants);
            return Attempt::Decided(Decision::Admit(admission));
        }
        admission.pending = wants.iter().map(|want| uncounted(&want.check)).collect();
        Attempt::Passes(admission, wants)
    }

    pub(super) fn may_wait(&self, now: Monotonic) -> bool {
        self.calls.breaker.lets_through(now) && self.requests.has_room()
    }

    /// Lets a request wait for a call.
    pub(super) fn wait_for_call(&mut self, who: W, wants: Vec<Want>, now: Monotonic) -> Ticket {
        let deadline = now + self.config.store.timeout;
        let arrived_under = self.live.arrived_under();
        let waiter = Waiter { who, wants, deadline, arrived_under, slots: None };
        for want in waiter.wants.iter().filter(|want| want.is_open()) {
            self.known.ledger.asking(&want.check.counter, now);
        }
        let ticket = Ticket(self.next_serial());
        self.requests.wait(ticket, waiter);
        ticket
    }

    /// What the worker knows for each policy. Takes leased units.
    fn know(&mut self, checks: &[Check], now: Monotonic) -> LocalKnowledge {
        let mut known = LocalKnowledge::default();
        known.admission.standings = Vec::with_capacity(checks.len());
        for check in checks {
            if let Some((units, balance)) = self.take_leased(check, now, now) {
                known.admission.hold(check, units, &self.config);
                known.admission.standings.push(granted(check, units, balance));
            } else if let Some(balance) = self.refuses(check, now) {
                known.admission.standings.push(standing(check, false, balance));
                if check.enforced() {
                    known.refused_until = known.refused_until.max(Some(balance.resets));
                }
            } else {
                known.asks = known.asks.max(self.asks(check));
            }
        }
        known
    }

    /// Takes leased units that may be spent until `until`. Returns them and what is left.
    fn take_leased(
        &mut self,
        check: &Check,
        until: Monotonic,
        now: Monotonic,
    ) -> Option<(GrantedUnits, Balance)> {
        let policy = check.policy(&self.config)?;
        let Precision::Lease { ahead, max } = policy.precision else {
            return None;
        };
        let own_quota = policy.own_quota(check.counter.quota);
        let extent = LeaseBounds { ahead, max: max.get(), own_quota };
        self.leases.take(&check.counter, check.cost.get(), extent, until, now)
    }

    /// Why a request is refused without a call.
    pub(super) fn refuses(&self, check: &Check, now: Monotonic) -> Option<Balance> {
        if check.policy(&self.config).is_some_and(|policy| policy.count_denied) {
            // Only the store can count refused requests.
            return None;
        }
        let overrides = self.runtime_overrides(check);
        self.known.refuses(&check.counter, check.cost.get(), overrides, now)
    }

    /// A shadow policy asks in passing, unless the request must hold its units.
    fn asks(&self, check: &Check) -> Asks {
        let holds = check.policy(&self.config).is_some_and(Policy::holds);
        if !check.mode.is_awaited() && !holds { Asks::InPassing } else { Asks::Yes }
    }

    /// Refuses a request. It spends no units of the policies that would admit it.
    fn refuse(
        &mut self,
        checks: &[Check],
        mut standings: Vec<Standing>,
        mut until: Monotonic,
        now: Monotonic,
    ) -> Refusal {
        if standings.len() < checks.len() {
            // As nobody asks the store, what is remembered of the other counters holds.
            for check in checks {
                let counts_denied = check.policy(&self.config).is_some_and(|of| of.count_denied);
                if counts_denied || standings.iter().any(|standing| standing.is_of(check)) {
                    continue;
                }
                let overrides = self.runtime_overrides(check);
                let (counter, cost) = (&check.counter, check.cost.get());
                if let Some(balance) = self.known.refuses_for_good(counter, cost, overrides, now) {
                    if check.enforced() {
                        until = until.max(balance.resets);
                    }
                    standings.push(standing(check, false, balance));
                }
            }
            standings.sort_by_key(|standing| standing.policy);
        }
        for taken in standings.iter().filter(|standing| standing.granted) {
            if let Some(check) = checks.iter().find(|check| taken.is_of(check)) {
                self.leases.undo(&check.counter, check.cost.get());
            }
        }
        standings.retain(|standing| !standing.granted);
        self.telemetry.count_standings(
            // A request that is refused is not marked.
            standings.iter().filter(|standing| standing.mode != Mode::Mark),
        );
        Refusal { standings, until }
    }

    /// The wants of a request that may wait until `deadline`. It keeps only leased units that may
    /// still be spent then.
    fn wants(
        &mut self,
        mut checks: Vec<Check>,
        known: &[Standing],
        deadline: Monotonic,
        now: Monotonic,
    ) -> Vec<Want> {
        let mut wants: Vec<Want> = checks.drain(..).map(Want::from).collect();
        self.scratch.keep(checks);
        for want in &mut wants {
            match known.iter().find(|standing| standing.is_of(&want.check)) {
                None => {}
                Some(&Standing { granted: false, balance, .. }) => {
                    want.stage = Stage::Refused { balance, by_store: false };
                }
                Some(_) => {
                    self.leases.undo(&want.check.counter, want.check.cost.get());
                    want.taken = self.take_leased(&want.check, deadline, now);
                    want.stage = if want.taken.is_some() { Stage::Taken } else { Stage::Open };
                }
            }
        }
        wants
    }
}
