//! How far estimates from a sample of the users may be from the truth.
//!
//! Users are chosen one by one, each with a probability of 1 in its part's weight. So of the share of users the variance follows
//! from the weights alone. A user comes with all its windows, and how they hang together is not kept; but the parts are
//! random groups of users, and how much their own shares differ tells it, for whole users with all their windows: the variance of the share of
//! user-windows is estimated from that.
//!
//! The parts' own numbers are coarse (`Tally::coarse`), which is enough for an error.
//!
//! A sample knows nothing of users who are not in it: no error is less than what one more of them would change. A handful of users who
//! take most of all windows are in it or not, and estimates from it may be further off than any such error.

use crate::advice::{Candidate, Sample};
use crate::count::Counted;

/// The errors of what is said of this quota, of so many users in all.
pub(crate) fn of(counted: &Counted, quota: &Candidate, users: u64) -> Sample {
    let (mut of_users, mut of_windows) = (0.0, 0.0);
    let windows = counted.windows.above(0).1.max(1) as f64;
    for part in &counted.sampled {
        let weight = part.weight as f64;
        let (above, all) = part.users.above(quota.quota);
        let (above, below) = (above as f64, all.saturating_sub(above) as f64);
        let share = quota.users_share;
        of_users += (weight - 1.0) * (above * (1.0 - share).powi(2) + below * share.powi(2));
        let (above, all) = part.windows.above(quota.quota);
        let apart = above as f64 - quota.user_windows_share * all as f64;
        of_windows += (1.0 - 1.0 / weight) * apart.powi(2);
    }
    let one_in = 1 << counted.level;
    let one_more = one_in as f64 / users.max(1) as f64;
    Sample {
        users: counted.kept,
        one_in,
        users_error: (of_users.sqrt() / users.max(1) as f64).max(one_more),
        user_windows_error: (of_windows.sqrt() / windows).max(one_more),
    }
}
