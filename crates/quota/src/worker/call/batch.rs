//! One call: the reservations that waiting requests share, and its body.
//!
//! Requests for one counter share a reservation if they cost the same. If different costs shared
//! one, the store might grant a rest that is too small for the next request. Other workers would
//! then see a spent counter until the refund. A counter has at most [`MAX_COSTS`] reservations in a
//! call, and further costs share the last one, so that no client can fill a call by itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::{
    Adjustment, Grant, MAX_BODY, MAX_ITEMS, MAX_UNITS, Reservation, ReserveRequest,
};

use super::faults::Misread;
use crate::config::Config;
use crate::evaluate::{Check, Counter};
use crate::time::Monotonic;
use crate::worker::lease::{Leases, Occasion};
use crate::worker::requests::Want;

/// Most refunds and charges in a call, so that they and one request's reservations always fit its
/// body.
pub(crate) const MAX_ADJUSTMENTS: usize = 96;
/// Most charges in a call, so that refunds always have room.
pub(super) const MAX_CHARGES: usize = MAX_ADJUSTMENTS / 2;
/// Most reservations of one counter in a call.
pub(crate) const MAX_COSTS: usize = 8;
/// Bytes of a reservation in the body, its key not included. A fixed window never needs more. Other
/// windows may need 81 more, for which the other half of the body has room.
const ITEM_BYTES: usize = 208;
/// The same of what a worker says of its slots.
const SLOTS_ITEM_BYTES: usize = 448;

/// The reservations of a call, merged by counter and cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    reserved: Vec<Reserved>,
    /// The index of the first reservation of each counter that a request waits for. Most calls have
    /// few, which are compared sooner than hashed.
    first: BTreeMap<Counter, usize>,
    /// What it says of slots, after the reservations.
    slots: Vec<Reservation>,
    bytes: usize,
}

/// A reservation of a call: what it asks for, and what the reply granted.
#[derive(Clone, Debug)]
pub(crate) struct Reserved {
    pub(super) counter: Counter,
    /// The index of the first reservation of the same counter.
    pub(super) first: usize,
    /// The index of the next one.
    pub(super) next: Option<usize>,
    /// Units for the requests that wait.
    pub(super) want: u64,
    /// The smallest cost among these requests.
    pub(super) min: u64,
    /// Units to prefetch for a lease.
    pub(super) spare: u64,
    pub(super) count_denied: bool,
    /// Only policies that never refuse need it: those that mark, or in shadow mode.
    shadow: bool,
    /// The quota may differ from the policy's.
    own_quota: bool,
    /// With `count_denied`: the costs, out of `want`, of requests that count: admitted, or refused
    /// by this policy.
    pub(super) counted: u64,
}

impl Reserved {
    /// A reservation of `counter` that asks for nothing yet.
    const fn of(counter: Counter, first: usize) -> Self {
        Self {
            counter,
            first,
            next: None,
            want: 0,
            min: 0,
            spare: 0,
            count_denied: false,
            shadow: false,
            own_quota: false,
            counted: 0,
        }
    }

    /// A request with this cost counts, admitted or refused by this policy.
    pub(super) const fn count(&mut self, cost: u64) {
        self.counted = self.counted.saturating_add(cost);
    }

    /// Its item in the body of the call.
    fn message(&self) -> Reservation {
        let (kind, window_s, offset_s) = self.counter.window.parts();
        Reservation {
            key: Arc::clone(&self.counter.key),
            kind,
            window_s,
            offset_s,
            quota: self.counter.quota,
            want: self.want,
            min: self.min,
            spare: self.spare,
            count_denied: self.count_denied,
            shadow: self.shadow,
            own_quota: self.own_quota,
            holding: None,
        }
    }

