//! The decision on a request: what to do with it, where it stands with each policy, and which units
//! it holds.

use std::num::NonZeroU64;
use std::sync::Arc;

use quotagate_protocol::Mode;

use crate::config::{Config, Count};
use crate::evaluate::{Check, Counter};
use crate::request::allowance::Cost;
use crate::time::Monotonic;

/// What to do with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Let it through.
    Admit(Admission),
    /// Answer as `response.denied` says, 429 by default.
    Refuse(Refusal),
    /// Answer 503: the store failed, and this policy has `on_failure: deny`.
    Unavailable(Uncounted),
}

/// What policies say of an admitted request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// One for each policy that counted the request, marked it or, in shadow mode, would have
    /// refused it; in the order of the policies.
    pub standings: Vec<Standing>,
    /// Units that count only with certain responses.
    /// [`count_response`](Self::count_response) decides on them.
    pub held: Vec<Held>,
    /// Units that count, and that [`Worker::settle`](crate::worker::Worker::settle) corrects once
    /// the real cost is known.
    pub unsettled: Vec<Held>,
    /// Slots that it holds until its stream ends. Pass them to
    /// [`Worker::free`](crate::worker::Worker::free) then.
    pub slots: HeldSlots,
    /// The first policy that could not count the request because the store failed. Boxed because
    /// it is seldom there, and each request moves its admission several times.
    pub uncounted: Option<Box<Uncounted>>,
    /// Policies in shadow mode that have not counted the request: the store has not answered yet,
    /// or failed.
    pub pending: Vec<Uncounted>,
    /// Of a redirected request: the generation of the configuration that it arrived under.
    pub(crate) generation: u64,
}

/// Why and until when a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One for each policy that the worker knows enough about, in the order of the policies. At
    /// least one is enforced and refuses.
    pub standings: Vec<Standing>,
    /// When the last of the refusing policies resets.
    pub until: Monotonic,
}

/// What one policy says of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The index of the policy in the configuration.
    pub policy: usize,
    /// The counter.
    pub counter: Counter,
    /// Whether the policy grants the request's cost.
    pub granted: bool,
    /// Whether the store refused this very request. What the worker refuses by itself counts
    /// nowhere, whatever `count_denied` of its policy says.
    pub by_store: bool,
    /// Its mode when the request arrived. Later dials do not change that.
    pub mode: Mode,
    /// What the request costs, in units.
    pub cost: NonZeroU64,
    /// Until when the cost counts: the end of the window, or of the slice's time in a sliding
    /// window.
    pub counts_until: Monotonic,
    /// What is left after this request, including units that the worker has leased.
    pub balance: Balance,
}

/// What a counter has left in its current window, as far as the worker knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// The quota in force, in units.
    pub quota: u64,
    /// Units left.
    pub remaining: u64,
    /// The end of the window, never too early. For a sliding window: when units return.
    pub resets: Monotonic,
    /// The length of the window in seconds.
    pub window_s: u32,
}

/// A policy that has not counted a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uncounted {
    /// The index of the policy in the configuration.
    pub policy: usize,
    /// The counter: `<domain>:<policy>:{<partition>}`.
    pub key: Arc<str>,
}

/// Units of an admitted request whose policy counts by answer, or learns the real cost from it. The
/// answer spends them, [`Worker::refund`](crate::worker::Worker::refund) refunds them, or
/// [`Worker::settle`](crate::worker::Worker::settle) corrects them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The index of the policy in the configuration.
    pub policy: usize,
    /// The counter.
    pub counter: Counter,
    /// The units.
    pub units: GrantedUnits,
}

/// Slots that a request holds. Few requests hold any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "slots that nobody frees are lost"]
#[allow(clippy::box_collection, reason = "Every admission has this field, and few hold slots")]
pub struct HeldSlots(Option<Box<Vec<HeldSlot>>>);

/// Slots of one counter that a request holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldSlot {
    /// The index of the policy in the configuration.
    pub(crate) policy: usize,
    /// The counter's key.
    pub(crate) key: Arc<str>,
    /// How many.
    pub(crate) units: u64,
    /// Since when.
    pub(crate) since: Monotonic,
    /// The worker that counts them. Its successor does not.
    pub(crate) worker: u64,
}

impl HeldSlots {
    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Takes them out, to free them.
    pub fn take(&mut self) -> Self {
        Self(self.0.take())
    }

    pub(crate) fn push(&mut self, held: HeldSlot) {
        self.0.get_or_insert_default().push(held);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &HeldSlot> {
        self.0.iter().flat_map(|held| held.iter())
    }

    fn join(&mut self, other: Self) {
        if let Some(other) = other.0 {
            self.0.get_or_insert_default().extend(*other);
        }
    }

    fn split_off(&mut self, is_taken: impl Fn(usize) -> bool) -> Self {
        let Some(held) = self.0.as_deref_mut() else { return Self(None) };
        let taken: Vec<_> = held.extract_if(.., |it| is_taken(it.policy)).collect();
        if held.is_empty() {
            self.0 = None;
        }
        Self((!taken.is_empty()).then(|| Box::new(taken)))
    }
}

/// Units of one window of a counter that the store granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedUnits {
    /// How many.
    pub amount: u64,
    /// The number of the window that granted them.
    pub window: u64,
    /// Other requests may spend them until then, never after the end of the window.
    pub spendable_until: Monotonic,
    /// The end of the window, or of the slice's time in a sliding window; never too early. After
    /// it, refunds and charges have no effect.
    pub resets: Monotonic,
}

