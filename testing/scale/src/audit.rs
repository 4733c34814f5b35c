//! What was demanded and admitted of every counter in every window, compared with its quota.

use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_protocol::Fixed;
use quotagate_quota::time::Monotonic;

/// What was demanded and admitted.
pub struct Audit {
    quota: u64,
    window: Fixed,
    /// The time since the Unix epoch at the origin of the proxies' clock.
    epoch: Duration,
    /// By window, counted from the first, and by partition.
    windows: Vec<Vec<Cell>>,
}

#[derive(Clone, Copy, Default)]
struct Cell {
    demanded: u32,
    admitted: u32,
}

/// The totals over all counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Counters that admitted more than their quota.
    pub over: u64,
    /// Units demanded.
    pub demanded: u64,
    /// Units admitted.
    pub admitted: u64,
    /// Units demanded within the quotas: what one counter without any network would admit.
    pub within: u64,
    /// Counters whose demand reached the quota.
    pub reached: u64,
    /// Units that those counters admitted.
    pub admitted_of_reached: u64,
}

impl Audit {
    /// An audit of a run that begins at `epoch` and lasts for `length`.
    pub fn new(
        quota: u64,
        window: Fixed,
        epoch: Duration,
        length: Duration,
        partitions: usize,
    ) -> Self {
        // Requests that wait at the end may be admitted in the window after it.
        let windows = window.number_at(epoch + length) - window.number_at(epoch) + 2;
        let windows = (0..windows).map(|_| vec![Cell::default(); partitions]).collect();
        Self { quota, window, epoch, windows }
    }

    /// Counts a request that arrives.
    ///
    /// # Errors
    /// No window or partition of this run.
    pub fn demand(&mut self, partition: usize, now: Duration) -> Result<()> {
        let number = self.window.number_at(self.epoch + now);
        self.cell(partition, number)?.demanded += 1;
        Ok(())
    }

    /// Counts a request that is admitted. Its proxy believes that the window ends at `resets`:
    /// never before the window does, and later by less than a window.
    ///
    /// # Errors
    /// No window or partition of this run.
    pub fn admit(&mut self, partition: usize, resets: Monotonic) -> Result<()> {
        let end = self.epoch + resets.since(Monotonic::default());
        let number = self.window.number_at(end).saturating_sub(1);
        self.cell(partition, number)?.admitted += 1;
        Ok(())
    }

    /// The totals.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for cell in self.windows.iter().flatten() {
            let (demanded, admitted) = (u64::from(cell.demanded), u64::from(cell.admitted));
            totals.over += u64::from(admitted > self.quota);
            totals.demanded += demanded;
            totals.admitted += admitted;
            totals.within += demanded.min(self.quota);
            if demanded >= self.quota {
                totals.reached += 1;
                totals.admitted_of_reached += admitted;
            }
        }
        totals
    }

    fn cell(&mut self, partition: usize, number: u64) -> Result<&mut Cell> {
        let first = self.window.number_at(self.epoch);
        let index = number.checked_sub(first).and_then(|index| usize::try_from(index).ok());
        let window = index.and_then(|index| self.windows.get_mut(index));
        window.and_then(|cells| cells.get_mut(partition)).with_context(|| {
            format!("no counter of this run: partition {partition} in window {number}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: Duration = Duration::from_secs(1_000);

    fn at(ms: u64) -> Monotonic {
        Monotonic::new(Duration::from_millis(ms))
    }

    #[test]
    fn one_excess_unit_is_detected() {
        let mut audit =
            Audit::new(2, Fixed::new(10, 0).unwrap(), EPOCH, Duration::from_secs(20), 3);
        for ms in [0, 1, 9_999] {
            audit.demand(1, Duration::from_millis(ms)).unwrap();
        }
        // A reset time is exact, or late by the reply's delay.
        audit.admit(1, at(10_000)).unwrap();
        audit.admit(1, at(10_049)).unwrap();
        let totals = Totals {
            demanded: 3,
            admitted: 2,
            within: 2,
            reached: 1,
            admitted_of_reached: 2,
            over: 0,
        };
        assert_eq!(audit.totals(), totals);
        audit.admit(1, at(20_000)).unwrap();
        audit.admit(2, at(10_000)).unwrap();
        assert_eq!(audit.totals().over, 0, "another window, another partition");
        audit.admit(1, at(10_001)).unwrap();
        assert_eq!(audit.totals().over, 1);
    }
}
