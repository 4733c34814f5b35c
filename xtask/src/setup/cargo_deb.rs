//! `cargo-deb`, which makes Debian packages. No package index has a current build of it, so Cargo
//! compiles it, in the pinned version and with its own lock file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use quotagate_workspace::{paths, task, tools};

const NAME: &str = "cargo-deb";
const VERSION: &str = "3.8.0";
/// liblzma linked in: the bytes of a package must not depend on the machine that makes it.
const FEATURES: &str = "static-lzma";

/// Finds it below `target/tools`, or compiles it, which takes one or two minutes.
///
/// # Errors
/// When Cargo cannot fetch or compile it.
pub fn program() -> Result<PathBuf> {
    let program = tools::fetched(NAME, VERSION);
    if !program.is_file() {
        task::note(&format!("{NAME} {VERSION}: Cargo compiles it into target/tools"));
        let half = paths::tools().join(format!("{NAME}-{VERSION}.part"));
        install(&half).with_context(|| {
            format!("cannot install {NAME} {VERSION}: is there a network and a C compiler?")
        })?;
        let folder = program.parent().context("the program has a folder")?;
        fs::create_dir_all(folder)?;
        fs::rename(half.join("bin").join(NAME), &program)
            .with_context(|| format!("cannot place {}", program.display()))?;
        fs::remove_dir_all(&half)?;
    }
    task::note(&format!("{NAME}: {}", program.display()));
    Ok(program)
}

fn install(root: &Path) -> Result<()> {
    let mut cargo = task::cargo();
    cargo.args(["install", NAME, "--version", VERSION, "--locked", "--quiet", "--force"]);
    cargo.args(["--no-default-features", "--features", FEATURES, "--root"]).arg(root);
    task::visibly(cargo.arg("--target-dir").arg(root.join("target")))
}
