//! `cargo xtask compose`: starts the compose files on a Docker engine with the images of
//! `dist/release`, checks them from outside, and removes everything again.

mod burst;
mod engine;
mod images;
mod program;
mod project;
mod scenario;
mod stand_in;

use std::{process::ExitCode, time::Instant};

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use quotagate_support::ports;
use quotagate_workspace::task;

use engine::{Engine, Machine, Plan};
use images::Images;
use project::{Project, Variant};

/// Run the compose files on a Docker engine and check them from outside
#[derive(Debug, Parser)]
#[command(name = "cargo xtask compose", version)]
struct Cli {
    /// What to run
    #[arg(long, value_enum, default_value_t = Profile::Wasm)]
    profile: Profile,
    /// The port of Envoy [default: any free one]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Run nothing, and write into the log that and why: for machines without an engine
    #[arg(long, value_name = "REASON", num_args = 0..=1, default_missing_value = "")]
    skip: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Profile {
    /// docker-compose.yml: the Wasm filter and its stores
    Wasm,
    /// docker-compose.native.yml: the native module, without stores
    Native,
    /// docker-compose.ratelimit.yml: the rate limit service
    RateLimit,
    /// One after the other, on one engine
    All,
}

fn main() -> ExitCode {
    task::ended(run(&Cli::parse()).map(|()| ExitCode::SUCCESS))
}

fn run(cli: &Cli) -> Result<()> {
    // An engine that does not answer must not delay this.
    if let Some(reason) = cli.skip.as_deref().filter(|reason| !reason.is_empty()) {
        task::note(&skipped(reason, &Plan::Use));
        return Ok(());
    }
    let plan = engine::plan(&Machine::look());
    if let Some(reason) = &cli.skip {
        task::note(&skipped(reason, &plan));
        return Ok(());
    }
    if let Some(port) = cli.port.filter(|port| !ports::is_free(*port)) {
        bail!("port {port} is taken: choose another with --port, or leave it out for any free one");
    }
    program::listen_for_ctrl_c()?;
    let start = Instant::now();
    let engine = Engine::open(plan)?;
    let variants: &[Variant] = match cli.profile {
        Profile::Wasm => &[Variant::Wasm],
        Profile::Native => &[Variant::Native],
        Profile::RateLimit => &[Variant::RateLimit],
        Profile::All => &[Variant::Wasm, Variant::Native, Variant::RateLimit],
    };
    let checked = check(&engine, variants, cli.port);
    let stopped = engine.stop();
    checked.and(stopped)?;
    task::step(&format!("compose: all checks passed in {} s", start.elapsed().as_secs()));
    Ok(())
}

fn check(engine: &Engine, variants: &[Variant], port: Option<u16>) -> Result<()> {
    let mut images = Images::new(engine);
    let checked = images.provide().and_then(|()| {
        variants.iter().try_for_each(|variant| {
            let mut project = Project::new(engine, *variant, &images, port)?;
            let checked = scenario::run(&project);
            if checked.is_err() {
                project.explain();
            }
            let removed = project.remove();
            checked.and(removed)
        })
    });
    let removed = images.remove();
    checked.and(removed)
}

/// What the log says instead of the checks.
fn skipped(reason: &str, plan: &Plan) -> String {
    let why = match (reason, plan) {
        ("", Plan::Impossible(why)) => why.as_str(),
        ("", _) => "--skip was given, although this machine could run it",
        (reason, _) => reason,
    };
    format!("compose: NOT RUN: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_why_compose_was_not_run() {
        let impossible = Plan::Impossible("no engine".to_owned());
        assert_eq!(skipped("", &impossible), "compose: NOT RUN: no engine");
        assert_eq!(skipped("nested runner", &impossible), "compose: NOT RUN: nested runner");
        assert!(skipped("", &Plan::Use).contains("although this machine could run it"));
    }

    #[test]
    fn skip_takes_a_reason_or_none() {
        let skip = |words: &[&str]| Cli::try_parse_from(words).unwrap().skip;
        assert_eq!(skip(&["compose"]), None);
        assert_eq!(skip(&["compose", "--skip"]).as_deref(), Some(""));
        assert_eq!(skip(&["compose", "--skip", "no engine"]).as_deref(), Some("no engine"));
    }
}
