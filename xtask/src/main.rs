//! The project's tasks: `cargo xtask setup`, `build`, `demo`, `check`, `test`, `ci` and more.

mod build;
mod ci;
mod delegate;
mod demo;
mod deny;
mod fuzz;
mod lint;
mod package;
mod sanitize;
mod setup;
mod test;
mod versions;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use setup::{Consent, Part};

fn main() -> ExitCode {
    let matches = command().get_matches();
    let performed =
        matches.subcommand().context("no task").and_then(|(task, args)| perform(task, args));
    match performed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command() -> Command {
    let yes = || {
        let about =
            "Install missing system packages with apt-get, through sudo unless you are root";
        Arg::new("yes").long("yes").short('y').action(ArgAction::SetTrue).help(about)
    };
    let flag = |name: &'static str, about: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(about)
    };
    let tasks = [
        Command::new("setup")
            .about("Find or fetch what the tasks need: the Wasm target, Envoy, Redis, Chromium and more")
            .args([
                yes(),
                flag("bench", "Also wrk, valgrind and h2load, which `cargo xtask bench` needs"),
                flag("compose", "Also Docker and Docker Compose 2, which `cargo xtask compose` needs"),
                flag("mesh", "Also etcd and kubectl, which `cargo xtask mesh` needs"),
                flag("native", "Also cargo-zigbuild and zig, which link the native module for old systems"),
                flag("release", "Also what `cargo xtask test --release` installs a release with"),
            ]),
        Command::new("build")
            .about("Build dist/quotagate.wasm and dist/quotagate-bodies.wasm (the filter), dist/libquotagate.so (the native module) and dist/quotagate (the store and the commands)")
            .args([
                flag("dev", "Build what tests run, in target/parts, without optimising the command"),
                flag("unbatched", "Build only the filter without batching, for `cargo xtask bench`")
                    .conflicts_with("dev"),
                Arg::new("target")
                    .long("target")
                    .value_name("ARCHITECTURE")
                    .value_parser(build::native::ARCHITECTURES)
                    .conflicts_with_all(["dev", "unbatched", "without-logic"])
                    .help("Build only the native module, for this architecture, in dist/ARCHITECTURE"),
                flag("without-logic", "Build only the filter without logic, for `cargo xtask bench`")
                    .conflicts_with_all(["dev", "unbatched"]),
            ]),
        Command::new("demo")
            .about("Run everything on this machine: the store, a sample upstream, Envoy with the filter")
            .args([
                yes(),
                flag("once", "Send a scripted burst, print the responses, and fail if one is wrong"),
                flag("native", "Load the native module into Envoy, which needs no store"),
                Arg::new("port")
                    .long("port")
                    .default_value("10000")
                    .value_parser(value_parser!(u16).range(1..))
                    .help("The port that Envoy listens on"),
            ]),
        Command::new("check")
            .about("Format, prose, lints, and the tests of the pure crates: needs Rust and Python only"),
        Command::new("test")
            .about("Build, and run every test: sets up like `setup`, and as root installs what is missing")
            .args([yes(), flag("release", "Instead install dist/release, and try it: needs root")]),
        Command::new("ci")
            .about("Everything a change must pass: check, documentation, dependencies, test, demo, package, budgets of instructions, compose")
            .args([
                yes(),
                Arg::new("skip-compose")
                    .long("skip-compose")
                    .value_name("REASON")
                    .help("Do not run the compose files, and say so in the log"),
            ]),
        Command::new("package")
            .about("Build and pack everything that a release publishes, in dist/release")
            .arg(
                Arg::new("architecture")
                    .long("architecture")
                    .value_parser(build::native::ARCHITECTURES)
                    .action(ArgAction::Append)
                    .default_values(build::native::ARCHITECTURES)
                    .help("Only for this architecture; may be repeated"),
            )
            .arg(
                Arg::new("sign")
                    .long("sign")
                    .value_name("KEY")
                    .value_parser(value_parser!(PathBuf))
                    .help("Sign SHA256SUMS with this secret key of minisign"),
            ),
        Command::new("fuzz").about("Feed hostile bytes to the readers of policies, keys and replies").arg(
            Arg::new("seconds")
                .long("seconds")
                .default_value("60")
                .value_parser(value_parser!(u32).range(1..))
                .help("How long each target runs where cargo-fuzz is installed"),
        ),
        Command::new("sanitize")
            .about("Test the native module under sanitizers: needs a nightly Rust with its source"),
        Command::new("versions")
            .about("Test this version beside an earlier one, beside envoyproxy/ratelimit, and with each supported Envoy")
            .args([
                yes(),
                Arg::new("previous")
                    .long("previous")
                    .value_name("REVISION")
                    .help("Filters and stores of this revision and of this tree, in all combinations"),
                Arg::new("record")
                    .long("record")
                    .value_name("NAME")
                    .requires("previous")
                    .help("Also record its messages, for the two recorded.rs of crates/quota and crates/store"),
                Arg::new("original")
                    .long("original")
                    .value_name("PATH")
                    .value_parser(value_parser!(PathBuf))
                    .help("The rate limit service beside this program of envoyproxy/ratelimit: the same requests, the same answers"),
                Arg::new("envoy")
                    .long("envoy")
                    .value_name("VERSION")
                    .num_args(0..)
                    .help("The short suite with these versions of Envoy; without one, with all"),
            ]),
        Command::new("deny").about("Check all dependencies: licences, sources, duplicates, vulnerabilities"),
    ];
    Command::new("cargo xtask")
        .bin_name("cargo xtask")
        .about("Build, try and test quotagate")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(tasks)
        .subcommands(delegate::TASKS.iter().map(delegate::Task::command))
}

