//! The project's tasks: `cargo xtask setup|build|demo|test|fuzz|bench|scale|chaos|soak|screenshot|deny|ci`.

mod bench;
mod build;
mod chaos;
mod check;
mod demo;
mod deny;
mod fuzz;
mod run;
mod scale;
mod screenshot;
mod setup;
mod soak;

use std::{ffi::OsString, process::ExitCode};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Build, try and test quotagate", version)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Find or fetch what the other tasks need: the Wasm target, Envoy, redis-server, Chromium
    Setup,
    /// Build dist/quotagate.wasm (the filter) and dist/quotagate (the store and the commands)
    Build,
    /// Run the whole thing: store, sample upstream, real Envoy with the filter
    Demo(DemoArgs),
    /// Set up, build, and run every test
    Test,
    /// Feed hostile bytes to what reads configurations, requests and replies
    Fuzz(FuzzArgs),
    /// Simulate a fleet in virtual time, exact against lease; `-- --help` tells what can be changed
    Scale(PassedOn),
    /// Inject faults into a running system under load; `-- --help` tells what can be changed
    Chaos(PassedOn),
    /// Minutes of mixed load under rolling restarts, every window held to its quota; `soak 10`
    Soak(PassedOn),
    /// Look at all crates: licences, sources, duplicates, known vulnerabilities
    Deny,
    /// Format, lints, documentation, crates, every test, and the demo once
    Ci,
    /// Take the picture of the live page for the README, with real traffic: docs/live-page.png
    Screenshot(PassedOn),
    /// Measure what a request costs with the filter, with others, and with none (Linux; best on a quiet machine)
    Bench(bench::BenchArgs),
}

/// How to run the demo.
#[derive(Debug, Args)]
struct DemoArgs {
    /// Send a scripted burst, print what each request got, and end: 0 only if all is as it should be
    #[arg(long)]
    once: bool,
    /// The port that Envoy listens on
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
}

/// How long to look.
#[derive(Debug, Args)]
struct FuzzArgs {
    /// For how many seconds each target runs, where there is cargo-fuzz
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
}

/// What the task's own package knows.
#[derive(Debug, Args)]
struct PassedOn {
    /// What is passed on to it
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

fn main() -> ExitCode {
    match perform(Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(task: Task) -> Result<()> {
    match task {
        Task::Setup => {
            setup::run(setup::Redis::Fetch)?;
            setup::chromium()?;
            setup::promtool().map(drop)
        }
        Task::Build => build::run(),
        Task::Demo(arguments) => demo::run(arguments.port, arguments.once),
        Task::Test => check::test(),
        Task::Fuzz(arguments) => fuzz::run(arguments.seconds),
        Task::Scale(arguments) => scale::run(&arguments.arguments),
        Task::Chaos(arguments) => chaos::run(&arguments.arguments),
        Task::Soak(arguments) => soak::run(&arguments.arguments),
        Task::Deny => deny::run(),
        Task::Ci => check::ci(),
        Task::Screenshot(arguments) => screenshot::run(&arguments.arguments),
        Task::Bench(arguments) => bench::run(&arguments),
    }
}
