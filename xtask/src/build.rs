//! `cargo xtask build`: the two files that people deploy.

mod exports;
mod panic_hook;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use quotagate_support::paths;
use serde_json::Value;

use crate::{run, setup::WASM_TARGET};

pub use panic_hook::run as panicking_filter;

/// Builds `dist/quotagate.wasm` and `dist/quotagate`.
pub fn run() -> Result<()> {
    run::step("build: the filter (dist/quotagate.wasm)");
    let filter = ["build", "--locked", "--package", "quotagate", "--lib", "--profile", "wasm", "--target"];
    run::visibly(run::cargo().args(filter).arg(WASM_TARGET))?;
    run::step("build: the store and the commands (dist/quotagate)");
    run::visibly(run::cargo().args(["build", "--locked", "--package", "quotagate-cli", "--release"]))?;

    let target = target_directory()?;
    fs::create_dir_all(paths::dist())?;
    place_filter(&filter_below(&target), &paths::filter())?;
    place(&target.join("release").join("quotagate"), &paths::command())
}

/// The filter as Cargo has built it below `target`.
pub fn filter_below(target: &Path) -> PathBuf {
    target.join(WASM_TARGET).join("wasm").join("quotagate.wasm")
}

/// Puts a built filter in its place, with the callbacks that it needs.
pub fn place_filter(built: &Path, file: &Path) -> Result<()> {
    let module = fs::read(built).with_context(|| format!("cannot read {}", built.display()))?;
    let module = exports::prune(&module).with_context(|| format!("{} is no filter", built.display()))?;
    let half = file.with_extension("part");
    fs::write(&half, module).with_context(|| format!("cannot write {}", half.display()))?;
    put(&half, file)
}

/// Where Cargo builds; the user may have moved it.
pub fn target_directory() -> Result<PathBuf> {
    let metadata = run::printed(run::cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let directory = metadata.get("target_directory").and_then(Value::as_str);
    directory.map(PathBuf::from).context("cargo metadata names no target directory")
}

fn place(built: &Path, file: &Path) -> Result<()> {
    // By renaming: the file may be in use, and a program in use cannot be written.
    let half = file.with_extension("part");
    fs::copy(built, &half).with_context(|| format!("cannot copy {}", built.display()))?;
    put(&half, file)
}

/// Renames `half` to `file`, and says so.
fn put(half: &Path, file: &Path) -> Result<()> {
    fs::rename(half, file)?;
    let size = fs::metadata(file)?.len();
    let name = file.strip_prefix(paths::root()).unwrap_or(file);
    run::note(&format!("{} ({} KiB)", name.display(), size.div_ceil(1024)));
    Ok(())
}
