//! Invariants 1 to 3 over *all* histories of a small world: real workers and real messages, two or
//! three workers, a few requests, and every order, delay and loss of calls that the network allows.
//!
//! `stateright` was tried and does not fit. It identifies a state by its hash alone, but a worker
//! that differs only in the serial numbers of its calls behaves the same, so a state needs a
//! fingerprint of its own. It also brings a web server and forty crates along. The search itself
//! (`explore`) is the small part.
//!
//! `QUOTAGATE_MODEL=2` searches larger worlds; each search prints what it has visited
//! (`--nocapture`).

mod explore;
mod fingerprint;
mod network;
mod node;
mod properties;
mod steps;
mod worlds;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use quotagate_protocol::{Reservation, ReserveRequest};

use super::invariants::ModelStore;
use crate::config::Config;
use crate::evaluate::{Check, Counter};
use network::Repeats;
use node::ModelNode;
use properties::Property;

const TIMEOUT_MS: u64 = 50;
/// A request answered with this status counts, if the policy counts by status.
const COUNTED: u16 = 401;

/// What may arrive: the policies that apply, the cost, and how many of them.
type ArrivalKind = (&'static [usize], u64, u8);

/// A world to be searched.
#[derive(Clone)]
struct SearchSetup {
    config: Arc<Config>,
    workers: usize,
    requests: Vec<ArrivalKind>,
    /// Units of the first counter that others have taken before.
    taken: u64,
    /// The real costs that a request can turn out to have, if its policy settles.
    costs: &'static [u64],
    /// How many calls the host may report as failed, wrongly or not.
    faults: u8,
    /// How many clients may leave while they wait.
    departures: u8,
    /// How many requests that reached the upstream may be redirected: to a request of any kind, or
    /// to where no policy sees them.
    redirects: u8,
    /// How many workers may take up `published` instead of `config`.
    swaps: u8,
    published: Arc<Config>,
    /// The moments at which something happens, in milliseconds.
    moments: Vec<u64>,
    repeats: Repeats,
}

/// The key of a counter and the number of a window.
type Window = (Arc<str>, u64);

/// Everything, at one moment.
#[derive(Clone)]
struct SearchState {
    /// The index of the current moment.
    step: usize,
    store: ModelStore,
    nodes: Vec<Arc<ModelNode>>,
    /// Units let through, by the window that granted them: what is reserved, or less if the real
    /// cost is less.
    admitted: BTreeMap<Window, u64>,
    /// Units that real costs took beyond their reservations.
    charged: BTreeMap<Window, u64>,
    requests: Vec<u8>,
    faults: u8,
    departures: u8,
    redirects: u8,
    swaps: u8,
    /// The property that was violated on the way here.
    wrong: Option<Property>,
}

impl SearchSetup {
    fn start(&self) -> SearchState {
        let mut state = SearchState {
            step: 0,
            store: ModelStore::default(),
            nodes: (0..self.workers).map(|_| Arc::new(ModelNode::new(&self.config))).collect(),
            admitted: BTreeMap::new(),
            charged: BTreeMap::new(),
            requests: self.requests.iter().map(|(.., n)| *n).collect(),
            faults: self.faults,
            departures: self.departures,
            redirects: self.redirects,
            swaps: self.swaps,
            wrong: None,
        };
        if self.taken > 0 {
            let Counter { key, quota, window } = self.counter(0);
            let others = Reservation {
                key: Arc::clone(&key),
                window_s: window.seconds(),
                quota,
                want: self.taken,
                min: self.taken,
                ..Reservation::default()
            };
            let request = ReserveRequest {
                charges: vec![],
                budget_ms: 1,
                refunds: vec![],
                reservations: vec![others],
            };
            state.store.carry_out(&request, self.moments[0]);
            state.admitted.insert((key, self.current(0, 0)), self.taken);
        }
        state
    }

    /// The number of the window that runs at a moment.
    fn current(&self, step: usize, policy: usize) -> u64 {
        self.moments[step] / 1000 / u64::from(self.config.policies[policy].window.seconds())
    }

    fn counter(&self, policy: usize) -> Counter {
        let policy = &self.config.policies[policy];
        Counter {
            key: format!("d:{}:{{*}}", policy.name).into(),
            quota: policy.quota,
            window: policy.window.clone(),
        }
    }

    /// What a request of this kind asks for: under `published`, or under the configuration that
    /// every worker begins with.
    fn checks(&self, kind: usize, is_published: bool) -> Vec<Check> {
        let (policies, cost, _) = self.requests[kind];
        let cost = NonZeroU64::new(cost).unwrap();
        let config = if is_published { &self.published } else { &self.config };
        let check = |&policy: &usize| {
            let mut counter = self.counter(policy);
            let policy = config.index_from(&self.config, policy)?;
            let of = &config.policies[policy];
            counter.quota = of.quota;
            Some(Check { policy, counter, cost, mode: of.mode })
        };
        let mut checks: Vec<_> = policies.iter().filter_map(check).collect();
        checks.sort_by_key(|check| check.policy);
        checks
    }
}
