//! wrk, which sends the load of `cargo xtask bench`: the user's own, else Debian's.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use quotagate_support::tools;

use super::apt;
use crate::run;

const PROGRAM: &str = "wrk";

/// Finds or installs it.
pub fn run() -> Result<PathBuf> {
    if let Some(path) = tools::on_path(PROGRAM) {
        run::note(&format!("wrk: {}", path.display()));
        return Ok(path);
    }
    if !apt::available() {
        bail!(
            "the measurements need wrk (4.1 or newer) on PATH, and there is none: install it (Debian, Ubuntu: \
             `sudo apt-get install wrk`)"
        );
    }
    run::note("wrk: none here, apt-get installs it");
    apt::install(PROGRAM)?;
    tools::on_path(PROGRAM).context("apt-get installed wrk, and it is not on PATH")
}
