//! The `quotagate` command: parses its arguments and calls the libraries.

mod check;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Exact, global quotas for Envoy, shared in Redis or Redis Cluster.
#[derive(Parser)]
#[command(name = "quotagate", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the store: the service that keeps the counters
    Serve(serve::Args),
    /// Find the faults of a policy document without Envoy
    Check(check::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(args) => serve::run(args).map(|()| ExitCode::SUCCESS),
        Command::Check(args) => check::run(&args),
    };
    match done {
        Ok(status) => status,
        Err(sentence) => {
            eprintln!("quotagate: {sentence}");
            ExitCode::from(2)
        }
    }
}
