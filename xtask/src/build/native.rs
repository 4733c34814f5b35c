//! The native module, `libquotagate.so`.
//!
//! `cargo-zigbuild` links it for systems as old as glibc 2.28, and for the other architecture.
//! Without it, Cargo links it for this machine.

use std::{env::consts, fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use quotagate_workspace::{paths, task};

use super::{
    artifacts::{self, Artifact},
    library::{self, Glibc},
    weak::weaken,
    write,
};
use crate::setup::{self, Zig};

/// The target's name among Cargo's artifacts.
const NAME: &str = "quotagate_native";
/// The oldest glibc that the deployed module runs with.
const OLDEST: Glibc = Glibc(2, 28);
/// The architectures that the module is built for.
pub const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

/// Builds `dist/libquotagate.so`, optimised as it is deployed, for this machine's architecture. On
/// other systems than Linux it builds nothing, so that the Wasm filter can be built there.
pub fn release() -> Result<()> {
    if !cfg!(target_os = "linux") {
        task::note("no native module: it is built on Linux only");
        return Ok(());
    }
    let file = paths::dist().join(paths::MODULE);
    match setup::zig()? {
        Some(zig) if ARCHITECTURES.contains(&consts::ARCH) => linked_by(&zig, consts::ARCH, &file),
        _ => {
            task::step("build: the native module, for this machine");
            let mut cargo = task::cargo();
            cargo.args(["build", "--profile", "native"]);
            let glibc = built_by(&mut cargo, &file)?;
            task::note(&format!(
                "it needs glibc {glibc} or newer; `cargo xtask setup --native` lets it run with {OLDEST}"
            ));
            Ok(())
        }
    }
}

/// Builds `dist/ARCHITECTURE/libquotagate.so`.
///
/// # Errors
/// When `cargo-zigbuild` is missing, or the build fails.
pub fn for_architecture(architecture: &str) -> Result<()> {
    for_old_systems(architecture, &paths::dist().join(architecture).join(paths::MODULE))
}

/// Builds the module for an architecture and the oldest glibc that it supports.
///
/// # Errors
/// When `cargo-zigbuild` is missing, or the build fails.
pub fn for_old_systems(architecture: &str, file: &Path) -> Result<()> {
    linked_by(&setup::zig()?.context(setup::NO_ZIG)?, architecture, file)
}

/// Places the module that an earlier build made, such as that of the tests.
pub fn install_from(built: &[Artifact], file: &Path) -> Result<()> {
    let mut files = built.iter().filter(|artifact| artifact.name == NAME && !artifact.test);
    let module = files
        .find_map(|artifact| {
            artifact.files.iter().find(|file| file.extension().is_some_and(|name| name == "so"))
        })
        .context("Cargo built no native module")?;
    library::check_file(module)?;
    let built = fs::read(module).with_context(|| format!("cannot read {}", module.display()))?;
    let weak = weaken(&built)?;
    write(file, |half| Ok(fs::write(half, &weak)?))
}

fn linked_by(zig: &Zig, architecture: &str, file: &Path) -> Result<()> {
    task::step(&format!("build: the native module, for {architecture} and glibc {OLDEST}"));
    let target = format!("{architecture}-unknown-linux-gnu");
    setup::rust_target(&target)?;
    let mut cargo = zig.cargo();
    cargo.args(["zigbuild", "--profile", "native", "--target", &format!("{target}.{OLDEST}")]);
    let glibc = built_by(&mut cargo, file)?;
    ensure!(glibc <= OLDEST, "the module needs glibc {glibc}, newer than {OLDEST}");
    Ok(())
}

/// Builds and places the module. Returns the glibc it needs.
fn built_by(cargo: &mut Command, file: &Path) -> Result<Glibc> {
    let built = artifacts::build(cargo.args(["--locked", "--package", "quotagate-native"]))?;
    install_from(&built, file)?;
    library::check_file(file)
}
