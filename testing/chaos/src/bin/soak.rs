//! `cargo xtask soak MINUTES`: mixed load under rolling restarts, and a page with the result.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use quotagate_chaos::soak::{self, page, picture};
use quotagate_support::paths;

/// Runs everything under mixed load for minutes, and holds every window to its quota
#[derive(Debug, Parser)]
#[command(name = "soak", version)]
struct SoakArguments {
    /// How long
    #[arg(default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: u64,
    /// The same seed draws the same requests
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the page (soak.md) and the picture (soak.svg) go; by default docs/operate
    #[arg(long, value_name = "DIRECTORY")]
    to: Option<PathBuf>,
}

fn main() -> ExitCode {
    match perform(&SoakArguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(arguments: &SoakArguments) -> Result<()> {
    let soaked = soak::run(Duration::from_secs(arguments.minutes * 60), arguments.seed)?;
    let page = page::page(&soaked, arguments.seed);
    println!("{page}");
    let faults = soaked.faults();
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    let to = arguments.to.clone().unwrap_or_else(|| paths::root().join("docs/operate"));
    fs::write(to.join("soak.md"), page)
        .with_context(|| format!("cannot write to {}", to.display()))?;
    picture::draw(&soaked, &to.join("soak.svg"))
}
