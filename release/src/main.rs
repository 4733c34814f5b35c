//! `cargo xtask package` runs this after it has built the parts.

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use quotagate_release::{Architecture, Parts, pack};

/// Packs what a release publishes.
#[derive(Parser)]
struct Args {
    /// Where the parts are.
    #[arg(long)]
    parts: PathBuf,
    /// The folder to write. What is in it is removed.
    #[arg(long)]
    folder: PathBuf,
    /// An architecture that was built.
    #[arg(long = "architecture", required = true)]
    architectures: Vec<Architecture>,
    /// The commit that was built.
    #[arg(long)]
    commit: Option<String>,
    /// The time that packed files carry, in seconds since 1970.
    #[arg(long)]
    epoch: u64,
}

fn main() -> ExitCode {
    let Args { parts, folder, architectures, commit, epoch } = Args::parse();
    let packed =
        Parts::find(&parts, &architectures, commit, epoch).and_then(|parts| pack(&parts, &folder));
    match packed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
