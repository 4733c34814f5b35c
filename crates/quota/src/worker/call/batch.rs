//! One call: the reservations that the waiting requests share, and its body.
//!
//! Requests for one counter share a reservation where they cost the same. Of a sum of several costs the store would
//! grant what is left to a request for which it is too little, and others would take the counter for spent until
//! that has come back. With more than [`MAX_COSTS`] different costs of a counter the rest share one all the same, so
//! that no client can fill a call with its own.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use crate::config::Config;
use crate::decision::Outcome;
use crate::evaluate::{Check, Counter};
use crate::protocol::{self, Grant, Refund, Reservation, ReserveReply, ReserveRequest};
use crate::time::Monotonic;
use crate::worker::call::faults::Misread;
use crate::worker::known::ledger::Spent;
use crate::worker::lease::Leases;
use crate::worker::lease::pool::{Occasion, Taken};

/// Most refunds that one call carries, so that they and one request's reservations always fit a body.
pub(crate) const MAX_CALL_REFUNDS: usize = 96;
/// Most reservations of one counter in a call.
pub(crate) const MAX_COSTS: usize = 8;
/// What a reservation takes in the body beside its key, at most.
const ITEM_BYTES: usize = 192;

/// One policy's wish of a request.
#[derive(Clone, Debug)]
pub(crate) struct Want {
    pub(crate) check: Check,
    pub(crate) state: State,
    /// What the policy made of the request, for statistics, and whether without a call.
    pub(crate) outcome: Option<(Outcome, bool)>,
}

impl Want {
    /// The place in its call that it is at, and what it costs; `None` where no call is asked for it.
    pub(crate) fn asked(&self) -> Option<(usize, u64)> {
        if let State::Asked(slot) = self.state { Some((slot, self.check.cost.get())) } else { None }
    }
}

/// How far a wish is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    /// It holds nothing and is in no call.
    Open,
    /// It is in a call, at this place.
    Asked(usize),
    /// It has its units.
    Taken(Taken),
    /// It was refused without a call, by a policy that only counts.
    Spent(Spent),
}

impl From<Check> for Want {
    fn from(check: Check) -> Self {
        Self { check, state: State::Open, outcome: None }
    }
}

/// The reservations of a call, merged by counter and cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    reserved: Vec<Reserved>,
    /// The place of the first reservation of each counter that a request waits for.
    slots: HashMap<Counter, usize>,
    bytes: usize,
}

/// A reservation.
#[derive(Clone, Debug)]
pub(crate) struct Reserved {
    pub(crate) counter: Counter,
    /// The place of the first reservation of its counter.
    pub(crate) first: usize,
    /// The place of the next.
    pub(crate) next: Option<usize>,
    pub(crate) want: u64,
    /// The smallest cost among its requests.
    pub(crate) min: u64,
    /// Asked for ahead of need.
    pub(crate) spare: u64,
    pub(crate) count_denied: bool,
    /// Only requests in shadow mode wait for it.
    pub(crate) shadow: bool,
    /// With `count_denied`: of `want`, what requests cost that it counts: admitted, or refused by this policy.
    pub(crate) counted: u64,
}

impl Reserved {
    /// Nothing of `counter` yet.
    fn of(counter: Counter) -> Self {
        Self {
            counter,
            first: 0,
            next: None,
            want: 0,
            min: 0,
            spare: 0,
            count_denied: false,
            shadow: false,
            counted: 0,
        }
    }

    /// A grant, or why there is none. Numbers that no counter can have are not spent, for whoever sent them may have
    /// counted anything; other counters of the call need not suffer for it.
    fn read(&self, grant: Result<Grant, String>) -> Result<Result<Grant, String>, Misread> {
        let grant = match grant {
            Ok(grant) => grant,
            Err(why) => return Ok(Err(why)),
        };
        let Grant { granted, used, quota, reset_ms, window } = grant;
        let asked = self.want.saturating_add(self.spare);
        if granted > asked {
            return Err(Misread::TooMuch { granted, asked });
        }
        let length_ms = u64::from(self.counter.window.seconds()) * 1000;
        let is_sound = granted <= used
            && [used, quota, window].into_iter().all(|n| n <= protocol::MAX_UNITS)
            && reset_ms <= length_ms;
        Ok(if is_sound { Ok(grant) } else { Err(format!("no counter can be so: {grant:?}")) })
    }
}

impl Batch {
    /// Joins a request's wishes to the batch, all or none: `false` if they do not fit beside `others` items.
    pub(crate) fn join(&mut self, wants: &mut [Want], config: &Config, others: usize) -> bool {
        let open = |want: &&Want| matches!(want.state, State::Open);
        let bytes: usize = wants.iter().filter(open).map(|want| want.check.counter.key.len()).sum();
        if !self.has_room(wants.iter().filter(open).count(), bytes, others) {
            return false;
        }
        for want in wants.iter_mut().filter(|want| open(&&**want)) {
            want.state = State::Asked(self.reserve(&want.check, config));
        }
        true
    }

