//! The advice as data: the JSON of `quotagate advise --json`.

use serde::Serialize;

use super::sample::Sample;
use crate::options::Limits;
use crate::window::Window;

/// What a quota would have refused.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The quota.
    pub quota: u32,
    /// Users whom it would have refused at least once.
    pub users: u64,
    /// Their share of all.
    pub users_share: f64,
    /// User-windows with more units than the quota.
    pub user_windows: u64,
    /// Their share of all.
    pub user_windows_share: f64,
    /// Units beyond the quota. Without costs, a unit is a request. None for a sliding window: there
    /// a unit counts in up to 21 user-windows.
    pub units: Option<u64>,
    /// Their share of all.
    pub units_share: Option<f64>,
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// Lines, except empty ones.
    pub lines: u64,
    /// Bytes, decompressed.
    pub bytes: u64,
    /// Requests that were counted.
    pub requests: u64,
    /// Their units.
    pub units: u64,
    /// Requests without a whole number in the field of the cost. Each counts as one unit.
    pub without_cost: u64,
    /// Requests without a whole number in the field of the duration, if it is read. The advice on
    /// `in_flight` leaves them out.
    pub without_duration: u64,
    /// Requests without the field for the user.
    pub without_field: u64,
    /// Requests with empty fields: no policy counted them, or their fields were lost.
    pub not_counted: u64,
    /// Requests with a policy but without a user, or with an empty field of `--key-field`.
    pub without_user: u64,
    /// Requests of excluded users.
    pub excluded: Vec<Excluded>,
    /// Requests of other policies or paths than those selected.
    pub not_selected: u64,
    /// Lines that cannot be read.
    pub malformed: u64,
    /// The first few of them.
    pub malformed_first: Vec<MalformedLine>,
    /// Logs that have lines but no readable one.
    pub unreadable: Vec<String>,
    /// Truncated logs.
    pub damaged: Vec<Damage>,
    /// When the first request began, in milliseconds since the Unix epoch.
    pub first_ms: i64,
    /// When the last one began.
    pub last_ms: i64,
}

/// Excluded users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Excluded {
    /// Their name, or a prefix of their names that ends in `*`.
    pub users: String,
    /// The number of their requests.
    pub requests: u64,
}

/// A line that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MalformedLine {
    /// Its log.
    pub log: String,
    /// Its position in the decompressed log, in bytes.
    pub byte: u64,
    /// Its beginning, with harmful characters replaced.
    pub text: String,
}

/// A truncated log. Everything before the cut counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The log.
    pub log: String,
    /// The error that ended it.
    pub why: String,
}

/// The advice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The only policy in the log.
    pub policy: Option<String>,
    /// What was read.
    pub read: Reading,
    /// The limits from the options.
    pub limits: Limits,
    /// The advice for each window, in the order of the options.
    pub windows: Vec<WindowAdvice>,
    /// The advice on `in_flight`, if the options name a field for durations and requests have some.
    pub in_flight: Option<InFlightAdvice>,
    /// A policy in shadow mode for each window, and one with `in_flight`, as YAML.
    pub snippet: String,
}

/// The advice on the number of units that run at once. A unit is a request, unless costs are read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InFlightAdvice {
    /// The number of users.
    pub users: u64,
    /// The number of their requests.
    pub requests: u64,
    /// The most units of any user at once.
    pub most: u32,
    /// Requests that came after their time had been swept to save memory. `requests` leaves them
    /// out.
    pub late: u64,
    /// One in so many users was looked at, if memory did not suffice for all; else 1.
    pub one_in: u64,
    /// Units that ran at once for given shares of users and requests, at most.
    pub percentiles: Vec<InFlightPercentile>,
    /// The smallest limit that stays below both limits of the options. None only if memory did not
    /// suffice for a single user: each request holds a unit at least, so any other user has a peak.
    pub recommended: Option<InFlightLimit>,
    /// The limit one smaller; none below 1.
    pub one_less: Option<InFlightLimit>,
}

/// Units that ran at once for a share of users and requests, at most.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InFlightPercentile {
    /// The share: 0.99 for 99 %.
    pub share: f64,
    /// When a request arrived, its own units included.
    pub requests: u32,
    /// At the peak of a user.
    pub users: u32,
}

/// What a concurrency limit would have refused.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InFlightLimit {
    /// The limit.
    pub in_flight: u32,
    /// Users whom it would have refused at least once.
    pub users: u64,
    /// Their share of all.
    pub users_share: f64,
    /// Requests that arrived while too many others ran. This is an upper bound: a refused request
    /// does not run.
    pub requests: u64,
    /// Their share of all.
    pub requests_share: f64,
}

/// The advice for one window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowAdvice {
    /// The window. In JSON, `window_s` is its length in seconds, with `sliding` if it slides.
    /// `calendar` and `time_zone` are as in a policy.
    #[serde(flatten)]
    pub window: Window,
    /// The number of users.
    pub users: u64,
    /// The number of user-windows.
    pub user_windows: u64,
    /// The units of the largest user-window.
    pub most: u32,
    /// Requests that came after their window had been closed to save memory. They count as windows
    /// of their own.
    pub late: u64,
    /// Whether counts of 1,024 and more are rounded up, by less than 0.05 %.
    pub rounded: bool,
    /// The sample, if memory did not suffice for all users.
    pub sample: Option<Sample>,
    /// Units that given shares of users and user-windows did not exceed.
    pub percentiles: Vec<Percentile>,
    /// The judged quotas, the smallest first.
    pub candidates: Vec<Candidate>,
    /// The smallest quota that stays below both limits.
    pub recommended: Candidate,
    /// The quota one smaller; none below 1.
    pub one_less: Option<Candidate>,
    /// The recommendation without the users with the largest windows, if the options ask for it.
    pub without_top: Option<WithoutTop>,
    /// The users with the largest windows, the largest first.
    pub top_users: Vec<TopUser>,
    /// The points of the picture.
    #[serde(skip)]
    pub(crate) curve: Vec<Candidate>,
}

/// Units that a share of users and user-windows did not exceed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Percentile {
    /// The share: 0.99 for 99 %.
    pub share: f64,
    /// Units that this share of user-windows did not exceed.
    pub user_windows: u32,
    /// Units that this share of users did not exceed in their largest windows.
    pub users: u32,
}

/// The recommendation without the users with the largest windows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WithoutTop {
    /// How many users it leaves out.
    pub left_out: usize,
    /// The number of all other users.
    pub others: u64,
    /// The smallest quota that stays below both limits for the others. None if there are no others,
    /// or if memory did not suffice.
    pub recommended: Option<Candidate>,
}

/// A user with a large window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopUser {
    /// The beginning of the name in the log; a hash if the field may hold a secret.
    pub user: String,
    /// The units of its largest window.
    pub most: u32,
    /// When that window began, in milliseconds since the Unix epoch. If it slides, when its oldest
    /// slice began.
    pub window_ms: i64,
}
