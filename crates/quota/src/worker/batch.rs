//! One call: the reservations that the waiting requests share, its body, and the grants it brought.

use std::collections::HashMap;
use std::time::Duration;

use crate::config::{Config, Mode, OnFailure, Policy};
use crate::decision::{Admission, Decision, Refusal, Standing, Uncounted};
use crate::evaluate::{Check, Counter};
use crate::time::Monotonic;
use crate::wire::{self, Grant, Outcome, Reservation, ReserveReply, ReserveRequest, Return};
use crate::worker::ledger::{Ledger, Verdict};
use crate::worker::returns::Returns;

/// Most returns that one call carries, so that they and one request's reservations always fit a body.
pub(crate) const MAX_CALL_RETURNS: usize = 96;
/// What a reservation takes in the body beside its key, at most.
const ITEM_BYTES: usize = 192;

/// One policy's wish within a call.
#[derive(Debug)]
pub(crate) struct Want {
    pub(crate) check: Check,
    /// The place of its reservation within the call, once it belongs to one.
    slot: usize,
    /// The window whose units the request has got, and when it ends.
    taken: Option<(u64, Monotonic)>,
}

impl Want {
    /// Gives back what the request got and will not use.
    pub(crate) fn give_back(self, returns: &mut Returns) {
        let Self { check: Check { counter, cost, .. }, taken, .. } = self;
        if let Some((window, ends)) = taken {
            returns.add(counter.key, counter.window.seconds(), window, cost.get(), ends);
        }
    }
}

impl From<Check> for Want {
    fn from(check: Check) -> Self {
        Self { check, slot: usize::MAX, taken: None }
    }
}

/// The reservations of a call, merged by counter.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    reserved: Vec<Reserved>,
    slots: HashMap<Counter, usize>,
    bytes: usize,
}

#[derive(Debug)]
struct Reserved {
    counter: Counter,
    want: u64,
    min: u64,
}

impl Batch {
    /// Joins a request's wishes to the batch, all or none: `false` if they do not fit beside `others` items.
    pub(crate) fn join(&mut self, wants: &mut [Want], others: usize) -> bool {
        let bytes: usize = wants.iter().map(|want| want.check.counter.key.len() + ITEM_BYTES).sum();
        let items = self.reserved.len() + wants.len() + others;
        if items > wire::MAX_ITEMS || self.bytes + bytes > wire::MAX_BODY / 2 {
            return false;
        }
        self.bytes += bytes;
        for want in wants {
            want.slot = self.reserve(&want.check);
        }
        true
    }

    fn reserve(&mut self, check: &Check) -> usize {
        let cost = check.cost.get();
        if let Some(&slot) = self.slots.get(&check.counter) {
            if let Some(reserved) = self.reserved.get_mut(slot) {
                reserved.want = reserved.want.saturating_add(cost).min(wire::MAX_UNITS);
                reserved.min = reserved.min.min(cost);
            }
            return slot;
        }
        let slot = self.reserved.len();
        self.slots.insert(check.counter.clone(), slot);
        self.reserved.push(Reserved { counter: check.counter.clone(), want: cost, min: cost });
        slot
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.reserved.is_empty()
    }

    /// The body of the call.
    pub(crate) fn body(&self, returns: &[Return<std::rc::Rc<str>>], budget: Duration) -> Vec<u8> {
        let request = ReserveRequest {
            budget_ms: u32::try_from(budget.as_millis()).unwrap_or(u32::MAX),
            returns: returns
                .iter()
                .map(|r| Return { key: &*r.key, window_s: r.window_s, window: r.window, units: r.units })
                .collect(),
            reservations: self
                .reserved
                .iter()
                .map(|r| Reservation {
                    key: &*r.counter.key,
                    window_s: r.counter.window.seconds(),
                    offset_s: r.counter.window.offset(),
                    quota: r.counter.quota,
                    want: r.want,
                    min: r.min,
                    spare: 0,
                    count_denied: false,
                })
                .collect(),
        };
        // Writing numbers and strings into memory cannot fail; an empty body would be refused by the store.
        serde_json::to_vec(&request).unwrap_or_default()
    }

    /// What the reply granted, or `None` if it is no reply to this batch.
    pub(crate) fn granted(self, body: &[u8], now: Monotonic) -> Option<Pools> {
        let reply: ReserveReply = serde_json::from_slice(body).ok()?;
        if reply.grants.len() != self.reserved.len() {
            return None;
        }
        let pools = self.reserved.into_iter().zip(reply.grants);
        Some(Pools(pools.map(|(reserved, outcome)| Pool::new(reserved, outcome, now)).collect()))
    }
}

/// The units that one call brought, by reservation, while they are handed out.
#[derive(Debug)]
pub(crate) struct Pools(Vec<Pool>);

#[derive(Debug)]
struct Pool {
    counter: Counter,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Failed,
    Granted {
        /// Units not handed out yet.
        units: u64,
        /// Units that nobody has reserved.
        left: u64,
        quota: u64,
        window: u64,
        ends: Monotonic,
        /// Whether some request wanted more than there was.
        short: bool,
    },
}