    /// Asks for units ahead of need: beside what waits, and where nobody does, as far as there is room.
    pub(crate) fn ask_ahead(&mut self, leases: &mut Leases, others: usize, now: Monotonic) {
        if leases.is_empty() {
            return;
        }
        for reserved in &mut self.reserved {
            reserved.spare = leases.ask(&reserved.counter, Occasion::Waiting, now);
        }
        while let Some(counter) = leases.next_low() {
            if !self.has_room(1, counter.key.len(), others) {
                leases.still_low(counter);
                return;
            }
            let spare = leases.ask(&counter, Occasion::Nobody, now);
            if spare > 0 {
                self.push(Reserved { spare, first: self.reserved.len(), ..Reserved::of(counter) });
            }
        }
    }

    fn has_room(&self, items: usize, key_bytes: usize, others: usize) -> bool {
        self.reserved.len() + items + others <= protocol::MAX_ITEMS
            && self.bytes + key_bytes + items * ITEM_BYTES <= protocol::MAX_BODY / 2
    }

    fn reserve(&mut self, check: &Check, config: &Config) -> usize {
        let cost = check.cost.get();
        let count_denied = config.policies.get(check.policy).is_some_and(|policy| policy.count_denied);
        let new = self.reserved.len();
        let (mut slot, mut costs) = (self.slots.get(&check.counter).copied(), 0);
        while let Some(place) = slot {
            let Some(reserved) = self.reserved.get_mut(place) else { break };
            costs += 1;
            // What is refused is counted as a sum anyway where refusals count.
            if reserved.min == cost || count_denied || costs == MAX_COSTS {
                reserved.want = reserved.want.saturating_add(cost).min(protocol::MAX_UNITS);
                reserved.min = reserved.min.min(cost);
                reserved.shadow &= !check.enforced;
                return place;
            }
            slot = reserved.next;
            reserved.next.get_or_insert(new);
        }
        let first = *self.slots.entry(check.counter.clone()).or_insert(new);
        self.push(Reserved {
            want: cost,
            min: cost,
            count_denied,
            shadow: !check.enforced,
            first,
            ..Reserved::of(check.counter.clone())
        })
    }

    fn push(&mut self, reserved: Reserved) -> usize {
        self.bytes += reserved.counter.key.len() + ITEM_BYTES;
        self.reserved.push(reserved);
        self.reserved.len() - 1
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.reserved.is_empty()
    }

    /// A request of this call is decided before the call is, and what it costs counts all the same.
    pub(crate) fn counts(&mut self, slot: usize, cost: u64) {
        if let Some(reserved) = self.reserved.get_mut(slot) {
            reserved.counted = reserved.counted.saturating_add(cost);
        }
    }

    /// The body of the call.
    pub(crate) fn body(&self, refunds: &[Refund<Rc<str>>], budget: Duration) -> Vec<u8> {
        let refunds = refunds.iter().map(|r| Refund {
            key: &*r.key,
            window_s: r.window_s,
            window: r.window,
            units: r.units,
        });
        let reservations = self.reserved.iter().map(|r| Reservation {
            key: &*r.counter.key,
            window_s: r.counter.window.seconds(),
            offset_s: r.counter.window.offset(),
            quota: r.counter.quota,
            want: r.want,
            min: r.min,
            spare: r.spare,
            count_denied: r.count_denied,
            shadow: r.shadow,
        });
        let request = ReserveRequest {
            budget_ms: u32::try_from(budget.as_millis()).unwrap_or(u32::MAX),
            refunds: refunds.collect(),
            reservations: reservations.collect(),
        };
        // Writing numbers and strings into memory cannot fail; an empty body would be refused by the store.
        serde_json::to_vec(&request).unwrap_or_default()
    }

    /// The version of the dials that a reply tells, and what it says of each reservation: a grant, or why there is none.
    ///
    /// # Errors
    /// Why it is no reply to this batch.
    pub(crate) fn read(&self, body: &[u8]) -> Result<(u64, Vec<Result<Grant, String>>), Misread> {
        let reply: ReserveReply =
            serde_json::from_slice(body).map_err(|error| Misread::Form(error.to_string()))?;
        let (grants, reservations) = (reply.grants.len(), self.reserved.len());
        if grants != reservations {
            return Err(Misread::Count { grants, reservations });
        }
        let each = self.reserved.iter().zip(reply.grants).map(|(reserved, outcome)| reserved.read(outcome));
        Ok((reply.dials, each.collect::<Result<_, _>>()?))
    }

    /// Its reservations, in the order of the body.
    pub(crate) fn reserved(&self) -> &[Reserved] {
        &self.reserved
    }

    /// The same, when it has ended.
    pub(crate) fn into_reserved(self) -> Vec<Reserved> {
        self.reserved
    }
}
