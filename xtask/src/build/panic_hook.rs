//! The filter with a request header that kills its VM, for tests of what follows: a feature that only this task
//! switches on. `dist/` never sees it.

use std::fs;

use anyhow::{Context, Result};
use quotagate_support::paths;

use super::{filter_below, place_filter, target_directory};
use crate::{run, setup::WASM_TARGET};

/// Builds it. What it shares with the filter is built once for both.
pub fn run() -> Result<()> {
    run::step("build: the filter with a panic on request, for tests");
    let filter = ["build", "--locked", "--package", "quotagate", "--lib", "--profile", "wasm"];
    run::visibly(run::cargo().args(filter).args(["--features", "panic-hook", "--target", WASM_TARGET]))?;
    let file = paths::panicking_filter();
    fs::create_dir_all(file.parent().context("the file has a directory")?)?;
    place_filter(&filter_below(&target_directory()?), &file)
}
