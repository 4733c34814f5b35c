//! What the advisor says, as data: the JSON of `quotagate advise --json`.

use serde::Serialize;

use super::sample::Sample;
use crate::options::Limits;

/// What a quota would have refused.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The quota.
    pub quota: u32,
    /// Users with at least one window above it.
    pub users: u64,
    /// Their share.
    pub users_share: f64,
    /// User-windows above it.
    pub user_windows: u64,
    /// Their share.
    pub user_windows_share: f64,
    /// Units above it: requests, unless costs are read.
    pub units: u64,
    /// Their share.
    pub units_share: f64,
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// Lines that are not empty.
    pub lines: u64,
    /// Bytes, decompressed.
    pub bytes: u64,
    /// Requests that were counted.
    pub requests: u64,
    /// Units that they asked for.
    pub units: u64,
    /// Requests whose lines have no field for who is counted.
    pub without_field: u64,
    /// Requests with empty fields: no policy counted them, or the fields were lost.
    pub not_counted: u64,
    /// Requests that name nobody, though a policy applied, or a field of one's own is read.
    pub nameless: u64,
    /// Requests of users who are left out.
    pub excluded: Vec<Excluded>,
    /// Requests that were not asked for.
    pub left_out: u64,
    /// Lines that are not understood.
    pub malformed: u64,
    /// The first few of them.
    pub malformed_first: Vec<MalformedLine>,
    /// Logs that have lines, and none that is understood.
    pub no_logs: Vec<String>,
    /// Logs that were cut short.
    pub damaged: Vec<Damage>,
    /// When the first request began, in milliseconds since the Unix epoch.
    pub first_ms: i64,
    /// When the last one began.
    pub last_ms: i64,
}

/// Users who are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Excluded {
    /// Their name, or the beginning of their names with `*` behind.
    pub users: String,
    /// Their requests.
    pub requests: u64,
}

/// A line that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MalformedLine {
    /// Its log.
    pub log: String,
    /// Where it begins in the decompressed log.
    pub byte: u64,
    /// Its beginning.
    pub text: String,
}

/// A log that was cut short: what came before counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The log.
    pub log: String,
    /// How.
    pub why: String,
}

/// What there is to say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The only policy that the log names.
    pub policy: Option<String>,
    /// What was read.
    pub read: Reading,
    /// The limits that were asked for.
    pub limits: Limits,
    /// What there is to say of each length of windows, in the order in which they were asked for.
    pub windows: Vec<WindowAdvice>,
    /// A policy in shadow mode for each of them, as YAML.
    pub snippet: String,
}

/// What there is to say of one length of windows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowAdvice {
    /// Length of the window in seconds.
    pub window_s: u32,
    /// All users.
    pub users: u64,
    /// All user-windows.
    pub user_windows: u64,
    /// The most units that anybody took in a window.
    pub most: u32,
    /// Requests that came after their window had been closed to save memory: counted as a window of their own.
    pub late: u64,
    /// Whether counts of 1,024 and more were rounded up, by less than 0.05 %.
    pub rounded: bool,
    /// Set where memory did not suffice for all users.
    pub sample: Option<Sample>,
    /// How many units most took at most.
    pub percentiles: Vec<Percentile>,
    /// The quotas, from the smallest on.
    pub candidates: Vec<Candidate>,
    /// The smallest quota that keeps both limits.
    pub recommended: Candidate,
    /// What the next smaller one would have refused; none for 1.
    pub one_less: Option<Candidate>,
    /// The recommendation without the users who took most, if that was asked for.
    pub without_top: Option<WithoutTop>,
    /// The users who took most, the largest first.
    pub top_users: Vec<TopUser>,
    /// The quotas of the picture.
    #[serde(skip)]
    pub(crate) curve: Vec<Candidate>,
}

/// How many units most took at most.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Percentile {
    /// So many of them: 0.99 for 99 %.
    pub share: f64,
    /// Of the user-windows.
    pub user_windows: u32,
    /// Of the users, in their largest window.
    pub users: u32,
}

/// The recommendation without the users who took most.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WithoutTop {
    /// How many users that leaves out.
    pub left_out: usize,
    /// How many users are left.
    pub others: u64,
    /// The smallest quota that keeps both limits for the others; none where nobody is left, or memory did not suffice to
    /// tell.
    pub recommended: Option<Candidate>,
}

/// A user who took much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopUser {
    /// As the log names it, cut; a digest where the field may hold a secret.
    pub user: String,
    /// The most units that it took in a window.
    pub most: u32,
    /// When that window began, in milliseconds since the Unix epoch.
    pub window_ms: i64,
}
