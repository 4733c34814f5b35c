//! The units that one call brought, while they are handed out.

use std::time::Duration;

use crate::protocol::{self, Grant};
use crate::time::Monotonic;
use crate::worker::call::batch::Reserved;
use crate::worker::known::ledger::{Heard, Spent};
use crate::worker::lease::pool::{Taken, Units};

/// What a call brought, by reservation.
#[derive(Debug)]
pub(crate) struct Pools(Vec<Pool>);

/// What one reservation brought.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) reserved: Reserved,
    /// `None`: it failed.
    pub(crate) granted: Option<Granted>,
    /// What its requests cost that are not decided yet.
    open: u64,
}

#[derive(Debug)]
pub(crate) struct Granted {
    /// Granted and not handed out yet.
    pub(crate) units: u64,
    pub(crate) heard: Heard,
    /// Until when units may be spent by requests that did not wait for them.
    pub(crate) until: Monotonic,
    /// Whether some request wanted more than there was.
    pub(crate) short: bool,
    /// With `count_denied`: whether more was counted than the counter can hold.
    full: bool,
}

/// What a pool says to a request that costs so much.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Offer {
    /// There is enough at this place.
    Enough(usize),
    /// There is not.
    Short(Spent),
    /// Nobody knows.
    Failed,
}

impl Pools {
    /// The grants of a call that left at `sent` and returned `now`, one a reservation.
    pub(crate) fn new(
        reserved: Vec<Reserved>,
        grants: impl IntoIterator<Item = Option<Grant>>,
        sent: Monotonic,
        now: Monotonic,
    ) -> Self {
        let pool = |(reserved, grant): (Reserved, Option<Grant>)| Pool {
            granted: grant.map(|grant| Granted::new(&reserved, grant, sent, now)),
            reserved,
            open: 0,
        };
        Self(reserved.into_iter().zip(grants).map(pool).collect())
    }

    /// A request of a reservation is still to be decided, which costs so much.
    pub(crate) fn expects(&mut self, slot: usize, cost: u64) {
        if let Some(pool) = self.0.get_mut(slot) {
            pool.open = pool.open.saturating_add(cost);
        }
    }

    /// One that was expected is decided now.
    pub(crate) fn decides(&mut self, slot: usize, cost: u64) {
        if let Some(pool) = self.0.get_mut(slot) {
            pool.open = pool.open.saturating_sub(cost);
        }
    }

    /// What there is for a request, and notes if that is too little.
    pub(crate) fn offer(&mut self, slot: usize, cost: u64) -> Offer {
        let Some(granted) = self.granted(slot) else { return Offer::Failed };
        if cost <= granted.units {
            return Offer::Enough(slot);
        }
        granted.short = true;
        let standing = granted.standing();
        self.left_over(slot, cost).map_or(Offer::Short(standing), Offer::Enough)
    }

    /// Where another reservation of the same counter has units enough that its own requests cannot use.
    fn left_over(&self, slot: usize, cost: u64) -> Option<usize> {
        let mut place = Some(self.0.get(slot)?.reserved.first);
        while let Some(pool) = place.and_then(|place| self.0.get(place)) {
            let free = pool.granted.as_ref().map_or(0, |granted| {
                // Less than any of its requests costs is of no use to them.
                if granted.units < pool.reserved.min {
                    granted.units
                } else {
                    granted.units.saturating_sub(pool.open)
                }
            });
            if free >= cost {
                return place;
            }
            place = pool.reserved.next;
        }
        None
    }

    /// What is left of a counter, units included that are not handed out yet, and of which window.
    pub(crate) fn heard(&mut self, slot: usize) -> Option<Heard> {
        let Granted { units, heard, .. } = self.granted(slot)?;
        Some(Heard { left: heard.left.saturating_add(*units), ..*heard })
    }

    /// Hands out `cost` units of a pool that has them.
    pub(crate) fn take(&mut self, slot: usize, cost: u64) -> Option<Taken> {
        self.counts(slot, cost);
        let granted = self.granted(slot)?;
        granted.units = granted.units.checked_sub(cost)?;
        let Heard { left, quota, window, ends } = granted.heard;
        let units = Units { units: if granted.full { 0 } else { cost }, window, until: granted.until, ends };
        Some(Taken { units, quota, remaining: left.saturating_add(granted.units) })
    }

    /// A request counts that costs so much, admitted or refused by this policy.
    pub(crate) fn counts(&mut self, slot: usize, cost: u64) {
        if let Some(pool) = self.0.get_mut(slot) {
            pool.reserved.counted = pool.reserved.counted.saturating_add(cost);
        }
    }

    /// The pools, once everybody has got what is his.
    pub(crate) fn into_pools(mut self) -> Vec<Pool> {
        // Too little for one cost is said of the counter, by whichever of its reservations was carried out last.
        let is_short = |pool: &Pool| pool.granted.as_ref().is_some_and(|granted| granted.short);
        let mut short: Vec<usize> =
            self.0.iter().filter(|pool| is_short(pool)).map(|pool| pool.reserved.first).collect();
        short.sort_unstable();
        for pool in &mut self.0 {
            if let Some(granted) = &mut pool.granted {
                granted.short |= short.binary_search(&pool.reserved.first).is_ok();
            }
        }
        self.0
    }

    fn granted(&mut self, slot: usize) -> Option<&mut Granted> {
        self.0.get_mut(slot)?.granted.as_mut()
    }
}

impl Pool {
    /// Units that were taken of the counter for requests that do not count.
    pub(crate) fn rest(&self) -> u64 {
        let Self { reserved: Reserved { want, counted, count_denied, .. }, granted, .. } = self;
        match granted {
            None => 0,
            Some(granted) if *count_denied && granted.full => 0,
            Some(_) if *count_denied => want.saturating_sub(*counted),
            Some(granted) => granted.units,
        }
    }
}

impl Granted {
    fn new(reserved: &Reserved, grant: Grant, sent: Monotonic, now: Monotonic) -> Self {
        let Grant { granted, used, quota, reset_ms, window } = grant;
        let reset = Duration::from_millis(reset_ms);
        Self {
            units: granted,
            heard: Heard { left: grant.left(), quota, window, ends: now + reset },
            until: sent + reset,
            short: false,
            full: reserved.count_denied && used == protocol::MAX_UNITS,
        }
    }

    fn standing(&self) -> Spent {
        let Heard { left, quota, ends, .. } = self.heard;
        Spent { left: left.saturating_add(self.units), quota, ends }
    }
}
