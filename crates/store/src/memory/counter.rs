//! One counter in memory, and how much of it a reservation gets.

use std::time::Duration;

use quotagate_protocol::{Grant, MAX_UNITS};

use crate::in_flight::Slots;
use crate::sliding::Slices;
use crate::store::{CheckedReservation, Reserved, StoreError};
use crate::window::{CounterId, Position};

/// A counter of one window, the slices of a sliding window, or slots.
pub struct Counter {
    /// Which one it is.
    pub id: CounterId,
    /// The quota that the last reservation named which said that it is not the policy's. Slots have
    /// it with each worker.
    own_quota: Option<u64>,
    count: Count,
}

enum Count {
    Window { used: u64, end: Duration },
    Sliding(Slices),
    InFlight(Slots),
}

/// What is asked of a counter.
pub struct Demand<'a> {
    /// The reservation.
    pub reservation: &'a CheckedReservation,
    /// The quota in force.
    pub quota: u64,
    /// The time since the Unix epoch.
    pub now: Duration,
}

impl Counter {
    /// An empty counter.
    pub fn new(position: &Position) -> Self {
        let count = match position.id {
            CounterId::Sliding(_) => Count::Sliding(Slices::default()),
            CounterId::Fixed { .. } | CounterId::Calendar(_) => {
                Count::Window { used: 0, end: Duration::from_secs(position.span.end) }
            }
            CounterId::InFlight => Count::InFlight(Slots::default()),
        };
        Self { id: position.id, own_quota: None, count }
    }

    /// Grants units at `position`.
    pub fn reserve(&mut self, position: &Position, demand: &Demand<'_>) -> Reserved {
        let Demand { reservation, quota, now } = *demand;
        if let (Count::InFlight(slots), Some(holding)) = (&mut self.count, &reservation.holding) {
            return slots.reserve(reservation, holding, quota, now);
        }
        if reservation.own_quota {
            self.own_quota = Some(reservation.named_quota());
        }
        let share = |used| share(reservation, quota, used);
        let (granted, used, reset_ms) = match (&mut self.count, position.id) {
            (Count::Sliding(slices), CounterId::Sliding(window)) => {
                // Without a grant the slices stay: the clock may have gone back for a moment.
                let mut counted = slices.clone();
                counted.advance(position.number);
                let (granted, taken) = share(counted.used());
                if taken > 0
                    && let Some(units) = counted.slice(position.number, position.number)
                {
                    *units = units.saturating_add(taken);
                    slices.clone_from(&counted);
                }
                let full = granted >= reservation.want;
                let fit = (!full).then_some((reservation.min, quota));
                let retry_at_ms = counted.retry_at_ms(window, position.number, fit);
                (granted, counted.used(), retry_at_ms.saturating_sub(millis(now)))
            }
            (Count::Window { used, end }, _) if position.span.contains(now.as_secs()) => {
                let granted = if reservation.refunds() {
                    refund(used, reservation.want)
                } else {
                    let (granted, taken) = share(*used);
                    *used = used.saturating_add(taken);
                    granted
                };
                (granted, *used, millis(end.saturating_sub(now)))
            }
            _ => return Err(StoreError::Rolled),
        };
        let (reset_ms, window_s) = (reset_ms.max(1), position.window_s());
        let window = position.number;
        Ok(Grant { granted, used, quota, reset_ms, window, window_s, ..Grant::default() })
    }

    /// Refunds units at `position`, unless that is over. Returns whether the counter is still
    /// needed.
    pub fn refund(&mut self, position: &Position, units: u64, now: Duration) -> bool {
        let Some(used) = self.at(position, now) else { return true };
        refund(used, units);
        self.is_needed(now)
    }

    /// Charges units at `position`, unless that is over.
    pub fn charge(&mut self, position: &Position, units: u64, now: Duration) {
        let left = MAX_UNITS.saturating_sub(self.used(now));
        if let Some(used) = self.at(position, now) {
            *used = used.saturating_add(units.min(left));
        }
    }

    /// Whether it holds anything at `now`, so that it has to be kept.
    pub fn is_needed(&self, now: Duration) -> bool {
        match &self.count {
            Count::InFlight(slots) => now < slots.end(),
            Count::Window { .. } | Count::Sliding(_) => self.used(now) > 0,
        }
    }

    /// Whether operators see it at `now`.
    pub fn is_shown(&self, now: Duration) -> bool {
        self.slots().is_none_or(|slots| slots.is_in_use(now))
    }

    /// The last quota that a reservation said is not the policy's.
    pub fn own_quota(&self, now: Duration) -> Option<u64> {
        self.slots().map_or(self.own_quota, |slots| slots.own_quota(now))
    }

    /// The slots, if it has them.
    pub const fn slots(&self) -> Option<&Slots> {
        if let Count::InFlight(slots) = &self.count { Some(slots) } else { None }
    }

    /// The same, to change them.
    pub const fn slots_mut(&mut self) -> Option<&mut Slots> {
        if let Count::InFlight(slots) = &mut self.count { Some(slots) } else { None }
    }

    /// The units used at `now`.
    pub fn used(&self, now: Duration) -> u64 {
        match (&self.count, self.id) {
            (Count::Sliding(slices), CounterId::Sliding(window)) => {
                let mut slices = slices.clone();
                slices.advance(window.slice_at(now));
                slices.used()
            }
            (Count::Window { used, .. }, _) => *used,
            (Count::InFlight(slots), _) => slots.held(now),
            (Count::Sliding(_), _) => 0,
        }
    }

    /// When it can be freed.
    pub fn kept_until(&self) -> Duration {
        self.end().saturating_add(self.id.kept_for())
    }

    /// When nothing counts with it any more.
    pub fn end(&self) -> Duration {
        match (&self.count, self.id) {
            (Count::Sliding(slices), CounterId::Sliding(window)) => {
                Duration::from_millis(slices.end_ms(window))
            }
            (Count::Window { end, .. }, _) => *end,
            (Count::InFlight(slots), _) => slots.end(),
            (Count::Sliding(_), _) => Duration::ZERO,
        }
    }

    /// The units at `position`, where they can still be changed. The number of a window may be from
    /// a clock that is ahead of `now`, but not by more than the window.
    fn at(&mut self, position: &Position, now: Duration) -> Option<&mut u64> {
        let second = now.as_secs();
        match (&mut self.count, position.id) {
            (Count::Sliding(slices), CounterId::Sliding(window)) => {
                slices.slice(position.number, window.slice_at(now))
            }
            (Count::Window { used, .. }, _)
                if second < position.span.end
                    && position.span.start <= second.saturating_add(position.span.seconds()) =>
            {
                Some(used)
            }
            _ => None,
        }
    }
}

/// Refunds up to `units` of those that are used. Returns how many that were.
fn refund(used: &mut u64, units: u64) -> u64 {
    let units = units.min(*used);
    *used -= units;
    units
}

/// How many units a reservation is granted from a counter with `used` units of `quota`, and how
/// much the counter grows.
fn share(reservation: &CheckedReservation, quota: u64, used: u64) -> (u64, u64) {
    let left = quota.saturating_sub(used);
    let needed = if left < reservation.min { 0 } else { reservation.want.min(left) };
    // Spare units are granted only if all wanted units are.
    let spare = if needed == reservation.want {
        reservation.spare.min(left.saturating_sub(needed) / 8)
    } else {
        0
    };
    let granted = needed.saturating_add(spare);
    let refused =
        if reservation.count_denied { reservation.want.saturating_sub(needed) } else { 0 };
    (granted, granted.saturating_add(refused).min(MAX_UNITS.saturating_sub(used)))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
