//! `cargo xtask package`: everything that a release publishes, in `dist/release`.

use std::{ffi::OsStr, path::PathBuf};

use anyhow::Result;
use quotagate_workspace::{paths, task};

use crate::{
    build::{self, commit},
    setup::{self, Consent, Part},
};

/// What to package.
pub struct Package {
    /// The architectures to build for.
    pub architectures: Vec<String>,
}

impl Package {
    /// Builds the parts, and packs them.
    pub fn run(self) -> Result<()> {
        setup::run(&[Part::WasmTarget, Part::Zig], Consent::NotGiven)?;
        let parts = paths::root().join("target").join("release-parts");
        build::deployed(&parts, &self.architectures)?;
        task::step("package: dist/release");
        let mut cargo = task::cargo();
        cargo.args(["run", "--quiet", "--locked", "--package", "quotagate-release", "--"]);
        cargo.arg("--parts").arg(&parts).arg("--folder").arg(folder());
        cargo.args(self.architectures.iter().flat_map(|name| ["--architecture", name]));
        cargo.args(commit::shown().iter().flat_map(|commit| ["--commit", commit]));
        task::visibly(
            cargo.args([OsStr::new("--epoch"), OsStr::new(&commit::epoch()?.to_string())]),
        )
    }
}

/// What is published.
fn folder() -> PathBuf {
    paths::dist().join("release")
}
