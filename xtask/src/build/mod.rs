//! `cargo xtask build`: what people deploy, and the faster builds for tests and the demo.

mod artifacts;
mod command;
pub mod commit;
mod exports;
mod library;
pub mod native;
mod weak;

use std::{
    env::{self, consts},
    fs,
    path::Path,
};

use anyhow::{Context, Result};
use quotagate_workspace::{paths, task};

use crate::setup::WASM_TARGET;
pub use artifacts::Artifact;
use exports::Callbacks;

/// What is written to, by a rename: the file may be in use.
const HALF: &str = "part";
/// The profile of the deployed filter. A faster build would save no time, because most of it goes
/// into crates that are needed in any case.
const DEPLOYED: &[&str] = &["--profile", "wasm"];
/// The package of the filter.
const FILTER: &str = "quotagate";

/// Builds `dist/quotagate.wasm`, `dist/quotagate-bodies.wasm`, `dist/libquotagate.so` and
/// `dist/quotagate`, optimised as they are deployed.
pub fn release() -> Result<()> {
    let dist = paths::dist();
    filters(&dist)?;
    native::release()?;
    command::release(&dist.join(paths::COMMAND))
}

/// Builds what a release publishes: `ARCHITECTURE/quotagate` (static),
/// `ARCHITECTURE/libquotagate.so` and `wasm/*.wasm`. The command of this machine's architecture is
/// always there, because it writes the man pages.
pub fn deployed(folder: &Path, architectures: &[String]) -> Result<()> {
    filters(&folder.join("wasm"))?;
    for architecture in architectures {
        let folder = folder.join(architecture);
        native::for_old_systems(architecture, &folder.join(paths::MODULE))?;
        command::for_every_system(architecture, &folder.join(paths::COMMAND))?;
    }
    if !architectures.iter().any(|architecture| architecture == consts::ARCH) {
        let file = folder.join(consts::ARCH).join(paths::COMMAND);
        command::for_every_system(consts::ARCH, &file)?;
    }
    Ok(())
}

/// Builds everything that the tests run, and the tests. The Wasm filter is the deployed one. The
/// command and the native module use the profile of the tests and the features of the whole
/// workspace, so that nothing is compiled for them alone.
pub fn tests() -> Result<Vec<Artifact>> {
    let parts = paths::tests();
    filters(&parts)?;
    panicking()?;
    task::step("build: the command, the native module and the tests");
    let built =
        artifacts::build(task::cargo().args(["test", "--workspace", "--locked", "--no-run"]))?;
    install(executable(&built, "quotagate")?, &parts.join(paths::COMMAND))?;
    native::install_from(&built, &parts.join(paths::MODULE))?;
    Ok(built)
}

/// Builds what the demo runs: the deployed filter, and the command without optimisation.
pub fn demo() -> Result<()> {
    task::step("build: the store and the demo");
    let mut cargo = task::cargo();
    cargo.args(["build", "--locked", "--profile", "demo"]);
    cargo.args(["--package", "quotagate-cli", "--package", "quotagate-demo"]);
    demo_from(&artifacts::build(&mut cargo)?)
}

/// Builds what the demo of the native module runs, without optimisation.
pub fn demo_native() -> Result<()> {
    task::step("build: the native module and the demo");
    let mut cargo = task::cargo();
    cargo.args(["build", "--locked", "--profile", "demo"]);
    cargo.args(["--package", "quotagate-native", "--package", "quotagate-demo"]);
    demo_native_from(&artifacts::build(&mut cargo)?)
}

/// Copies what the demo runs from an earlier build, such as that of the tests.
pub fn demo_from(built: &[Artifact]) -> Result<()> {
    let parts = paths::demo();
    filter(&parts.join(paths::FILTER), DEPLOYED)?;
    install(executable(built, "quotagate")?, &parts.join(paths::COMMAND))?;
    install(executable(built, "quotagate-demo")?, &parts.join(paths::DEMO))
}

/// The same for the demo of the native module.
pub fn demo_native_from(built: &[Artifact]) -> Result<()> {
    let parts = paths::demo();
    native::install_from(built, &parts.join(paths::MODULE))?;
    install(executable(built, "quotagate-demo")?, &parts.join(paths::DEMO))
}

/// Builds the filter with a request header that kills its VM, for tests of what happens next.
/// `dist/` never sees it.
pub fn panicking() -> Result<()> {
    filter(&paths::panicking_filter(), &["--profile", "wasm", "--features", "panic-hook"])
}

