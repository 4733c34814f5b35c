//! Standard errors of estimates from a sample of the users.
//!
//! Each user is in the sample with a probability of 1 in its shard's weight, independently of the
//! others. So the variance of the share of users follows from the weights alone. A user is in the
//! sample with all windows or none, and the counts do not keep which windows belong together. But
//! the shards are random groups of whole users, so the variance of the share of user-windows is
//! estimated from the differences between shards. Their own tallies are coarse (`Tally::coarse`),
//! which is precise enough for an error.
//!
//! A sample knows nothing about users outside it, so no error is smaller than the effect of one
//! more user. If a handful of users take most of the windows, the truth may be further off than the
//! error.

use serde::Serialize;

use crate::count::Counted;

/// A uniform sample of the users. The numbers of users and windows are estimates from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Users in the sample.
    pub users: u64,
    /// Each shard has at least one of this many users in the sample.
    pub one_in: u64,
    /// Standard error of the share of users that the recommended quota refuses.
    pub users_error: f64,
    /// Standard error of the share of user-windows that it refuses.
    pub user_windows_error: f64,
}

/// The estimated shares that a quota refuses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// Of all users.
    pub(crate) users: f64,
    /// Of all user-windows.
    pub(crate) windows: f64,
}

impl Sample {
    /// The sample, and the errors of the estimated `shares` of `quota`, with this many users in
    /// all.
    pub(crate) fn of(counted: &Counted, quota: u32, shares: Shares, users: u64) -> Self {
        let (mut of_users, mut of_windows) = (0.0, 0.0);
        let windows = counted.windows.above(0).1.max(1) as f64;
        for part in &counted.sampled {
            let weight = part.weight as f64;
            let (above, all) = part.users.above(quota);
            let (above, below) = (above as f64, all.saturating_sub(above) as f64);
            of_users += (weight - 1.0)
                * (above * (1.0 - shares.users).powi(2) + below * shares.users.powi(2));
            let (above, all) = part.windows.above(quota);
            let apart = above as f64 - shares.windows * all as f64;
            of_windows += (1.0 - 1.0 / weight) * apart.powi(2);
        }
        let one_in = 1 << counted.level;
        let one_more = one_in as f64 / users.max(1) as f64;
        Self {
            users: counted.kept,
            one_in,
            users_error: (of_users.sqrt() / users.max(1) as f64).max(one_more),
            user_windows_error: (of_windows.sqrt() / windows).max(one_more),
        }
    }
}
