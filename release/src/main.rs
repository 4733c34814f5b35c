//! `cargo xtask package` runs this after it has built the parts.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Parser;
use quotagate_release::{Architecture, Parts, pack, sums};

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
    /// The program that makes Debian packages.
    #[arg(long)]
    cargo_deb: PathBuf,
    /// The secret key to sign the digests with.
    #[arg(long)]
    sign: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(listing) => {
            print!("{listing}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<String> {
    let Args { parts, folder, architectures, commit, epoch, cargo_deb, sign } = args;
    let parts = Parts::find(&parts, &architectures, commit, epoch)?;
    pack(&parts, &cargo_deb, &folder)?;
    if let Some(key) = sign {
        sums::sign(&folder, &key, &format!("quotagate {}", parts.version))?;
    }
    sums::listing(&folder)
}