    /// Checks a grant. Numbers that no counter can have fail this reservation alone: its units are
    /// not spent, and other counters of the call are not affected.
    ///
    /// # Errors
    /// The grant is larger than the reservation, so that the whole reply is discredited.
    fn read(&self, grant: Result<Grant, String>) -> Result<Result<Grant, String>, Misread> {
        let grant = match grant {
            Ok(grant) => grant,
            Err(why) => return Ok(Err(why)),
        };
        let Grant { granted, used, quota, reset_ms, window, window_s, .. } = grant;
        let asked = self.want.saturating_add(self.spare);
        if granted > asked {
            return Err(Misread::TooMuch { granted, asked });
        }
        let is_sound = granted <= used
            && [used, quota, window].into_iter().all(|n| n <= MAX_UNITS)
            && reset_ms <= self.counter.window.longest_reset_ms()
            && window_s <= self.counter.window.seconds();
        Ok(if is_sound {
            Ok(grant)
        } else {
            Err(format!("no counter can have these numbers: {grant:?}"))
        })
    }
}

/// Checks what the store grants of slots, as [`Reserved::read`] does.
fn read_slots(
    asked: &Reservation,
    grant: Result<Grant, String>,
) -> Result<Result<Grant, String>, Misread> {
    let grant = match grant {
        Ok(grant) => grant,
        Err(why) => return Ok(Err(why)),
    };
    if grant.granted > asked.want {
        return Err(Misread::TooMuch { granted: grant.granted, asked: asked.want });
    }
    let Grant { granted, used, quota, window, waiting, .. } = grant;
    let is_sound =
        granted <= used && [used, quota, window, waiting].iter().all(|n| *n <= MAX_UNITS);
    Ok(if is_sound {
        Ok(grant)
    } else {
        Err(format!("no slots can have these numbers: {grant:?}"))
    })
}

impl Batch {
    /// Adds all wants of a request, or none and returns `false` if they do not fit beside `others`
    /// items. A request that no call could hold gets a call of its own with as many as fit, in the
    /// order of the policies. The others stay open: `on_failure` decides for their policies.
    pub(crate) fn join(&mut self, wants: &mut [Want], config: &Config, others: usize) -> bool {
        let open = || wants.iter().filter(|want| want.is_open());
        let bytes: usize = open().map(|want| want.check.counter.key.len()).sum();
        if !self.has_room(open().count(), bytes, others) && !self.is_empty() {
            return false;
        }
        for want in wants.iter_mut().filter(|want| want.is_open()) {
            if !self.has_room(1, want.check.counter.key.len(), others) {
                break;
            }
            want.reservation = Some(self.reserve(&want.check, config));
        }
        true
    }

    /// Prefetches units for leases: with the reservations of waiting requests, and for other pools
    /// that ran low, as far as there is room.
    pub(crate) fn prefetch(&mut self, leases: &mut Leases, others: usize, now: Monotonic) {
        if leases.is_empty() {
            return;
        }
        for reserved in &mut self.reserved {
            reserved.spare = leases.prefetch(&reserved.counter, Occasion::Request, now);
        }
        while let Some(counter) = leases.next_low() {
            if !self.has_room(1, counter.key.len(), others) {
                leases.still_low(counter);
                return;
            }
            let spare = leases.prefetch(&counter, Occasion::Refill, now);
            if spare > 0 {
                let own_quota = leases.own_quota(&counter);
                let next = Reserved::of(counter, self.reserved.len());
                self.push(Reserved { spare, own_quota, ..next });
            }
        }
    }

    fn has_room(&self, items: usize, key_bytes: usize, others: usize) -> bool {
        self.reserved.len() + self.slots.len() + items + others <= MAX_ITEMS
            && self.bytes + key_bytes + items * ITEM_BYTES <= MAX_BODY / 2
    }

    /// Whether it can also say something of the slots of the counter with this key.
    pub(crate) fn has_room_for_slots(&self, key: &str, others: usize) -> bool {
        self.has_room(1, key.len() + SLOTS_ITEM_BYTES, others)
    }

    /// Says what the worker holds of slots.
    pub(crate) fn say(&mut self, slots: Reservation) {
        self.bytes += slots.key.len() + SLOTS_ITEM_BYTES;
        self.slots.push(slots);
    }