impl GrantedUnits {
    /// The same units, but this many.
    #[must_use]
    pub const fn of(self, amount: u64) -> Self {
        Self { amount, ..self }
    }
}

impl Balance {
    /// The same balance with this many more units left.
    #[must_use]
    pub const fn plus(self, units: u64) -> Self {
        Self { remaining: self.remaining.saturating_add(units), ..self }
    }
}

/// What a policy made of a request, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It counted a request that was admitted.
    Admitted,
    /// It refused a request.
    Refused,
    /// In shadow mode, it would have refused a request.
    ShadowRefused,
    /// It found no identity, whatever its `on_missing` says.
    MissingIdentity,
    /// It could not count a request because the store failed.
    StoreError,
    /// It decided without a call. The request counts under its other outcome, too.
    FromLedger,
    /// With `mode: mark`, it marked a request that was beyond its quota.
    Marked,
    /// Settled by `if_missing`: the response did not say its cost, or broke off. The request counts
    /// as admitted, too.
    SettledIfMissing,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Admitted,
        Self::Refused,
        Self::ShadowRefused,
        Self::MissingIdentity,
        Self::StoreError,
        Self::FromLedger,
        Self::Marked,
        Self::SettledIfMissing,
    ];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Refused => "refused",
            Self::ShadowRefused => "shadow_refused",
            Self::MissingIdentity => "missing_identity",
            Self::StoreError => "store_error",
            Self::FromLedger => "from_ledger",
            Self::Marked => "marked",
            Self::SettledIfMissing => "settled_if_missing",
        }
    }
}

impl Admission {
    /// Whether it, from before an internal redirect, stands for this check of the same request: the
    /// counter and the cost are the same, and what was counted still counts.
    pub(crate) fn covers(&self, check: &Check, config: &Config, now: Monotonic) -> bool {
        // The check has the `default` until the body is read, but it is the same body.
        let is_of_body =
            check.policy(config).is_some_and(|of| matches!(*of.cost, Cost::RequestJson { .. }));
        let counted = |standing: &Standing| {
            // A dial between the two passes changes the quota, and nothing that was counted.
            standing.policy == check.policy
                && standing.counter.key == check.counter.key
                && (standing.cost == check.cost || is_of_body)
                && now < standing.counts_until
        };
        // A pending policy is in shadow mode, so it admits nothing.
        let pending = |pending: &Uncounted| {
            pending.policy == check.policy && pending.key == check.counter.key
        };
        self.standings.iter().any(counted) || self.pending.iter().any(pending)
    }

    /// Takes out what these policies said and what they hold.
    pub(crate) fn split_off(&mut self, is_taken: impl Fn(usize) -> bool) -> Self {
        Self {
            standings: self.standings.extract_if(.., |it| is_taken(it.policy)).collect(),
            held: self.held.extract_if(.., |it| is_taken(it.policy)).collect(),
            unsettled: self.unsettled.extract_if(.., |it| is_taken(it.policy)).collect(),
            slots: self.slots.split_off(&is_taken),
            uncounted: self.uncounted.take_if(|it| is_taken(it.policy)),
            pending: self.pending.extract_if(.., |it| is_taken(it.policy)).collect(),
            generation: self.generation,
        }
    }

    /// Holds the units of a check until the response, if its policy does that.
    pub(crate) fn hold(&mut self, check: &Check, units: GrantedUnits, config: &Config) {
        let Some(policy) = check.policy(config).filter(|policy| policy.holds()) else { return };
        if units.amount > 0 {
            let held = Held { policy: check.policy, counter: check.counter.clone(), units };
            match policy.count {
                Count::Responses(_) => self.held.push(held),
                Count::All => self.unsettled.push(held),
            }
        }
    }

    /// All units that it holds, to [refund](crate::worker::Worker::refund) them.
    pub fn into_held(self) -> Vec<Held> {
        let mut held = self.held;
        held.extend(self.unsettled);
        held
    }

    /// Adds what other policies say of the same request: shadow policies that the store has now
    /// answered, or the policies of a request that was redirected.
    pub fn join(&mut self, counted: Self) {
        self.standings.extend(counted.standings);
        self.standings.sort_by_key(|standing| standing.policy);
        self.held.extend(counted.held);
        self.unsettled.extend(counted.unsettled);
        self.slots.join(counted.slots);
        self.uncounted = self.uncounted.take().or(counted.uncounted);
        self.pending.retain(|pending| !counted.pending.contains(pending));
        self.pending.extend(counted.pending);
        let counts = |policy| self.standings.iter().any(|standing| standing.policy == policy);
        self.pending.retain(|pending| !counts(pending.policy));
    }
}

impl Standing {
    /// Whether it is what the counter of `check` says.
    pub(crate) fn is_of(&self, check: &Check) -> bool {
        self.policy == check.policy && self.counter == check.counter
    }

    /// Whether the policy may refuse the request.
    pub fn enforced(&self) -> bool {
        self.mode == Mode::Enforce
    }
}

impl Refusal {
    /// The policies that refuse, in their order.
    pub fn violated(&self) -> impl Iterator<Item = &Standing> {
        self.standings.iter().filter(|standing| !standing.granted && standing.enforced())
    }
}
