//! The `quotagate` command: parses its arguments and calls the libraries.

mod advise;
mod check;
mod health;
mod operate;
mod serve;
mod standard;
mod text;
mod values;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use quotagate_quota::config::schema;

use standard::{error_line, print};

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
    /// Check policy documents offline: faults and likely mistakes
    Check(check::Args),
    /// Read access logs and recommend a quota
    Advise(advise::Args),
    /// Print the JSON Schema of the policy document, for editors
    Schema {
        /// Print the reference page of the document instead, in Markdown
        #[arg(long)]
        markdown: bool,
    },
    /// Ask a running store whether it is healthy, for health checks
    Health(health::Args),
    #[command(flatten)]
    Operate(operate::Operation),
    /// Print a script with which a shell completes these commands
    Completions {
        /// The shell
        shell: Shell,
    },
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and the version are no errors.
        Err(error)
            if !error.use_stderr()
                || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand =>
        {
            error.exit()
        }
        Err(error) => return refuse(&explanation(&error)),
    };
    let done = match cli.command {
        Command::Serve(args) => serve::run(args).map(|()| ExitCode::SUCCESS),
        Command::Check(args) => check::run(&args),
        Command::Advise(args) => advise::run(args),
        Command::Schema { markdown } => {
            print(&if markdown { schema::page() } else { schema::text() })
        }
        Command::Health(args) => health::run(&args),
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

/// Writes one sentence about an error.
fn refuse(sentence: &str) -> ExitCode {
    error_line(&format!("quotagate: {sentence}"));
    ExitCode::from(2)
}

/// What is wrong and a suggestion, without the usage that follows.
fn explanation(error: &clap::Error) -> String {
    let text = error.to_string();
    let problem = text.split("\n\n").next().unwrap_or(&text).trim_start_matches("error: ");
    let kinds =
        [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let meant = kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(one) => Some(one.as_str()),
        // clap sorts the most similar one last.
        ContextValue::Strings(several) => several.last().map(String::as_str),
        _ => None,
    });
    meant.map_or_else(|| problem.to_owned(), |meant| format!("{problem}\nDid you mean {meant}?"))
}
