//! Tasks that live in packages of their own: each is built and run with the user's arguments.

use std::ffi::OsString;

use anyhow::Result;
use clap::{Arg, Command, value_parser};
use quotagate_workspace::{paths, task};

use crate::{
    build,
    setup::{self, Consent, Part},
};

/// One of these tasks.
pub struct Task {
    /// The task as the user types it.
    pub name: &'static str,
    about: &'static str,
    /// How Cargo finds the program.
    program: &'static [&'static str],
    /// What must be installed.
    needs: &'static [Part],
    /// What must be built.
    builds: &'static [fn() -> Result<()>],
}

/// With one of these arguments, a task needs nothing else: it only prints, or measures what it
/// builds itself, or runs nothing.
const ALONE: [&str; 5] = ["--help", "-h", "--list", "--micro", "--skip"];

/// Measurements of the released programs run the release build. The panicking filter comes with the
/// build of the tests.
pub const TASKS: &[Task] = &[
    Task {
        name: "bench",
        about: "Measure what a request costs with the filter, with others, and with none (Linux)",
        program: &["--package", "quotagate-bench"],
        needs: &[Part::WasmTarget, Part::Envoy, Part::Redis, Part::Bench],
        builds: &[build::release],
    },
    Task {
        name: "scale",
        about: "Simulate a fleet in virtual time, exact quotas against leases",
        program: &["--release", "--package", "quotagate-scale"],
        needs: &[],
        builds: &[],
    },
    Task {
        name: "chaos",
        about: "Inject faults into a running system under load",
        program: &["--package", "quotagate-chaos"],
        needs: &[Part::WasmTarget, Part::Envoy, Part::Redis],
        builds: &[build::release, build::panicking],
    },
    Task {
        name: "soak",
        about: "Minutes of mixed load under rolling restarts, every window held to its quota",
        program: &["--package", "quotagate-chaos", "--bin", "soak"],
        needs: &[Part::WasmTarget, Part::Envoy, Part::Redis],
        builds: &[build::release],
    },
    Task {
        name: "compose",
        about: "Run the compose files on a Docker engine, with dist/release, and check them from outside",
        program: &["--package", "quotagate-compose"],
        needs: &[Part::Envoy, Part::Chromium, Part::Docker, Part::Images],
        builds: &[],
    },
    Task {
        name: "mesh",
        about: "Apply the shipped files to the real Envoy Gateway, istiod and kube-apiserver, and check them",
        program: &["--package", "quotagate-mesh"],
        needs: &[Part::WasmTarget, Part::Envoy, Part::Redis, Part::Mesh],
        builds: &[build::release],
    },
    Task {
        name: "screenshot",
        about: "Take the picture of the live page under real traffic: docs/live-page.png",
        program: &["--package", "quotagate-page", "--example", "screenshot"],
        needs: &[Part::WasmTarget, Part::Envoy, Part::Redis, Part::Chromium],
        builds: &[build::release],
    },
];

impl Task {
    /// Its command line.
    pub fn command(&self) -> Command {
        let arguments = Arg::new("arguments")
            .value_parser(value_parser!(OsString))
            .num_args(0..)
            .trailing_var_arg(true)
            .allow_hyphen_values(true)
            .help("Passed on to the task; `-- --help` lists them");
        Command::new(self.name).about(self.about).arg(arguments)
    }

    /// Sets up, builds and runs it.
    pub fn run<'a>(&self, arguments: impl Iterator<Item = &'a OsString>) -> Result<()> {
        let arguments: Vec<&OsString> = arguments.collect();
        if !self.needs.is_empty() && !is_alone(&arguments) {
            setup::run(self.needs, Consent::NotGiven)?;
            self.builds.iter().try_for_each(|build| build())?;
        }
        task::step(&format!("{}: {}", self.name, self.about));
        let mut cargo = task::cargo();
        cargo.args(["run", "--quiet", "--locked"]).args(self.program).arg("--").args(arguments);
        task::replace_by(cargo.env(paths::PARTS, paths::dist()))
    }
}

/// Whether a task with these arguments needs no other build.
fn is_alone(arguments: &[&OsString]) -> bool {
    arguments.iter().filter_map(|argument| argument.to_str()).any(|text| {
        // `--skip=REASON` is `--skip REASON`.
        let name = text.split_once('=').map_or(text, |(name, _)| name);
        ALONE.contains(&name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_lists_micro_benches_and_skipped_runs_need_no_other_build() {
        let is_alone = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            is_alone(&words.iter().collect::<Vec<_>>())
        };
        assert!(is_alone(&["--micro"]) && is_alone(&["--only", "redis_killed", "--list"]));
        assert!(is_alone(&["--skip", "no engine"]) && is_alone(&["--skip=no engine"]));
        assert!(!is_alone(&["--quick"]) && !is_alone(&[]));
    }
}
