//! The quota advisor: reads access logs and recommends the smallest quota that refuses almost no
//! users.
//!
//! A **user** is the party that a request is counted for, by default the partition that the filter
//! logs. A **user-window** is one user in one window. Windows are like the store's, on the log's
//! own clock, by the time at which requests began: fixed, `floor(time / window)`; by the calendar
//! of a time zone; or sliding, with a user-window for each slice. A quota refuses a user-window
//! with more units than the quota, and it refuses a user if it refuses any of that user's windows.
//! Requests that were refused when the log was written count, too.
//!
//! Logs are read once, on all processors, in bounded memory: [`Options::memory`] for tables, and in
//! addition
//!
//! - about 5 MiB per thread;
//! - for each open log, 256 at most, the memory of its decompression (none; 0.3 MiB for gzip; for
//!   zstd its window, up to 8 MiB, or 128 MiB if it was packed with `--long`), and one unfinished
//!   line (2 MiB at most);
//! - for each user of [`Options::show_users`] or [`Options::without_top`], up to 64 names of 256
//!   bytes and as many small entries;
//! - if costs make many thousands of different large counts, up to 3 MiB for each of 64 shards of
//!   the users, twice.
//!
//! While all counts fit, all numbers are exact for any order of lines. `count/shard.rs` describes
//! what happens then, and `concurrency.rs` how running requests are counted.
//!
//! ```no_run
//! use quotagate_advise::{Length, Options, advise};
//!
//! let logs = vec!["access.log".into(), "access.log.1.gz".into()];
//! let windows = vec![Length::Seconds(60), Length::Seconds(3600)];
//! let advice = advise(&Options { logs, windows, ..Options::default() })?;
//! for window in &advice.windows {
//!     println!("{} per {}", window.recommended.quota, window.window);
//! }
//! println!("{}", advice.text());
//! # Ok::<(), quotagate_advise::Error>(())
//! ```

mod advice;
mod concurrency;
mod count;
mod display;
mod error;
mod input;
mod line;
mod options;
mod report;
mod run;
mod window;

pub use self::advice::{
    Advice, Candidate, Damage, Excluded, InFlightAdvice, InFlightLimit, InFlightPercentile,
    MalformedLine, Percentile, Reading, Sample, TopUser, WindowAdvice, WithoutTop,
};
pub use self::error::Error;
pub use self::line::{Fields, Only};
pub use self::options::{Limits, Options};
pub use self::window::{Length, Window};

/// Reads the logs and judges quotas.
///
/// # Errors
/// When a log cannot be read or is no access log, or when no request can be counted.
pub fn advise(options: &Options) -> Result<Advice, Error> {
    let windows = Window::all(&options.windows, options.time_zone.as_deref(), options.sliding)?;
    advice::of(options, run::run(options, windows)?)
}
