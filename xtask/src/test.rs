//! `cargo xtask test`: everything that a release needs.
//!
//! The tests of the filter and those of the store mostly wait for processes and timers, so two
//! lanes of test binaries run side by side. The second lane also has the end-to-end tests of the
//! native module. Tests that compute, or that measure what load and faults do to clients, run
//! alone.

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

/// The packages of the first lane: the root package, with end-to-end tests and adapters.
const FIRST: &[&str] = &[""];
/// The packages of the second lane. All others run alone.
const SECOND: &[&str] = &["crates/cli", "crates/control", "crates/operate", "crates/store"];

/// The tests that install `dist/release`, which only [`release`] runs.
const RELEASE: &str = "release/installed";

/// The tests that run once for each form of the filter: end to end, and under faults.
const BOTH_FORMS: [&str; 2] = ["e2e", "testing/chaos/short"];
/// The variable that selects the form, and the form that is not the default.
const NATIVE: (&str, &str) = ("QUOTAGATE_FORM", "native");

/// Sets up, builds, and runs every test; returns what was built.
pub fn run(consent: Consent) -> Result<Vec<Artifact>> {
    setup::run(Part::ALL, consent)?;
    let built = build::tests()?;
    task::step("test: everything");
    let binaries = built.iter().filter_map(Binary::of).filter(|binary| binary.name != RELEASE);
    let binaries: Vec<Binary> = binaries.collect();
    let (first, rest): (Vec<_>, Vec<_>) = binaries.iter().partition(|binary| binary.is_in(FIRST));
    let (mut second, mut alone): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|binary| binary.is_in(SECOND));
    let native = |lane: &[&Binary]| -> Vec<Binary> {
        lane.iter().filter_map(|binary| binary.of_native_form()).collect()
    };
    let (first_native, alone_native) = (native(&first), native(&alone));
    second.extend(&first_native);
    alone.extend(&alone_native);
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for lane in [&first, &second] {
            scope.spawn(|| lane.iter().for_each(|binary| binary.run_into(&failed)));
        }
    });
    alone.iter().for_each(|binary| binary.run_into(&failed));
    let examples = task::visibly(task::cargo().args(["test", "--workspace", "--locked", "--doc"]));
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
    /// Whether it tests the native module.
    native: bool,
}

impl Binary {
    fn of(artifact: &Artifact) -> Option<Self> {
        let program = artifact.executable.clone().filter(|_| artifact.test)?;
        let package = artifact.package.clone();
        let folder = package.strip_prefix(paths::root()).unwrap_or(&package).display();
        let name = format!("{folder}/{}", artifact.name).trim_start_matches('/').to_owned();
        Some(Self { package, program, name, native: false })
    }

    /// The same tests for the other form, if they are for both.
    fn of_native_form(&self) -> Option<Self> {
        BOTH_FORMS.contains(&self.name.as_str()).then(|| Self {
            name: format!("{} ({})", self.name, NATIVE.1),
            native: true,
            ..self.clone()
        })
    }

    fn is_in(&self, folders: &[&str]) -> bool {
        let folder = self.package.strip_prefix(paths::root()).ok().and_then(Path::to_str);
        folder.is_some_and(|folder| folders.contains(&folder))
    }

    /// Runs it in the folder of its package, as Cargo does, and shows its output in one piece.
    fn run_into(&self, failed: &Mutex<Vec<String>>) {
        let begun = Instant::now();
        let passed =
            output(&self.program, &self.package, self.native).and_then(|(passed, text)| {
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
fn output(program: &Path, folder: &Path, native: bool) -> Result<(bool, Vec<u8>)> {
    let (mut reader, writer) = io::pipe().context("cannot make a pipe")?;
    let mut command = Command::new(program);
    command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder).stdin(Stdio::null());
    command.envs(native.then_some(NATIVE));
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
            std::fs::write(&program, format!("#!/bin/sh\necho one; echo two >&2; exit {code}\n"))
                .unwrap();
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&program, permissions).unwrap();
            output(&program, directory.path(), false).unwrap()
        };
        assert_eq!(run("0"), (true, b"one\ntwo\n".to_vec()));
        assert!(!run("3").0);
    }

    #[test]
    fn only_test_binaries_run_and_lanes_follow_the_package() {
        let mut artifact = Artifact {
            name: "e2e".to_owned(),
            test: true,
            executable: Some(PathBuf::from("/t/e2e")),
            files: Vec::new(),
            package: paths::root(),
        };
        let binary = Binary::of(&artifact).unwrap();
        assert!(binary.is_in(FIRST) && !binary.is_in(SECOND) && binary.name == "e2e");
        assert_eq!(binary.of_native_form().unwrap().name, "e2e (native)");
        artifact.package = paths::root().join("crates/store");
        let binary = Binary::of(&artifact).unwrap();
        assert!(binary.is_in(SECOND) && binary.name == "crates/store/e2e");
        assert!(binary.of_native_form().is_none());
        artifact.package = paths::root().join("testing/chaos");
        let binary = Binary::of(&artifact).unwrap();
        assert!(!binary.is_in(FIRST) && !binary.is_in(SECOND));
        artifact.test = false;
        assert!(Binary::of(&artifact).is_none());
    }
}
