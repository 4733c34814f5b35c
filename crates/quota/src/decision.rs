//! What becomes of a request, and what is known of it afterwards.

use std::rc::Rc;

use crate::evaluate::Counter;
use crate::time::Monotonic;

/// What to do with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Let it through.
    Admit(Admission),
    /// Answer 429.
    Refuse(Refusal),
    /// The store failed and this policy says `on_failure: deny`: answer 503.
    Unavailable(Uncounted),
}

/// Where a request stands that is let through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// With each policy that counted it or, in shadow mode, would have refused it, in the order of the policies.
    pub standings: Vec<Standing>,
    /// Units that it keeps only if it is answered as its policy says. [`answered`](Self::answered) settles them.
    pub held: Vec<Held>,
    /// The first policy that could not count it, because the store failed.
    pub uncounted: Option<Uncounted>,
    /// Policies in shadow mode that have not counted it: the store has not answered yet, or failed.
    pub pending: Vec<Uncounted>,
}

/// Why and until when a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// With the policies that are known, in the order of the policies; at least one is enforced and refuses.
    pub standings: Vec<Standing>,
    /// When the last of the refusing policies resets.
    pub until: Monotonic,
}

/// Where a request stands with one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The policy's place in the configuration.
    pub policy: usize,
    /// The counter: `<domain>:<policy>:{<partition>}`.
    pub key: Rc<str>,
    /// Whether the policy grants the request's cost.
    pub granted: bool,
    /// Whether it may refuse the request; what dials turned since its arrival changes nothing.
    pub enforced: bool,
    /// The quota in force, in units.
    pub quota: u64,
    /// Units left after this request, as far as the worker knows, those included that it holds itself.
    pub remaining: u64,
    /// The end of the window, never too early.
    pub resets: Monotonic,
}

/// A policy that has not counted a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uncounted {
    /// The policy's place in the configuration.
    pub policy: usize,
    /// The counter.
    pub key: Rc<str>,
}

/// Units that a request has got of a policy that counts by answer. They are refunded through
/// [`Worker::give_back`](crate::worker::Worker::give_back), or are spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The policy's place in the configuration.
    pub policy: usize,
    /// The counter.
    pub counter: Counter,
    /// The number of the window that granted them.
    pub window: u64,
    /// How many.
    pub units: u64,
    /// Until when another request may spend them.
    pub until: Monotonic,
    /// When that window ends, at the latest.
    pub ends: Monotonic,
}

/// What is counted of the decisions of a policy, for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It counted a request that was let through.
    Admitted,
    /// It refused a request.
    Refused,
    /// It would have refused a request, were it not in shadow mode.
    ShadowRefused,
    /// It found no identity, whatever its `on_missing` made of that.
    MissingIdentity,
    /// It could not count a request, because the store failed.
    StoreError,
    /// It admitted or refused, in shadow mode too, without a call. Such a request is counted by that outcome as well.
    FromLedger,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Admitted,
        Self::Refused,
        Self::ShadowRefused,
        Self::MissingIdentity,
        Self::StoreError,
        Self::FromLedger,
    ];

    /// Its name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Refused => "refused",
            Self::ShadowRefused => "shadow_refused",
            Self::MissingIdentity => "missing_identity",
            Self::StoreError => "store_error",
            Self::FromLedger => "from_ledger",
        }
    }
}

impl Admission {
    /// Policies that only count have been heard of, as `counted` says, while the request went on.
    pub fn join(&mut self, counted: Self) {
        self.standings.extend(counted.standings);
        self.standings.sort_by_key(|standing| standing.policy);
        self.held.extend(counted.held);
        self.uncounted = self.uncounted.take().or(counted.uncounted);
        self.pending.retain(|pending| !counted.pending.contains(pending));
        self.pending.extend(counted.pending);
        let counts = |policy| self.standings.iter().any(|standing| standing.policy == policy);
        self.pending.retain(|pending| !counts(pending.policy));
    }
}

impl Refusal {
    /// The policies that refuse, in their order.
    pub fn violated(&self) -> impl Iterator<Item = &Standing> {
        self.standings.iter().filter(|standing| !standing.granted && standing.enforced)
    }
}