impl Pool {
    fn new(reserved: Reserved, outcome: Outcome, now: Monotonic) -> Self {
        let content = match outcome {
            Outcome::Granted(grant) if is_sound(&grant, &reserved) => Content::Granted {
                units: grant.granted,
                left: grant.left(),
                quota: grant.quota,
                window: grant.window,
                ends: now + Duration::from_millis(grant.reset_ms),
                short: false,
            },
            Outcome::Granted(_) | Outcome::Failed(_) => Content::Failed,
        };
        Self { counter: reserved.counter, content }
    }
}

/// Whether a grant can be an answer to this reservation. One that cannot is not spent: whoever sent it may
/// have counted anything.
fn is_sound(grant: &Grant, reserved: &Reserved) -> bool {
    grant.granted <= reserved.want
        && grant.used <= wire::MAX_UNITS
        && grant.quota <= wire::MAX_UNITS
        && grant.window <= wire::MAX_UNITS
        && grant.reset_ms <= u64::from(reserved.counter.window.seconds()) * 1000
}

/// The policy of a wish, unless it only counts.
fn enforced<'a>(want: &Want, config: &'a Config) -> Option<&'a Policy> {
    config.policies.get(want.check.policy).filter(|policy| policy.mode == Mode::Enforce)
}

impl Pools {
    /// Whether at least one reservation was carried out.
    pub(crate) fn any_usable(&self) -> bool {
        self.0.iter().any(|pool| matches!(pool.content, Content::Granted { .. }))
    }

    /// Decides one request: it takes its units of every policy, or, if one that is enforced refuses or fails
    /// closed, of none. Where a reservation failed, what the ledger knew before still holds.
    pub(crate) fn settle(
        &mut self,
        wants: &mut [Want],
        config: &Config,
        ledger: &Ledger,
        now: Monotonic,
    ) -> Decision {
        let mut known = Vec::new();
        let mut violated = false;
        let mut until = Monotonic::default();
        let (mut uncounted, mut unavailable) = (None, None);
        for want in wants.iter() {
            let enforced = enforced(want, config);
            match self.0.get_mut(want.slot).map(|pool| &mut pool.content) {
                Some(Content::Granted { units, ends, short, .. }) if want.check.cost.get() > *units => {
                    *short = true;
                    if enforced.is_some() {
                        violated = true;
                        until = until.max(*ends);
                    }
                }
                Some(Content::Granted { .. }) => {}
                Some(Content::Failed) | None => {
                    let Some(policy) = enforced else { continue };
                    let Check { policy: place, counter, cost } = &want.check;
                    if let Verdict::Refuse { left, quota, ends } = ledger.last_word(counter, cost.get(), now)
                    {
                        let key = std::rc::Rc::clone(&counter.key);
                        known.push(Standing {
                            policy: *place,
                            key,
                            granted: false,
                            quota,
                            remaining: left,
                            resets: ends,
                        });
                        violated = true;
                        until = until.max(ends);
                    } else {
                        let failed = Uncounted { policy: *place, key: std::rc::Rc::clone(&counter.key) };
                        if policy.on_failure == OnFailure::Deny {
                            unavailable = Some(failed);
                        } else {
                            uncounted.get_or_insert(failed);
                        }
                    }
                }
            }
        }
        if violated {
            known.extend(self.standings(wants, config));
            known.sort_by_key(|standing| standing.policy);
            return Decision::Refuse(Refusal { standings: known, until });
        }
        if let Some(failed) = unavailable {
            return Decision::Unavailable(failed);
        }
        self.spend(wants);
        Decision::Admit(Admission { standings: self.standings(wants, config), held: Vec::new(), uncounted })
    }

    fn spend(&mut self, wants: &mut [Want]) {
        for want in wants {
            if let Some(Pool { content: Content::Granted { units, window, ends, .. }, .. }) =
                self.0.get_mut(want.slot)
                && let Some(rest) = units.checked_sub(want.check.cost.get())
            {
                *units = rest;
                want.taken = Some((*window, *ends));
            }
        }
    }

    /// Where the enforced policies stand now, those whose reservation failed left out.
    fn standings(&self, wants: &[Want], config: &Config) -> Vec<Standing> {
        let known = wants.iter().filter(|want| enforced(want, config).is_some()).filter_map(|want| {
            let Content::Granted { units, left, quota, ends, .. } = self.0.get(want.slot)?.content else {
                return None;
            };
            let Check { policy, counter, .. } = &want.check;
            let granted = want.taken.is_some() || want.check.cost.get() <= units;
            let remaining = left.saturating_add(units);
            let key = std::rc::Rc::clone(&counter.key);
            Some(Standing { policy: *policy, key, granted, quota, remaining, resets: ends })
        });
        known.collect()
    }

    /// Ends the call: what nobody took goes back, and the ledger learns what is left.
    pub(crate) fn close(self, ledger: &mut Ledger, returns: &mut Returns, now: Monotonic) {
        for Pool { counter, content } in self.0 {
            let Content::Granted { units, left, quota, window, ends, short } = content else { continue };
            ledger.learn(&counter, left.saturating_add(units), quota, ends, short, now);
            if units > 0 {
                returns.add(counter.key, counter.window.seconds(), window, units, ends);
            }
        }
    }
}