    fn reserve(&mut self, check: &Check, config: &Config) -> usize {
        let cost = check.cost.get();
        let policy = check.policy(config);
        let count_denied = policy.is_some_and(|policy| policy.count_denied);
        let new = self.reserved.len();
        let (mut at, mut costs) = (self.first.get(&check.counter).copied(), 0);
        while let Some((index, reserved)) = at.and_then(|at| Some((at, self.reserved.get_mut(at)?)))
        {
            costs += 1;
            // If refusals count, the store counts the sum anyway.
            if reserved.min == cost || count_denied || costs == MAX_COSTS {
                reserved.want = reserved.want.saturating_add(cost).min(MAX_UNITS);
                reserved.min = reserved.min.min(cost);
                reserved.shadow &= !check.enforced();
                return index;
            }
            at = reserved.next;
            reserved.next.get_or_insert(new);
        }
        let first = *self.first.entry(check.counter.clone()).or_insert(new);
        self.push(Reserved {
            want: cost,
            min: cost,
            count_denied,
            shadow: !check.enforced(),
            own_quota: policy.is_some_and(|policy| policy.own_quota(check.counter.quota)),
            ..Reserved::of(check.counter.clone(), first)
        })
    }

    fn push(&mut self, reserved: Reserved) -> usize {
        self.bytes += reserved.counter.key.len() + ITEM_BYTES;
        self.reserved.push(reserved);
        self.reserved.len() - 1
    }

    /// Whether it has no reservations, and says nothing of slots.
    pub(crate) const fn is_empty(&self) -> bool {
        self.reserved.is_empty() && self.slots.is_empty()
    }

    /// Whether it says something of slots.
    pub(crate) const fn says_slots(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Whether it asks for slots.
    pub(crate) fn asks_for_slots(&self) -> bool {
        self.slots.iter().any(|said| said.want > 0)
    }

    /// Takes what it says of slots, once the call has ended.
    pub(crate) fn take_slots(&mut self) -> Vec<Reservation> {
        std::mem::take(&mut self.slots)
    }

    /// A request of this call is refused before the call returns. Its cost still counts.
    pub(crate) fn count(&mut self, reservation: usize, cost: u64) {
        if let Some(reserved) = self.reserved.get_mut(reservation) {
            reserved.count(cost);
        }
    }

    /// The request of its call. The store has `budget` for it.
    pub(crate) fn request(
        &self,
        refunds: Vec<Adjustment>,
        charges: Vec<Adjustment>,
        budget: Duration,
    ) -> ReserveRequest {
        ReserveRequest {
            budget_ms: u32::try_from(budget.as_millis()).unwrap_or(u32::MAX),
            refunds,
            charges,
            reservations: self
                .reserved
                .iter()
                .map(Reserved::message)
                .chain(self.slots.iter().cloned())
                .collect(),
        }
    }

    /// Checks the grants of a reply: one for each reservation, or why the reservation failed. Those
    /// of slots come last.
    ///
    /// # Errors
    /// Why it is not a reply to this call.
    pub(crate) fn check(
        &self,
        grants: Vec<Result<Grant, String>>,
    ) -> Result<Vec<Result<Grant, String>>, Misread> {
        let reservations = self.reserved.len() + self.slots.len();
        if grants.len() != reservations {
            return Err(Misread::Count { grants: grants.len(), reservations });
        }
        let (mut reserved, mut slots) = (self.reserved.iter(), self.slots.iter());
        let read = |grant| match reserved.next() {
            Some(reserved) => reserved.read(grant),
            None => match slots.next() {
                Some(slots) => read_slots(slots, grant),
                None => Err(Misread::Count { grants: reservations, reservations }),
            },
        };
        grants.into_iter().map(read).collect()
    }

    /// The reservations, in the order of the body.
    pub(crate) fn reserved(&self) -> &[Reserved] {
        &self.reserved
    }

    /// The reservations of a call that has ended.
    pub(crate) fn into_reserved(self) -> Vec<Reserved> {
        self.reserved
    }
}
