//! The quota advisor: reads access logs and says whom each quota would have refused.
//!
//! A **user** is whoever a request is counted for, by default the filter's partition. A **user-window** is what one user
//! asked for in one window, fixed as the store's are: `floor(time / window)`, on the log's own clock, by when requests
//! began. It is refused by a quota that it exceeds, and a user is refused if any of its windows is. What was refused when the
//! log was written counts too: it was asked for.
//!
//! Logs are read once, on all processors, in bounded memory: [`Options::memory`] for tables, and besides
//!
//! - about 5 MiB a thread;
//! - for each open log, at most 256 of them, what its decompression takes (nothing; 0.3 MiB for gzip; for zstd its window, 8 MiB
//!   and less unless it was packed with `--long`, 128 MiB at most), and the line that its last chunk ended in (2 MiB at most);
//! - for each user that [`Options::show_users`] or [`Options::without_top`] asks for, up to 64 names of 256 bytes and as many
//!   small entries;
//! - where costs make many thousands of different large counts, up to 3 MiB for each of 64 parts of the users, twice.
//!
//! While everything fits, all numbers are exact, whatever order the lines have; `count/shard.rs` says what happens then.

mod advice;
mod count;
mod error;
mod exclude;
mod faults;
mod input;
mod judge;
mod line;
mod plot;
mod progress;
mod render;
mod run;
mod sample;
mod shown;
mod snippet;

use std::path::PathBuf;

pub use self::advice::{
    Advice, Candidate, Damage, Excluded, Limits, MalformedLine, Percentile, Reading, TopUser, WindowAdvice,
    WithoutTop,
};
pub use self::error::Error;
pub use self::line::{Fields, Only};
pub use self::sample::Sample;
pub use self::shown::{grouped, is_harmful};

/// What to read, and what to advise on.
#[derive(Clone, Debug)]
pub struct Options {
    /// The logs; `-` is standard input.
    pub logs: Vec<PathBuf>,
    /// How lines are read.
    pub fields: Fields,
    /// Which requests are counted.
    pub only: Only,
    /// Users that are left out: names, or beginnings of names with `*` behind.
    pub exclude: Vec<String>,
    /// Lengths of the windows in seconds; each is judged by itself.
    pub windows_s: Vec<u32>,
    /// The quotas to judge; empty: a ladder up to the most that anybody took.
    pub quotas: Vec<u32>,
    /// How much the recommended quota may refuse.
    pub limits: Limits,
    /// How many of the users who took most are named.
    pub show_users: usize,
    /// Judge also without so many of the users who took most.
    pub without_top: usize,
    /// Most bytes of tables, shared by all windows.
    pub memory: usize,
    /// How late lines are expected at most, in seconds, once memory is scarce.
    pub lateness_s: u32,
    /// How many threads read.
    pub threads: usize,
    /// Whether to show on a terminal how far reading has come.
    pub progress: bool,
}

impl Default for Options {
    /// A minute, no log, and what `quotagate advise` takes unless told otherwise, with one thread.
    fn default() -> Self {
        Self {
            logs: Vec::new(),
            fields: Fields::default(),
            only: Only::default(),
            exclude: Vec::new(),
            windows_s: vec![60],
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
    fn lateness_ms(&self) -> i64 {
        i64::from(self.lateness_s) * 1000
    }
}

/// Reads the logs and judges quotas.
///
/// # Errors
/// When a log cannot be read or is none, or nothing in it can be counted.
pub fn advise(options: &Options) -> Result<Advice, Error> {
    advice::of(options, run::run(options)?)
}
