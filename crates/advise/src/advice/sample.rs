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

use serde::Serialize;

use crate::count::Counted;

/// Numbers of users and windows are estimates from a uniform sample of the users.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Users that were looked at.
    pub users: u64,
    /// Of some parts of all users one in so many, of none fewer.
    pub one_in: u64,
    /// Standard error of the share of users that the recommended quota refuses.
    pub users_error: f64,
    /// Standard error of the share of user-windows that it refuses.
    pub user_windows_error: f64,
}

/// The shares that a quota refuses, as estimated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// Of all users.
    pub(crate) users: f64,
    /// Of all user-windows.
    pub(crate) windows: f64,
}

impl Sample {
    /// What was looked at, and the errors of what is said of `quota`, of so many users in all.
    pub(crate) fn of(counted: &Counted, quota: u32, shares: Shares, users: u64) -> Self {
        let (mut of_users, mut of_windows) = (0.0, 0.0);
        let windows = counted.windows.above(0).1.max(1) as f64;
        for part in &counted.sampled {
            let weight = part.weight as f64;
            let (above, all) = part.users.above(quota);
            let (above, below) = (above as f64, all.saturating_sub(above) as f64);
            of_users +=
                (weight - 1.0) * (above * (1.0 - shares.users).powi(2) + below * shares.users.powi(2));
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
