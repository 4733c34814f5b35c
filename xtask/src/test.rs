//! `cargo xtask test`: everything that a release needs.
//!
//! Most tests mostly wait for processes and timers, so several of their binaries run side by side,
//! the end-to-end tests of both forms among them. Tests that compute, or that measure what load and
//! faults do to clients, run alone afterwards.

use std::{
    env::consts,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use quotagate_workspace::{paths, task};

use crate::{
    build::{self, Artifact},
    setup::{self, Consent, Part},
};

/// The packages whose tests mostly wait. Their binaries run side by side, and start in this order:
/// those that take longest come first. All others run alone.
const SIDE_BY_SIDE: [&str; 6] =
    ["", "crates/store", "crates/native", "crates/cli", "crates/operate", "crates/control"];
/// How many of them run at a time: as many as two cores can serve.
const LANES: usize = 3;

/// The tests that install `dist/release`, which only [`release`] runs.
const RELEASE: &str = "release/installed";

/// The tests that run once for each form of the filter: end to end, and under faults.
const BOTH_FORMS: [&str; 2] = ["e2e", FAULTS];
/// The variable that selects the form, and the form that is not the default.
const NATIVE: (&str, &str) = ("QUOTAGATE_FORM", "native");

/// Each of these tests measures what a fault does, and mostly waits: two at a time, which is the
/// default on two cores, leave three quarters of them idle.
const FAULTS: &str = "testing/chaos/short";
/// How many of them run at a time.
const FAULTS_AT_A_TIME: (&str, &str) = ("RUST_TEST_THREADS", "4");

/// Sets up, builds, and runs every test; returns what was built.
pub fn run(consent: Consent) -> Result<Vec<Artifact>> {
    setup::run(Part::ALL, consent)?;
    let built = build::tests()?;
    task::step("test: everything");
    let binaries = built.iter().filter_map(Binary::of).filter(|binary| binary.name != RELEASE);
    let forms = binaries.flat_map(|binary| [binary.of_native_form(), Some(binary)]);
    let (mut shared, alone): (Vec<_>, Vec<_>) =
        forms.flatten().partition(|binary| binary.lane_order().is_some());
    shared.sort_by_key(Binary::lane_order);
    let failed = Mutex::new(Vec::new());
    let queue = Mutex::new(shared.iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while let Some(binary) = next() {
                    binary.run_into(&failed);
                }
            });
        }
    });
    alone.iter().for_each(|binary| binary.run_into(&failed));
    // The names of the documentation's examples, and of no test, contain `(line `. With `--doc`,
    // Cargo would select other features, and compile a hundred crates again.
    let examples = ["test", "--workspace", "--locked", "--quiet", "--", "(line "];
    let examples = task::visibly(task::cargo().args(examples));
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !failed.is_empty() {
        bail!("tests failed in {}", failed.join(", "));
    }
    examples?;
    Ok(built)
}

/// Installs every artifact of `dist/release`, which `cargo xtask package` made, and tries it.
pub fn release(consent: Consent) -> Result<()> {
    let mut parts = vec![Part::Release, Part::Images, Part::Envoy, Part::Redis];
    let name = format!("quotagate-{}-linux-aarch64.tar.gz", env!("CARGO_PKG_VERSION"));
    let emulated = consts::ARCH != "aarch64" && paths::release().join(name).is_file();
    parts.extend(emulated.then_some(Part::Emulator));
    setup::run(&parts, consent)?;
    task::step("test: the release, installed");
    // The features of the whole workspace, so that nothing is compiled again.
    let mut cargo = task::cargo();
    cargo.args(["test", "--workspace", "--locked", "--quiet", "--test", "installed"]);
    task::visibly(&mut cargo)
}

/// A test binary.
#[derive(Clone)]
struct Binary {
    /// The folder of its package.
    package: PathBuf,
    program: PathBuf,
    /// The package and the target, for messages.
    name: String,
    /// The variables that it gets.
    variables: Vec<(&'static str, &'static str)>,
}

impl Binary {
    fn of(artifact: &Artifact) -> Option<Self> {
        let program = artifact.executable.clone().filter(|_| artifact.test)?;
        let package = artifact.package.clone();
        let folder = package.strip_prefix(paths::root()).unwrap_or(&package).display();
        let name = format!("{folder}/{}", artifact.name).trim_start_matches('/').to_owned();
        let variables = (name == FAULTS).then_some(FAULTS_AT_A_TIME).into_iter().collect();
        Some(Self { package, program, name, variables })
    }

