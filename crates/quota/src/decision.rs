//! What becomes of a request.

use crate::time::Monotonic;

/// What to do with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Let it through and say where it stands; nothing to say if nobody counted it.
    Admit(Vec<Standing>),
    /// Answer 429.
    Refuse(Refusal),
    /// The store failed and a policy says `on_failure: deny`: answer 503.
    Unavailable,
}

/// Where a request stands with one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The policy's place in the configuration.
    pub policy: usize,
    /// The quota in force, in units.
    pub quota: u64,
    /// Units left after this request, as far as the worker knows.
    pub remaining: u64,
    /// The end of the window, never too early.
    pub resets: Monotonic,
}

/// Why and until when a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The policies that are known, refusing ones included.
    pub standings: Vec<Standing>,
    /// The policies that refuse, by their place in the configuration; at least one.
    pub violated: Vec<usize>,
    /// When the last of the refusing policies resets.
    pub until: Monotonic,
}
