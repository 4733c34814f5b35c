//! What to read, and what to advise on.

use std::path::PathBuf;

use serde::Serialize;

use crate::line::{Fields, Only};
use crate::window::Length;

/// What to read, and what to advise on.
#[derive(Clone, Debug)]
pub struct Options {
    /// Paths of the logs; `-` is standard input.
    pub logs: Vec<PathBuf>,
    /// How lines are read.
    pub fields: Fields,
    /// Which requests are counted.
    pub only: Only,
    /// Users to leave out: names, or prefixes of names that end in `*`.
    pub exclude: Vec<String>,
    /// The windows. Each gets advice of its own.
    pub windows: Vec<Length>,
    /// Where calendar windows begin, by its name in the IANA time zone database; UTC if `None`.
    pub time_zone: Option<String>,
    /// Whether windows of so many seconds slide.
    pub sliding: bool,
    /// The quotas to judge. If empty, a ladder up to the largest user-window.
    pub quotas: Vec<u32>,
    /// How much the recommended quota may refuse.
    pub limits: Limits,
    /// How many of the users with the largest windows are named.
    pub show_users: usize,
    /// How many of the users with the largest windows a second recommendation leaves out.
    pub without_top: usize,
    /// Bytes of tables at most, for all windows together.
    pub memory: usize,
    /// How late a line may come, in seconds. It matters once memory is scarce.
    pub lateness_s: u32,
    /// Threads that read.
    pub threads: usize,
    /// Whether to show progress on a terminal.
    pub progress: bool,
}

impl Default for Options {
    /// One window of a minute, no log, one thread, and the defaults of `quotagate advise`.
    fn default() -> Self {
        Self {
            logs: Vec::new(),
            fields: Fields::default(),
            only: Only::default(),
            exclude: Vec::new(),
            windows: vec![Length::Seconds(60)],
            time_zone: None,
            sliding: false,
            quotas: Vec::new(),
            limits: Limits { users: 0.001, windows: 0.0001 },
            show_users: 0,
            without_top: 0,
            memory: 1 << 30,
            lateness_s: 3600,
            threads: 1,
            progress: false,
        }
    }
}

impl Options {
    /// [`Self::lateness_s`] in milliseconds.
    pub(crate) fn lateness_ms(&self) -> i64 {
        i64::from(self.lateness_s) * 1000
    }
}

/// The recommended quota refuses less than these shares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// Share of users: 0.001 for 0.1 %.
    pub users: f64,
    /// Share of user-windows.
    pub windows: f64,
}
