//! `quotagate advise`: recommends a quota from access logs.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use clap::builder::RangedU64ValueParser;
use quotagate_advise::{Error, Fields, Length, Limits, Only, Options};
use quotagate_protocol::Unit;
use quotagate_store::server::raise_file_limit;

use crate::standard::{error_line, print};
use crate::values::{bytes, percent, seconds};

/// Largest value of `--show-users` and `--without-top`.
const MOST_USERS: u64 = 100;

/// The flags of `quotagate advise`.
#[derive(clap::Args)]
pub(crate) struct AdviseArgs {
    /// Access logs of Envoy, as JSON or text, plain, gzip or zstd; `-` reads standard input
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// The window of the quota: 10s, 1m, 1h30m, 1d, or by the calendar: minute, hour, day, week,
    /// month, year; several give a quota each
    #[arg(long, default_value = "1m", value_delimiter = ',', value_name = "TIME,TIME", value_parser = length)]
    window: Vec<Length>,
    /// Where calendar windows begin, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// Windows such as 1m slide: judge quotas with `sliding: true`
    #[arg(long)]
    sliding: bool,
    /// Judge these quotas [default: a ladder up to the largest use in one window]
    #[arg(long, value_delimiter = ',', value_name = "N,N")]
    quota: Vec<u32>,
    /// Count only requests that this policy counted
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Leave out this user; with `*` at the end, all users with that prefix
    #[arg(long, value_name = "USER")]
    exclude: Vec<String>,
    /// Name the N users with the largest windows
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(..=MOST_USERS))]
    show_users: usize,
    /// Also recommend a quota without the N users with the largest windows
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(..=MOST_USERS))]
    without_top: usize,
    /// Count only requests whose path has this prefix
    #[arg(long, value_name = "PREFIX")]
    path: Option<String>,
    /// The recommended quota refuses less than this percentage of users
    #[arg(long, default_value_t = 0.1, value_name = "PERCENT", value_parser = percent)]
    max_users: f64,
    /// The recommended quota refuses less than this percentage of user-windows
    #[arg(long, default_value_t = 0.01, value_name = "PERCENT", value_parser = percent)]
    max_windows: f64,
    /// The format string of text lines, as in the Envoy configuration [default: Envoy's default]
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,
    /// The field of the time: a JSON field, with dots between nested names, or an operator of
    /// --format
    #[arg(long, value_name = "FIELD")]
    time_field: Option<String>,
    /// The format of times, in the notation of strftime [default: RFC 3339 or a number]
    #[arg(long, value_name = "FORMAT")]
    time_format: Option<String>,
    /// The field of the user [default: the partition that the filter logs]
    #[arg(long, value_name = "FIELD")]
    key_field: Option<String>,
    /// The field of the policy
    #[arg(long, value_name = "FIELD")]
    policy_field: Option<String>,
    /// The field of the path
    #[arg(long, value_name = "FIELD")]
    path_field: Option<String>,
    /// The field of the cost in units [default: each request costs one]
    #[arg(long, value_name = "FIELD")]
    cost_field: Option<String>,
    /// Also recommend a concurrency limit (`in_flight`) from the durations of requests, in
    /// milliseconds, in this field [default: duration, or the operator DURATION]
    #[arg(long, value_name = "FIELD", num_args = 0..=1, require_equals = true, default_missing_value = "duration")]
    in_flight: Option<String>,
    /// Memory for counts; if it does not suffice, numbers are estimates, and the output says so
    #[arg(long, default_value = "1GiB", value_name = "SIZE", value_parser = bytes)]
    memory: usize,
    /// How late a line may come once memory is scarce
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = seconds)]
    lateness: u32,
    /// Threads that read [default: one per processor]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw a picture into this file; with several windows, one each with the window in its name
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Prints the advice.
///
/// The status is 0, or 1 if there is nothing to advise on.
///
/// # Errors
/// One sentence about a wrong flag or an unreadable log.
pub(crate) fn run(args: AdviseArgs) -> Result<ExitCode, String> {
    let (json, plot) = (args.json, args.plot.clone());
    // With the lower limit, fewer logs are open at once.
    let _ = raise_file_limit();
    let advice = match quotagate_advise::advise(&options(args)) {
        Ok(advice) => advice,
        Err(error @ Error::Nothing(_)) => {
            error_line(&format!("quotagate: {error}"));
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => return Err(error.to_string()),
    };
    if let Some(file) = plot {
        let plots = advice.plots()?;
        let several = plots.len() > 1;
        for (window, picture) in plots {
            let file = if several { of_window(&file, &window) } else { file.clone() };
            fs::write(&file, picture)
                .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
    }
    if json {
        let text = serde_json::to_string_pretty(&advice).map_err(|error| error.to_string())?;
        return print(&(text + "\n"));
    }
    print(&advice.text())
}

/// `quota.svg` as `quota-1h.svg`.
fn of_window(file: &Path, window: &str) -> PathBuf {
    let mut name = file.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{window}"));
    if let Some(extension) = file.extension() {
        name.push(".");
        name.push(extension);
    }
    file.with_file_name(name)
}

/// A length in seconds, or a part of the calendar.
fn length(text: &str) -> Result<Length, String> {
    if let Some(unit) = Unit::of(text) {
        return Ok(Length::Calendar(unit));
    }
    let units = Unit::ALL.map(Unit::name).join(", ");
    seconds(text).map(Length::Seconds).map_err(|error| format!("{error}; or one of {units}"))
}

fn options(args: AdviseArgs) -> Options {
    let mut windows = args.window;
    windows.sort_unstable();
    windows.dedup();
    Options {
        logs: args.logs,
        fields: Fields {
            format: args.format,
            time: args.time_field,
            time_format: args.time_format,
            key: args.key_field,
            policy: args.policy_field,
            path: args.path_field,
            cost: args.cost_field,
            duration: args.in_flight,
        },
        only: Only { policy: args.policy, path: args.path },
        exclude: args.exclude,
        windows,
        time_zone: args.time_zone,
        sliding: args.sliding,
        quotas: args.quota,
        limits: Limits { users: args.max_users / 100.0, windows: args.max_windows / 100.0 },
        show_users: args.show_users,
        without_top: args.without_top,
        memory: args.memory,
        lateness_s: args.lateness,
        threads: args
            .threads
            .or_else(|| thread::available_parallelism().ok())
            .map_or(1, NonZeroUsize::get),
        progress: true,
    }
}
