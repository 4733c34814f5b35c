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
mod display;
mod error;
mod input;
mod line;
mod options;
mod report;
mod run;

pub use self::advice::{
    Advice, Candidate, Damage, Excluded, MalformedLine, Percentile, Reading, Sample, TopUser, WindowAdvice,
    WithoutTop,
};
pub use self::display::{grouped, is_harmful};
pub use self::error::Error;
pub use self::line::{Fields, Only};
pub use self::options::{Limits, Options};

/// Reads the logs and judges quotas.
///
/// # Errors
/// When a log cannot be read or is none, or nothing in it can be counted.
pub fn advise(options: &Options) -> Result<Advice, Error> {
    advice::of(options, run::run(options)?)
}
