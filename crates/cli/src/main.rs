//! The `quotagate` command: parses its arguments and calls the libraries.

mod advise;
mod check;
mod convert;
mod health;
mod merge;
mod operate;
mod ratelimit;
mod rules;
mod serve;
mod standard;
mod text;
mod token;
mod values;

use std::{
    env,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::LazyLock,
};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use quotagate_quota::config::schema;

use standard::{error_line, print};

/// Exact, global quotas for Envoy, shared in Redis or Redis Cluster.
#[derive(Parser)]
#[command(name = "quotagate", version = VERSION.as_str())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the store: the service that keeps the counters
    Serve(serve::ServeArgs),
    /// Run the rate limit service: answers Envoy's rate limit protocol, like envoyproxy/ratelimit
    Ratelimit(ratelimit::RatelimitArgs),
    /// Check policy documents, or rules of the rate limit service, offline
    Check(check::CheckArgs),
    /// Write a policy document for the filter from rules of the rate limit service
    Convert(convert::ConvertArgs),
    /// Print the policy documents that QuotaPolicies and other Kubernetes objects of a folder make
    Merge(merge::MergeArgs),
    /// Read access logs and recommend a quota
    Advise(advise::AdviseArgs),
    /// Print the JSON Schema of the policy document, for editors
    Schema {
        /// Print the reference page of the document instead, in Markdown
        #[arg(long)]
        markdown: bool,
    },
    /// Ask a running store whether it is healthy, for health checks
    Health(health::HealthArgs),
    #[command(flatten)]
    Operate(operate::Operation),
    /// Make a token for an operator
    Token(token::TokenArgs),
    /// Print a script with which a shell completes these commands
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write a man page for each command
    #[command(hide = true)]
    Man {
        /// An existing folder
        folder: PathBuf,
    },
}

/// The version, and the commit if the build names one.
static VERSION: LazyLock<String> =
    LazyLock::new(|| version(env!("CARGO_PKG_VERSION"), option_env!("QUOTAGATE_COMMIT")));

fn main() -> ExitCode {
    let cli = match Cli::try_parse_from(arguments(env::args_os().collect())) {
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
        Command::Ratelimit(args) => ratelimit::run(args).map(|()| ExitCode::SUCCESS),
        Command::Check(args) => check::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Merge(args) => merge::run(&args),
        Command::Advise(args) => advise::run(args),
        Command::Schema { markdown } => {
            print(&if markdown { schema::page() } else { schema::text() })
        }
        Command::Health(args) => health::run(&args),
        Command::Operate(operation) => Ok(operate::run(&operation)),
        Command::Token(args) => token::run(&args),
        Command::Completions { shell } => completions(shell),
        Command::Man { folder } => man(&folder),
    };
    match done {
        Ok(status) => status,
        Err(sentence) => refuse(&sentence),
    }
}

/// The arguments, with those that a name of the program stands for: `/bin/ratelimit`, the path of
/// envoyproxy/ratelimit in its image, is `quotagate ratelimit`.
fn arguments(mut given: Vec<OsString>) -> Vec<OsString> {
    let is_service = |word: &OsString| Path::new(word).file_name() == Some(OsStr::new("ratelimit"));
    if given.first().is_some_and(is_service) {
        // That program reads no arguments. Where an image has it as its entry point, and a compose
        // file as the command, its own name is one.
        let names = if given.get(1).is_some_and(is_service) { 2 } else { 1 };
        given.splice(..names, ["quotagate", "ratelimit"].map(OsString::from));
    }
    given
}

fn completions(shell: Shell) -> Result<ExitCode, String> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "quotagate", &mut text);
    print(&String::from_utf8_lossy(&text))
}

fn man(folder: &Path) -> Result<ExitCode, String> {
    clap_mangen::generate_to(Cli::command(), folder)
        .map_err(|error| format!("cannot write man pages to {}: {error}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn version(number: &str, commit: Option<&str>) -> String {
    match commit.filter(|commit| !commit.is_empty()) {
        Some(commit) => format!("{number} ({commit})"),
        None => number.to_owned(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_names_the_commit_if_the_build_does() {
        assert_eq!(version("0.1.0", Some("abcdef123456")), "0.1.0 (abcdef123456)");
        assert_eq!(version("0.1.0", None), "0.1.0");
        assert_eq!(version("0.1.0", Some("")), "0.1.0");
    }

    #[test]
    fn command_named_ratelimit_is_the_rate_limit_service() {
        let read = |given: &[&str]| -> Vec<String> {
            let read = arguments(given.iter().map(OsString::from).collect());
            read.into_iter().map(|word| word.into_string().unwrap()).collect()
        };
        let service = ["quotagate", "ratelimit"];
        assert_eq!(read(&["/bin/ratelimit"]), service);
        assert_eq!(read(&["ratelimit"]), service);
        assert_eq!(read(&["/bin/ratelimit", "/bin/ratelimit"]), service);
        let flags = ["--config", "ratelimit"];
        let with = |words: &[&str]| read(&[words, &flags].concat());
        assert_eq!(with(&["/bin/ratelimit"]), [service, flags].concat());
        for other in [&["/quotagate", "serve"][..], &["/ratelimit/quotagate", "ratelimit"], &[]] {
            assert_eq!(read(other), other);
        }
    }

    #[test]
    fn every_command_has_a_man_page() {
        let folder = tempfile::tempdir().unwrap();
        man(folder.path()).unwrap();
        let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(page("quotagate.1").contains("quotagate\\-serve(1)"), "{}", page("quotagate.1"));
        assert!(page("quotagate-serve.1").contains("QUOTAGATE_STORE"));
        assert!(page("quotagate-dial-set.1").contains(r"\-\-quota"));
        assert!(!folder.path().join("quotagate-man.1").exists(), "it is for packagers");
        let error = man(&folder.path().join("absent")).unwrap_err();
        assert!(error.contains("absent"), "{error}");
    }
}
