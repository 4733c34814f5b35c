//! The units that one call brought. Its requests take them in the order of their arrival.

use std::time::Duration;

use quotagate_protocol::{Grant, MAX_UNITS, Window};

use super::batch::Reserved;
use crate::decision::{Balance, GrantedUnits};
use crate::time::Monotonic;
use crate::worker::requests::Stage;

/// What a call brought, by reservation.
#[derive(Debug)]
pub(crate) struct Allocation(Vec<GrantShare>);

/// A reservation, and what is left of its grant.
#[derive(Debug)]
pub(crate) struct GrantShare {
    pub(super) reserved: Reserved,
    /// `None`: the reservation failed.
    pub(super) left: Option<Left>,
    /// The costs of its requests that are not decided yet.
    undecided: u64,
}

/// What is left of a grant.
#[derive(Debug)]
pub(crate) struct Left {
    /// Units that no request took.
    pub(super) units: GrantedUnits,
    /// What is left in the store.
    pub(super) balance: Balance,
    /// Whether some request wanted more than there was.
    pub(super) short: bool,
    /// With `count_denied`: whether more was counted than the counter can hold.
    full: bool,
}

impl Allocation {
    /// The grants of a call that left at `sent` and returned `now`, one for each reservation.
    pub(crate) fn new(
        reserved: Vec<Reserved>,
        grants: impl IntoIterator<Item = Option<Grant>>,
        sent: Monotonic,
        now: Monotonic,
    ) -> Self {
        let share = |(reserved, grant): (Reserved, Option<Grant>)| GrantShare {
            left: grant.map(|grant| Left::new(&reserved, grant, sent, now)),
            reserved,
            undecided: 0,
        };
        Self(reserved.into_iter().zip(grants).map(share).collect())
    }

    /// A request with this cost still needs a decision.
    pub(crate) fn expect(&mut self, reservation: usize, cost: u64) {
        if let Some(share) = self.0.get_mut(reservation) {
            share.undecided = share.undecided.saturating_add(cost);
        }
    }

    /// A request that was expected gets its decision now.
    pub(crate) fn decide(&mut self, reservation: usize, cost: u64) {
        if let Some(share) = self.0.get_mut(reservation) {
            share.undecided = share.undecided.saturating_sub(cost);
        }
    }

    /// What the call offers a request: [`Stage::Granted`], [`Stage::Refused`], or [`Stage::Open`]
    /// if the reservation failed.
    pub(crate) fn offer(&mut self, reservation: usize, cost: u64) -> Stage {
        let Some(left) = self.left(reservation) else { return Stage::Open };
        if cost <= left.units.amount {
            return Stage::Granted(reservation);
        }
        left.short = true;
        let balance = left.balance.plus(left.units.amount);
        let other = self.left_over(reservation, cost);
        other.map_or(Stage::Refused { balance, by_store: true }, Stage::Granted)
    }

    /// Another reservation of the same counter with enough units that its own requests cannot use.
    fn left_over(&self, reservation: usize, cost: u64) -> Option<usize> {
        let mut at = Some(self.0.get(reservation)?.reserved.first);
        while let Some((index, share)) = at.and_then(|at| Some((at, self.0.get(at)?))) {
            let free = share.left.as_ref().map_or(0, |Left { units, .. }| {
                // Its requests cannot use less than the smallest of their costs.
                let needed = if units.amount < share.reserved.min { 0 } else { share.undecided };
                units.amount.saturating_sub(needed)
            });
            if free >= cost {
                return Some(index);
            }
            at = share.reserved.next;
        }
        None
    }

    /// The window of a reservation, and what is left of its counter, including units that no
    /// request took yet.
    pub(crate) fn balance(&self, reservation: usize) -> Option<(u64, Balance)> {
        let Left { units, balance, .. } = self.0.get(reservation)?.left.as_ref()?;
        Some((units.window, balance.plus(units.amount)))
    }

    /// Takes `cost` units of a reservation that has them. Returns them and what is left.
    pub(crate) fn take(
        &mut self,
        reservation: usize,
        cost: u64,
    ) -> Option<(GrantedUnits, Balance)> {
        self.count(reservation, cost);
        let Left { units, balance, full, .. } = self.left(reservation)?;
        units.amount = units.amount.checked_sub(cost)?;
        Some((units.of(if *full { 0 } else { cost }), balance.plus(units.amount)))
    }

    /// A request with this cost counts, admitted or refused by this policy.
    pub(crate) fn count(&mut self, reservation: usize, cost: u64) {
        if let Some(share) = self.0.get_mut(reservation) {
            share.reserved.count(cost);
        }
    }

    /// Ends the allocation, after the last request.
    pub(crate) fn close(mut self) -> Vec<GrantShare> {
        // If one reservation of a counter was short, the counter is short, no matter which one the
        // store carried out last.
        let is_short = |share: &&GrantShare| share.left.as_ref().is_some_and(|left| left.short);
        let mut short: Vec<usize> =
            self.0.iter().filter(is_short).map(|share| share.reserved.first).collect();
        short.sort_unstable();
        for GrantShare { reserved, left, .. } in &mut self.0 {
            if let Some(left) = left {
                left.short |= short.binary_search(&reserved.first).is_ok();
            }
        }
        self.0
    }

    fn left(&mut self, reservation: usize) -> Option<&mut Left> {
        self.0.get_mut(reservation)?.left.as_mut()
    }
}

impl GrantShare {
    /// Units that the store took from the counter for requests that do not count.
    pub(super) fn rest(&self) -> u64 {
        let Reserved { want, counted, count_denied, .. } = self.reserved;
        match &self.left {
            None => 0,
            Some(left) if count_denied && left.full => 0,
            Some(_) if count_denied => want.saturating_sub(counted),
            Some(left) => left.units.amount,
        }
    }
}

impl Left {
    fn new(reserved: &Reserved, grant: Grant, sent: Monotonic, now: Monotonic) -> Self {
        let Grant { granted: amount, used, quota, reset_ms, window, window_s, .. } = grant;
        let (reset, remaining) = (Duration::from_millis(reset_ms), grant.left());
        let resets = now + reset;
        let whose = &reserved.counter.window;
        let window_s = if window_s > 0 { window_s } else { whose.seconds() };
        // A slice counts for a whole window after its own end.
        let refundable = match whose {
            Window::Sliding(sliding) => {
                now + whose.length() + Duration::from_millis(sliding.slice_ms())
            }
            Window::Fixed(_) | Window::Calendar(_) | Window::InFlight => resets,
        };
        Self {
            units: GrantedUnits {
                amount,
                window,
                spendable_until: sent + reset,
                resets: refundable,
            },
            balance: Balance { quota, remaining, resets, window_s },
            short: false,
            full: reserved.count_denied && used == MAX_UNITS,
        }
    }
}
