//! `cargo xtask versions`: this version beside an earlier one, the rate limit service beside
//! envoyproxy/ratelimit, and the filter with every supported Envoy.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use quotagate_workspace::{paths, task, tools::ENVOY_VERSION};

use crate::{
    build::{self, Artifact},
    setup::{self, Consent, Part, pip},
};

/// The versions of Envoy that the short suite runs with. 1.38.3 was built without Wasm.
pub const ENVOYS: [&str; 5] = ["1.36.4", "1.37.0", "1.38.2", "1.39.3", ENVOY_VERSION];
/// The minor version of the first Envoy that can run the native module.
const FIRST_NATIVE: u32 = 38;
/// The end-to-end tests that run with every version of Envoy: identities, counting, answers,
/// settled costs, failures, updates and the life of a filter.
const SHORT: [&str; 15] = [
    "answers::",
    "configuration::",
    "counters::",
    "dials::",
    "disconnects::",
    "gateway::",
    "identities::",
    "leases::",
    "mark::",
    "matching::",
    "per_route::",
    "protocols::",
    "quotas::",
    "redirects::",
    "settle::",
];
/// What a version does not support in the native form: each pass of an internal redirect counts.
const UNSUPPORTED: [(u32, &str); 1] = [(38, "redirects::")];
/// What Envoy logs where the native module refuses it.
const REFUSAL: &str = "run Envoy 1.38 or later";

/// What to run.
pub struct Versions<'a> {
    /// The revision of the previous version.
    pub previous: Option<&'a str>,
    /// The name of the record to write of it.
    pub record: Option<&'a str>,
    /// The program of envoyproxy/ratelimit.
    pub original: Option<&'a Path>,
    /// The versions of Envoy for the short suite, or all of [`ENVOYS`] if it is empty. Absent: the
    /// suite does not run.
    pub envoys: Option<Vec<&'a str>>,
}

impl Versions<'_> {
    /// Builds, and runs them.
    pub fn run(&self, consent: Consent) -> Result<()> {
        if self.previous.is_none() && self.envoys.is_none() && self.original.is_none() {
            bail!("name what to run: --previous REV, --original PATH, --envoy [VERSION]...");
        }
        setup::run(&[Part::WasmTarget, Part::Envoy, Part::Redis], consent)?;
        let built = build::tests()?;
        let tests = end_to_end(&built)?;
        if let Some(revision) = self.previous {
            combinations(&tests, &previous_parts(revision)?, revision, self.record)?;
        }
        if let Some(original) = self.original {
            let original = original.canonicalize();
            let original = original.context("--original names no program")?;
            task::step("versions: the rate limit service beside envoyproxy/ratelimit");
            let mut command = in_form(&tests, "wasm");
            command.env("QUOTAGATE_ORIGINAL", original).args(["--ignored", "--nocapture"]);
            task::visibly(command.arg("rate_limit_service::original"))?;
        }
        match &self.envoys {
            None => Ok(()),
            Some(named) if named.is_empty() => envoys(&tests, &ENVOYS),
            Some(named) => envoys(&tests, named),
        }
    }
}

/// The binary of the end-to-end tests.
fn end_to_end(built: &[Artifact]) -> Result<PathBuf> {
    let mut found = built.iter().filter(|artifact| artifact.name == "e2e" && artifact.test);
    found.find_map(|artifact| artifact.executable.clone()).context("Cargo built no e2e tests")
}

/// Builds a revision in a work tree of its own, and returns the folder of its parts. What is built
/// stays below `target/versions`, so that the next run finds it.
fn previous_parts(revision: &str) -> Result<PathBuf> {
    let git = || {
        let mut git = Command::new("git");
        git.current_dir(paths::root());
        git
    };
    let commit = format!("{revision}^{{commit}}");
    let commit = task::printed(git().args(["rev-parse", "--verify", "--quiet", &commit]))
        .with_context(|| format!("{revision} is no revision of this repository"))?;
    let tree = paths::root().join("target").join("versions").join(commit.trim());
    let parts = tree.join("target").join("parts");
    if parts.join(paths::COMMAND).is_file() && parts.join(paths::MODULE).is_file() {
        task::note(&format!("{revision} is built already: {}", parts.display()));
        return Ok(parts);
    }
    task::step(&format!("build: {revision}, in {}", tree.display()));
    if !tree.join("Cargo.toml").is_file() {
        // Git may still know a folder that was deleted.
        task::visibly(git().args(["worktree", "prune"]))?;
        let add = ["worktree", "add", "--quiet", "--detach"];
        task::visibly(git().args(add).arg(&tree).arg(commit.trim()))?;
    }
    let mut cargo = task::cargo();
    // A target folder of its own: in one that both versions share, Cargo leaves the programs of
    // the version that was built last, `xtask` among them.
    cargo.current_dir(&tree).env_remove("CARGO_TARGET_DIR");
    task::visibly(cargo.args(["xtask", "build", "--dev"]))?;
    Ok(parts)
}

