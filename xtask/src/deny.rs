//! `cargo xtask deny`: licences, doubtful sources, crates that come twice, known vulnerabilities, by cargo-deny and the
//! rules of `deny.toml`.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;
use quotagate_support::{paths, tools};

use crate::run;

/// The version that `deny.toml` is written for, and that is built where there is none.
const VERSION: &str = "0.20.2";
/// What needs nothing but the crates themselves.
const OFFLINE: [&str; 3] = ["bans", "licenses", "sources"];

/// Checks all of them; vulnerabilities only where their database can be fetched.
pub fn run() -> Result<()> {
    let tool = find_or_build()?;
    run::step("crates: licences, sources, duplicates");
    run::visibly(&mut checking(&tool, &OFFLINE))?;
    run::step("crates: known vulnerabilities");
    match run::judged(command(&tool).args(["fetch", "db"]))? {
        Ok(()) => run::visibly(&mut checking(&tool, &["advisories"])),
        Err(why) => {
            run::note("not looked for: the database (RustSec's, on GitHub) cannot be fetched from here:");
            run::note(why.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason is given"));
            Ok(())
        }
    }
}

fn find_or_build() -> Result<PathBuf> {
    let own = paths::tools().join(format!("cargo-deny-{VERSION}"));
    let built = own.join("bin").join("cargo-deny");
    let found = tools::on_path("cargo-deny").filter(|tool| is_right(tool));
    if let Some(tool) = found.or_else(|| built.is_file().then(|| built.clone())) {
        return Ok(tool);
    }
    run::step(&format!("crates: cargo builds cargo-deny {VERSION}, once, for some minutes"));
    // Its own speed does not matter.
    let install = ["install", "cargo-deny", "--locked", "--debug", "--quiet", "--version", VERSION, "--root"];
    run::visibly(run::cargo().args(install).arg(own))?;
    Ok(built)
}

/// Rules change from one version to the next.
fn is_right(tool: &Path) -> bool {
    run::printed(Command::new(tool).arg("--version"))
        .is_ok_and(|said| said.trim() == format!("cargo-deny {VERSION}"))
}

fn command(tool: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(tool);
    command.current_dir(paths::root()).args(["--workspace", "--log-level", "error"]);
    command
}

fn checking(tool: &Path, what: &[&str]) -> Command {
    let mut command = command(tool);
    command.args(["check", "--hide-inclusion-graph"]).args(what);
    command
}
