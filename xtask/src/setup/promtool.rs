//! promtool, which checks and tests the alert rules: the user's own, else Debian's, which comes with Prometheus.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use quotagate_support::tools;

use super::apt;
use crate::run;

const PROGRAM: &str = "promtool";
const PACKAGE: &str = "prometheus";

/// Finds or installs it.
pub fn run() -> Result<PathBuf> {
    if let Some(path) = tools::on_path(PROGRAM) {
        run::note(&format!("promtool: {}", path.display()));
        return Ok(path);
    }
    if !apt::available() {
        bail!(
            "the tests need promtool (2.40 or newer) on PATH, and there is none: install it (Debian, Ubuntu: \
             `sudo apt-get install prometheus`; macOS: `brew install prometheus`)"
        );
    }
    run::note(&format!("promtool: none here, apt-get installs {PACKAGE}"));
    apt::install(PACKAGE)?;
    stop_service();
    tools::on_path(PROGRAM).context("apt-get installed prometheus, and promtool is not on PATH")
}

/// Debian starts what it installs. Nobody asked for a server on port 9090.
fn stop_service() {
    if Path::new("/run/systemd/system").is_dir() {
        run::succeeds(Command::new("systemctl").args(["disable", "--now", PACKAGE]));
    } else {
        run::succeeds(Command::new("service").args([PACKAGE, "stop"]));
    }
}
