//! The filter as it would be without batching, to compare with.
//!
//! That is no option of the filter: a compiler flag that only this task sets, in a directory of its own, and the
//! file stays there. `dist/` never sees it.

use std::{env, path::PathBuf};

use anyhow::Result;
use quotagate_support::paths;

use crate::{build, run, setup::WASM_TARGET};

const FLAG: &str = "--cfg quotagate_unbatched";

/// Builds it.
pub fn build() -> Result<PathBuf> {
    run::step("build: the filter with one call for each request, to compare with");
    let directory = paths::root().join("target").join("bench");
    let mut cargo = run::cargo();
    cargo.args(["build", "--locked", "--package", "quotagate", "--lib", "--profile", "wasm"]);
    cargo.args(["--target", WASM_TARGET, "--target-dir"]).arg(&directory);
    // Beside the user's own flags, or more than batching would differ.
    let flags = [env::var("RUSTFLAGS").unwrap_or_default().as_str(), FLAG].join(" ");
    run::visibly(cargo.env("RUSTFLAGS", flags))?;
    let filter = directory.join("unbatched.wasm");
    build::place_filter(&build::filter_below(&directory), &filter)?;
    Ok(filter)
}
