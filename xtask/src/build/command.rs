//! The command, `quotagate`: the store and what operators type.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};
use quotagate_workspace::task;

use super::{artifacts, commit, executable, install};
use crate::setup;

/// Builds it, optimised, for this machine.
pub fn release(file: &Path) -> Result<()> {
    task::step("build: the store and the commands");
    built_by(task::cargo().arg("build"), file)
}

/// Builds it for an architecture as one static file, which runs under every Linux.
///
/// # Errors
/// When `cargo-zigbuild` is missing, or the build fails.
pub fn for_every_system(architecture: &str, file: &Path) -> Result<()> {
    task::step(&format!("build: the store and the commands, for {architecture}, static"));
    let target = format!("{architecture}-unknown-linux-musl");
    let zig = setup::zig()?.context(setup::NO_ZIG)?;
    setup::rust_target(&target)?;
    built_by(zig.cargo().args(["zigbuild", "--target", &target]), file)
}

fn built_by(cargo: &mut Command, file: &Path) -> Result<()> {
    cargo.args(["--release", "--locked", "--package", "quotagate-cli"]);
    cargo.envs(commit::shown().map(|commit| (commit::VARIABLE, commit)));
    install(executable(&artifacts::build(cargo)?, "quotagate")?, file)
}
