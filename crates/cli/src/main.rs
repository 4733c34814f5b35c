//! The `quotagate` command: parses its arguments and calls the libraries.

mod advise;
mod check;
mod operate;
mod serve;
mod standard;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
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
        Err(error) => return refuse(&explanation(&error)),
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

/// What is wrong, and what could have been meant; without the usage that follows.
fn explanation(error: &clap::Error) -> String {
    let text = error.to_string();
    let wrong = text.split("\n\n").next().unwrap_or(&text).trim_start_matches("error: ");
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let meant = kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(one) => Some(one.as_str()),
        // The most similar comes last.
        ContextValue::Strings(several) => several.last().map(String::as_str),
        _ => None,
    });
    meant.map_or_else(|| wrong.to_owned(), |meant| format!("{wrong}\nDid you mean {meant}?"))
}
