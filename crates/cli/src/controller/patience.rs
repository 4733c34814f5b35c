//! When a leader that cannot do its work lets another controller try.
//!
//! A leader keeps its Lease as long as it renews it. That alone says nothing of its store, or of
//! whether it could read the cluster since it leads: another controller, on another node, may reach
//! both.

use std::time::Duration;

use tokio::time::Instant;

/// How long a leader tries, the first time.
const FIRST: Duration = Duration::from_secs(60);
/// After so many times it does not try longer and longer any more.
const LONGEST: u32 = 4;

/// How long a leader has not been able to do its work.
#[derive(Debug)]
pub(super) struct Patience {
    worked: Instant,
    /// How often it has left the Lease to others since it last did its work.
    leaves: u32,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { worked: Instant::now(), leaves: 0 }
    }

    /// Notes that it leads.
    pub(super) fn leads(&mut self) {
        self.worked = Instant::now();
    }

    /// Notes that it has done its work.
    pub(super) fn works(&mut self) {
        (self.worked, self.leaves) = (Instant::now(), 0);
    }

    /// Whether it should let others try now. Each time in a row it tries twice as long before: if
    /// none of them can do the work, they should not pass the Lease around all the time.
    pub(super) fn ends(&mut self) -> bool {
        let tries = FIRST * (1 << self.leaves.min(LONGEST));
        let ends = self.worked.elapsed() >= tries;
        if ends {
            self.leaves = self.leaves.saturating_add(1);
            self.worked = Instant::now();
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leader_tries_for_a_minute_and_then_ever_longer_until_it_works() {
        let mut patience = Patience::new();
        let after = |minutes: u32, patience: &mut Patience| {
            let ago = Duration::from_secs(60) * minutes;
            patience.worked = Instant::now().checked_sub(ago).unwrap();
            patience.ends()
        };
        assert!(!after(0, &mut patience) && after(1, &mut patience));
        assert!(!after(1, &mut patience) && after(2, &mut patience));
        (0..9).for_each(|_| _ = after(16, &mut patience));
        assert!(!after(15, &mut patience) && after(16, &mut patience));
        patience.works();
        assert!(!after(0, &mut patience) && after(1, &mut patience));
    }
}
