//! `cargo xtask scale`: what a fleet costs its Redis, exact against lease, as a Markdown table.

use std::num::{NonZeroU32, NonZeroUsize};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use quotagate_scale::report::{HEAD, row};
use quotagate_scale::setup::{Fleet, NetworkSetup, Precision, Setup, Spread};
use quotagate_scale::suite::{self, Run};
use quotagate_scale::{batching, pool};

/// Simulates a fleet in virtual time, and prints what it costs its Redis
#[derive(Debug, Parser)]
#[command(name = "quotagate-scale", version)]
struct Arguments {
    /// Proxies, of one worker each
    #[arg(long, default_value = "1000")]
    proxies: NonZeroU32,
    /// Partitions that ask
    #[arg(long, default_value = "10000000")]
    partitions: NonZeroU32,
    /// The exponent of the partitions' Zipf distribution
    #[arg(long, default_value_t = 1.0, value_parser = not_negative)]
    zipf: f64,
    /// Requests a second of the whole fleet
    #[arg(long, default_value_t = 250_000.0, value_parser = positive)]
    rate: f64,
    /// Units of a partition a window
    #[arg(long, default_value_t = 10_000)]
    quota: u64,
    /// The window, in seconds
    #[arg(long, default_value = "10")]
    window: NonZeroU32,
    /// Windows of virtual time; the first is the warm-up
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    windows: u32,
    /// The median time from a call to its reply, in milliseconds
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    round_trip: f64,
    /// How far that spreads: the sigma of a log-normal distribution
    #[arg(long, default_value_t = 0.5, value_parser = not_negative)]
    sigma: f64,
    /// The chance that a message is lost
    #[arg(long, default_value_t = 0.0, value_parser = chance)]
    lost: f64,
    /// The chance that a message is later than a request waits
    #[arg(long, default_value_t = 0.0, value_parser = chance)]
    late: f64,
    /// The same seed draws the same requests
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many runs go on at once; each takes up to about a gigabyte with ten million partitions
    #[arg(long)]
    jobs: Option<NonZeroUsize>,
    /// Only the runs that begin with this, such as "exact" or "lease 1s, one counter"; without the
    /// model of batching
    #[arg(long)]
    only: Option<String>,
}

fn main() -> ExitCode {
    match perform(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(arguments: &Arguments) -> Result<()> {
    let begun = Instant::now();
    let base = arguments.base()?;
    let mut runs: Vec<Run> = suite::runs(&base);
    if let Some(only) = &arguments.only {
        runs.retain(|run| run.title().starts_with(only));
        if runs.is_empty() {
            bail!(
                "--only {only}: no title of a run begins so; the titles are\n{}",
                titles(&suite::runs(&base))
            );
        }
    }
    let jobs = arguments
        .jobs
        .or_else(|| thread::available_parallelism().ok())
        .map_or(1, NonZeroUsize::get);
    let reports = pool::reports(&runs, jobs)?;
    println!("{HEAD}");
    let mut faults = Vec::new();
    for (run, report) in runs.iter().zip(&reports) {
        println!("{}", row(&run.fleet, run.precision, report));
        faults.extend(report.fault().map(|fault| format!("{}: {fault}", run.title())));
    }
    println!(
        "\n{} runs of {} s in {:.0} s{}",
        runs.len(),
        base.length.as_secs(),
        begun.elapsed().as_secs_f64(),
        peak().map_or(String::new(), |kib| format!(
            ", at most {:.1} GiB",
            kib as f64 / 1024.0 / 1024.0
        ))
    );
    if arguments.only.is_none() {
        println!("\n{}", batching::table()?);
    }
    if faults.is_empty() { Ok(()) } else { bail!("{}", faults.join("\n")) }
}

fn titles(runs: &[Run]) -> String {
    runs.iter().map(Run::title).collect::<Vec<_>>().join("\n")
}

impl Arguments {
    fn base(&self) -> Result<Setup> {
        let window = Duration::from_secs(self.window.get().into());
        Ok(Setup {
            fleet: Fleet {
                proxies: self.proxies,
                partitions: self.partitions,
                zipf: self.zipf,
                rate: self.rate,
                together: NonZeroU32::MIN,
                spread: Spread::All,
            },
            network: NetworkSetup {
                round_trip: Duration::try_from_secs_f64(self.round_trip / 1000.0)
                    .context("--round-trip")?,
                sigma: self.sigma,
                slow: None,
                lost: self.lost,
                late: self.late,
            },
            quota: self.quota,
            window_s: self.window,
            precision: Precision::Exact,
            length: window * self.windows,
            warm_up: window,
            seed: self.seed,
        })
    }
}

fn number(text: &str, is_allowed: impl Fn(f64) -> bool, allowed: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && is_allowed(*number));
    number.ok_or_else(|| format!("must be a number {allowed}"))
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |n| n > 0.0, "greater than 0")
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |n| n >= 0.0, "of 0 or more")
}

fn chance(text: &str) -> Result<f64, String> {
    number(text, |n| (0.0..=1.0).contains(&n), "from 0 to 1")
}

/// The peak memory of this process in KiB, if the system knows it.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}