fn perform(task: &str, arguments: &ArgMatches) -> Result<()> {
    let flag =
        |name| arguments.try_get_one::<bool>(name).ok().flatten().copied().unwrap_or_default();
    let consent = consent(task, flag("yes"));
    match task {
        "setup" => {
            let further = [
                (Part::Bench, flag("bench")),
                (Part::Zig, flag("native")),
                (Part::Docker, flag("compose")),
                (Part::Images, flag("release") || flag("compose")),
                (Part::Release, flag("release")),
                (Part::Emulator, flag("release")),
                (Part::Mesh, flag("mesh")),
            ];
            let further = further.into_iter().filter_map(|(part, wanted)| wanted.then_some(part));
            setup::run(&Part::ALL.iter().copied().chain(further).collect::<Vec<_>>(), consent)
        }
        "build" if flag("unbatched") => build::unbatched(),
        "build" if flag("without-logic") => build::without_logic(),
        "build" if flag("dev") => build::tests().map(drop),
        "build" => match arguments.get_one::<String>("target") {
            Some(architecture) => build::native::for_architecture(architecture),
            None => build::release(),
        },
        "demo" => {
            let port = arguments.get_one::<u16>("port").copied().context("no port")?;
            demo::Demo { port, once: flag("once"), native: flag("native") }.run(consent)
        }
        "check" => ci::check(),
        "test" if flag("release") => test::release(consent),
        "test" => test::run(consent).map(drop),
        "ci" => ci::run(consent, arguments.get_one("skip-compose").map(String::as_str)),
        "fuzz" => fuzz::run(arguments.get_one::<u32>("seconds").copied().context("no seconds")?),
        "package" => {
            let architectures = arguments.get_many("architecture").context("no architecture")?;
            let sign = arguments.get_one("sign").cloned();
            package::Package { architectures: architectures.cloned().collect(), sign }.run()
        }
        "sanitize" => sanitize::run(),
        "versions" => {
            let text = |name| arguments.get_one::<String>(name).map(String::as_str);
            let envoys = arguments.get_many::<String>("envoy");
            let envoys = envoys.map(|named| named.map(String::as_str).collect());
            let named = arguments.value_source("envoy").is_some();
            versions::Versions {
                previous: text("previous"),
                record: text("record"),
                original: arguments.get_one::<PathBuf>("original").map(PathBuf::as_path),
                envoys: envoys.or_else(|| named.then(Vec::new)),
            }
            .run(consent)
        }
        "deny" => deny::run(),
        other => {
            let task =
                delegate::TASKS.iter().find(|task| task.name == other).context("no such task")?;
            task.run(arguments.get_many::<OsString>("arguments").into_iter().flatten())
        }
    }
}

/// Whether a task may install system packages. The two tasks that a newcomer runs first do, if the
/// user is root: nothing then keeps them from working on a fresh machine.
fn consent(task: &str, yes: bool) -> Consent {
    match task {
        _ if yes => Consent::Given,
        "demo" | "test" => Consent::IfRoot,
        _ => Consent::NotGiven,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_tasks_of_newcomers_install_as_root_and_others_ask() {
        for (task, expected) in [
            ("demo", Consent::IfRoot),
            ("test", Consent::IfRoot),
            ("setup", Consent::NotGiven),
            ("ci", Consent::NotGiven),
        ] {
            assert_eq!(consent(task, false), expected, "{task}");
            assert_eq!(consent(task, true), Consent::Given, "{task}");
        }
    }

    #[test]
    fn command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn delegated_tasks_pass_every_argument_on() {
        let line = ["cargo xtask", "chaos", "--only", "redis_killed", "--seed", "7"];
        let matches = command().try_get_matches_from(line).unwrap();
        let (task, arguments) = matches.subcommand().unwrap();
        assert_eq!(task, "chaos");
        assert!(arguments.get_many::<OsString>("arguments").unwrap().eq(&line[2..]));
    }
}
