//! The `quotagate` command: parses its arguments and calls the libraries.

mod advise;
mod check;
mod operate;
mod serve;
mod standard;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use quotagate_quota::config::schema;

use standard::{print, tell_line};

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
    /// Read access logs and say which quota would have refused whom
    Advise(advise::Args),
    /// Print the JSON Schema of the policy document, by which editors complete and check it
    Schema,
    #[command(flatten)]
    Operate(operate::Operation),
    /// Print what makes a shell complete these commands
    Completions {
        /// Which shell
        shell: Shell,
    },
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version are no faults.
        Err(error)
            if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand =>
        {
            error.exit()
        }
        Err(error) => return refuse(first_paragraph(&error.to_string())),
    };
    let done = match cli.command {
        Command::Serve(args) => serve::run(args).map(|()| ExitCode::SUCCESS),
        Command::Check(args) => check::run(&args),
        Command::Advise(args) => advise::run(args),
        Command::Schema => print(&schema::text()),
        Command::Operate(operation) => Ok(operate::run(&operation)),
        Command::Completions { shell } => completions(shell),
    };
    match done {
        Ok(status) => status,
        Err(sentence) => refuse(&sentence),
    }
}

fn completions(shell: Shell) -> Result<ExitCode, String> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "quotagate", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// Says in one sentence what is wrong with the call.
fn refuse(sentence: &str) -> ExitCode {
    tell_line(&format!("quotagate: {sentence}"));
    ExitCode::from(2)
}

/// What is wrong, without the usage and the hints that follow.
fn first_paragraph(error: &str) -> &str {
    error.split("\n\n").next().unwrap_or(error).trim_start_matches("error: ")
}