    /// The same tests for the other form, if they are for both.
    fn of_native_form(&self) -> Option<Self> {
        BOTH_FORMS.contains(&self.name.as_str()).then(|| Self {
            name: format!("{} ({})", self.name, NATIVE.1),
            variables: self.variables.iter().copied().chain([NATIVE]).collect(),
            ..self.clone()
        })
    }

    /// When it starts among those that run side by side, if it is one of them.
    fn lane_order(&self) -> Option<usize> {
        let folder = self.package.strip_prefix(paths::root()).ok().and_then(Path::to_str)?;
        SIDE_BY_SIDE.iter().position(|package| *package == folder)
    }

    /// Runs it in the folder of its package, as Cargo does, and shows its output in one piece.
    fn run_into(&self, failed: &Mutex<Vec<String>>) {
        let begun = Instant::now();
        let passed =
            output(&self.program, &self.package, &self.variables).and_then(|(passed, text)| {
                let seconds = begun.elapsed().as_secs_f32();
                let mut out = io::stdout().lock();
                writeln!(out, "     Running {} ({seconds:.1} s)", self.name)?;
                out.write_all(&text)?;
                Ok(passed)
            });
        let why = match passed {
            Ok(true) => return,
            Ok(false) => self.name.clone(),
            Err(error) => format!("{} ({error:#})", self.name),
        };
        failed.lock().unwrap_or_else(PoisonError::into_inner).push(why);
    }
}

/// Whether a program succeeds, and what it prints on both streams.
fn output(program: &Path, folder: &Path, variables: &[(&str, &str)]) -> Result<(bool, Vec<u8>)> {
    let (mut reader, writer) = io::pipe().context("cannot make a pipe")?;
    let mut command = Command::new(program);
    command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder).stdin(Stdio::null());
    command.envs(variables.iter().copied());
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
    // The command holds the write ends. Unless it is dropped, reading does not end with the child.
    drop(command);
    let mut text = Vec::new();
    io::Read::read_to_end(&mut reader, &mut text)?;
    Ok((child.wait()?.success(), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_has_both_streams_and_the_status() {
        let directory = tempfile::tempdir().unwrap();
        let run = |code: &str| {
            let program = directory.path().join(code);
            let script = format!("#!/bin/sh\necho one; echo $TWO >&2; exit {code}\n");
            std::fs::write(&program, script).unwrap();
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&program, permissions).unwrap();
            output(&program, directory.path(), &[("TWO", "two")]).unwrap()
        };
        assert_eq!(run("0"), (true, b"one\ntwo\n".to_vec()));
        assert!(!run("3").0);
    }

    /// A test binary of this name in this package.
    fn artifact(package: &str, name: &str) -> Artifact {
        Artifact {
            name: name.to_owned(),
            test: true,
            executable: Some(PathBuf::from("/t").join(name)),
            files: Vec::new(),
            package: paths::root().join(package),
        }
    }

    #[test]
    fn only_test_binaries_run_and_what_waits_runs_side_by_side() {
        let binary = |package: &str, name: &str| Binary::of(&artifact(package, name)).unwrap();
        let e2e = binary("", "e2e");
        assert_eq!((e2e.lane_order(), e2e.name.as_str()), (Some(0), "e2e"));
        let store = binary("crates/store", "e2e");
        assert_eq!((store.lane_order(), store.name.as_str()), (Some(1), "crates/store/e2e"));
        assert_eq!(binary("testing/chaos", "soak").lane_order(), None);
        assert!(Binary::of(&Artifact { test: false, ..artifact("", "e2e") }).is_none());
    }

    #[test]
    fn native_form_runs_where_there_are_two_and_with_the_variables_of_the_other() {
        let native = |package: &str, name: &str| {
            Binary::of(&artifact(package, name)).unwrap().of_native_form()
        };
        let e2e = native("", "e2e").unwrap();
        assert_eq!((e2e.name.as_str(), &e2e.variables[..]), ("e2e (native)", &[NATIVE][..]));
        assert_eq!(e2e.lane_order(), Some(0));
        let faults = native("testing/chaos", "short").unwrap();
        assert_eq!(faults.variables, [FAULTS_AT_A_TIME, NATIVE]);
        assert!(native("crates/store", "e2e").is_none());
    }
}
