//! `cargo-zigbuild` and zig, which link the native module for old systems and for the other
//! architecture.

use std::{path::PathBuf, process::Command};

use anyhow::{Result, bail};
use quotagate_workspace::{paths, task, tools};

use super::pip::{self, CARGO_ZIGBUILD, ZIG};

/// The variable that tells `cargo-zigbuild` where zig is.
const PATH: &str = "CARGO_ZIGBUILD_ZIG_PATH";

/// What to say when it is missing.
pub const NO_ZIG: &str =
    "a build for other systems needs cargo-zigbuild and zig: run `cargo xtask setup --native`";

/// What was found.
pub struct Zig {
    cargo_zigbuild: PathBuf,
    /// Fetched. Without one, `cargo-zigbuild` finds the user's own.
    zig: Option<PathBuf>,
}

impl Zig {
    /// Cargo with the task `zigbuild`, at the root of the workspace.
    pub fn cargo(&self) -> Command {
        let mut command = Command::new(&self.cargo_zigbuild);
        command.current_dir(paths::root());
        if let Some(zig) = &self.zig {
            command.env(PATH, zig);
        }
        command
    }
}

/// Both programs, if they are on PATH or were fetched.
pub fn find() -> Result<Option<Zig>> {
    let fetched = |path: PathBuf| path.is_file().then_some(path);
    let own = tools::on_path(CARGO_ZIGBUILD.program);
    let Some(cargo_zigbuild) =
        own.or_else(|| fetched(tools::fetched(CARGO_ZIGBUILD.program, CARGO_ZIGBUILD.version)))
    else {
        return Ok(None);
    };
    let zig = fetched(program());
    let is_there = zig.is_some() || is_installed();
    Ok(is_there.then_some(Zig { cargo_zigbuild, zig }))
}

/// Finds or fetches both.
///
/// # Errors
/// When one is missing and pip cannot fetch it.
pub fn fetch() -> Result<()> {
    if tools::on_path(CARGO_ZIGBUILD.program).is_none() {
        pip::fetch(&CARGO_ZIGBUILD)?;
    }
    if !is_installed() {
        pip::install(&ZIG)?;
    }
    let Some(zig) = find()? else { bail!("cargo-zigbuild or zig is still missing") };
    task::note(&format!("cargo-zigbuild: {}", zig.cargo_zigbuild.display()));
    Ok(())
}

/// Whether `cargo-zigbuild` finds zig by itself.
fn is_installed() -> bool {
    let python = ["-m", "ziglang", "version"];
    tools::on_path("zig").is_some() || task::succeeds(Command::new("python3").args(python))
}

fn program() -> PathBuf {
    ZIG.package.folder().join(ZIG.package.module).join("zig")
}