fn combinations(tests: &Path, parts: &Path, revision: &str, record: Option<&str>) -> Result<()> {
    if let Some(record) = record {
        task::step(&format!("record: the messages of {revision}"));
        let mut command = in_form(tests, "wasm");
        command.env("QUOTAGATE_PREVIOUS", parts).env("QUOTAGATE_RECORD", record);
        task::visibly(command.args(["--ignored", "versions::record"]))?;
    }
    for form in ["wasm", "native"] {
        task::step(&format!("versions: {revision} beside this one, {form}"));
        let mut command = in_form(tests, form);
        task::visibly(command.env("QUOTAGATE_PREVIOUS", parts).arg("versions::"))?;
    }
    Ok(())
}

/// Runs the short suite with each Envoy in each form, and prints which passed.
fn envoys(tests: &Path, versions: &[&str]) -> Result<()> {
    let mut table = Vec::new();
    let mut failed = false;
    for version in versions {
        let envoy = match env::var_os("ENVOY") {
            Some(own) if *version == ENVOY_VERSION => own.into(),
            _ => pip::fetch(&pip::envoy(version)?)?,
        };
        for form in ["wasm", "native"] {
            task::step(&format!("versions: Envoy {version}, {form}"));
            let outcome = if form == "wasm" || minor(version)? >= FIRST_NATIVE {
                let mut command = in_form(tests, form);
                let skipped = UNSUPPORTED
                    .iter()
                    .filter(|(of, _)| form == "native" && minor(version).ok() == Some(*of));
                command.args(skipped.flat_map(|(_, tests)| ["--skip", tests]));
                let passed = task::visibly(command.env("ENVOY", &envoy).args(SHORT)).is_ok();
                failed |= !passed;
                if passed { "passes" } else { "FAILS" }
            } else {
                let refused = is_refused(&envoy)?;
                failed |= !refused;
                if refused { "refuses the module, with the reason" } else { "FAILS: no reason" }
            };
            table.push(format!("Envoy {version:<8} {form:<7} {outcome}"));
        }
    }
    task::step("versions of Envoy");
    table.iter().for_each(|line| task::note(line));
    if failed { bail!("the short suite fails") } else { Ok(()) }
}

/// Whether an old Envoy refuses the native module, and its output names the remedy.
fn is_refused(envoy: &Path) -> Result<bool> {
    let mut command = Command::new(envoy);
    command.args(["--mode", "validate", "--use-dynamic-base-id", "--config-path"]);
    command.arg(paths::native_config()).env("ENVOY_DYNAMIC_MODULES_SEARCH_PATH", paths::tests());
    let output = command.current_dir(paths::root()).output().context("cannot run Envoy")?;
    let said = String::from_utf8_lossy(&output.stderr);
    said.lines().filter(|line| line.contains("quotagate")).for_each(task::note);
    Ok(!output.status.success() && said.contains(REFUSAL))
}

fn minor(version: &str) -> Result<u32> {
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse().ok());
    minor.with_context(|| format!("{version} is no version of Envoy"))
}

fn in_form(tests: &Path, form: &str) -> Command {
    let mut command = Command::new(tests);
    command.current_dir(paths::root()).env("CARGO_MANIFEST_DIR", paths::root());
    command.env("QUOTAGATE_FORM", form).env_remove(paths::PARTS);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_supported_envoy_is_pinned() {
        for version in ENVOYS {
            assert_eq!(pip::envoy(version).unwrap().version, version);
        }
        let error = pip::envoy("1.38.3").err().unwrap().to_string();
        assert!(error.contains("1.38.2") && error.contains("pip.rs"), "{error}");
    }

    #[test]
    fn short_suite_names_modules_of_the_end_to_end_tests() {
        let main = std::fs::read_to_string(paths::root().join("tests/e2e/main.rs")).unwrap();
        for tests in SHORT.into_iter().chain(UNSUPPORTED.map(|(_, tests)| tests)) {
            let module = tests.trim_end_matches("::");
            assert!(main.contains(&format!("\nmod {module};\n")), "{tests} selects nothing");
        }
    }

    #[test]
    fn minor_version_decides_about_the_native_module() {
        assert!(
            minor("1.37.0").unwrap() < FIRST_NATIVE && minor("1.38.2").unwrap() >= FIRST_NATIVE
        );
        assert!(minor("latest").is_err());
    }
}