/// Builds the filter without batching, for `cargo xtask bench` to compare with. A compiler flag
/// switches batching off, not an option of the filter. `dist/` never sees it.
pub fn unbatched() -> Result<()> {
    let file = paths::unbatched_filter();
    let folder = file.parent().context("the file has a folder")?;
    // The user's own flags stay, or the filters would differ in more than batching.
    let flags =
        [env::var("RUSTFLAGS").unwrap_or_default().as_str(), "--cfg quotagate_unbatched"].join(" ");
    let mut cargo = cargo_for(FILTER);
    cargo.args(DEPLOYED).arg("--target-dir").arg(folder).env("RUSTFLAGS", flags);
    install_filter(&artifacts::build(&mut cargo)?, FILTER, &file, Callbacks::Plain)
}

/// Builds the filter without logic, for `cargo xtask bench` to compare with. It offers the host the
/// same callbacks as the deployed one. `dist/` never sees it.
pub fn without_logic() -> Result<()> {
    const PACKAGE: &str = "quotagate-bench-filter";
    let built = artifacts::build(cargo_for(PACKAGE).args(DEPLOYED))?;
    install_filter(&built, PACKAGE, &paths::filter_without_logic(), Callbacks::Plain)
}

fn filter(file: &Path, arguments: &[&str]) -> Result<()> {
    let built = build_filter(file, arguments)?;
    install_filter(&built, FILTER, file, Callbacks::Plain)
}

/// Builds the deployed filter, in both of its files.
fn filters(folder: &Path) -> Result<()> {
    let file = folder.join(paths::FILTER);
    let built = build_filter(&file, DEPLOYED)?;
    install_filter(&built, FILTER, &file, Callbacks::Plain)?;
    install_filter(&built, FILTER, &folder.join(paths::BODIES_FILTER), Callbacks::Bodies)
}

fn build_filter(file: &Path, arguments: &[&str]) -> Result<Vec<Artifact>> {
    let name = file.strip_prefix(paths::root()).unwrap_or(file);
    task::step(&format!("build: the filter, {}", name.display()));
    artifacts::build(cargo_for(FILTER).args(arguments))
}

fn cargo_for(package: &str) -> std::process::Command {
    let mut cargo = task::cargo();
    cargo.args(["build", "--locked", "--package", package, "--lib", "--target", WASM_TARGET]);
    cargo
}

/// Installs the filter of a package, with the callbacks that it needs.
fn install_filter(
    built: &[Artifact],
    package: &str,
    file: &Path,
    callbacks: Callbacks,
) -> Result<()> {
    let library = package.replace('-', "_");
    let mut files = built
        .iter()
        .filter(|artifact| artifact.name == library)
        .flat_map(|artifact| &artifact.files);
    let built = files.find(|file| file.extension().is_some_and(|extension| extension == "wasm"));
    let built = built.context("Cargo built no filter")?;
    let module = fs::read(built).with_context(|| format!("cannot read {}", built.display()))?;
    let module = exports::prune(&module, callbacks)
        .with_context(|| format!("{} is no filter", built.display()))?;
    write(file, |half| Ok(fs::write(half, &module)?))
}

/// The program of this name that an earlier build made.
///
/// # Errors
/// When there is none.
pub fn executable<'a>(built: &'a [Artifact], name: &str) -> Result<&'a Path> {
    let mut found = built.iter().filter(|artifact| artifact.name == name && !artifact.test);
    found
        .find_map(|artifact| artifact.executable.as_deref())
        .with_context(|| format!("Cargo built no {name}"))
}

fn install(built: &Path, file: &Path) -> Result<()> {
    write(file, |half| {
        fs::copy(built, half).map(drop).with_context(|| format!("cannot copy {}", built.display()))
    })
}

/// Writes a file under another name and renames it: the file may be in use.
fn write(file: &Path, content: impl Fn(&Path) -> Result<()>) -> Result<()> {
    fs::create_dir_all(file.parent().context("the file has a folder")?)?;
    let half = file.with_extension(HALF);
    content(&half).with_context(|| format!("cannot write {}", half.display()))?;
    fs::rename(&half, file)?;
    let size = fs::metadata(file)?.len();
    let name = file.strip_prefix(paths::root()).unwrap_or(file);
    task::note(&format!("{} ({} KiB)", name.display(), size.div_ceil(1024)));
    Ok(())
}
