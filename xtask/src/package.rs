//! `cargo xtask package`: everything that a release publishes, in `dist/release`.

use std::{env::consts, ffi::OsStr, path::PathBuf};

use anyhow::{Result, ensure};
use quotagate_workspace::{paths, task};

use crate::{
    build::{self, commit},
    setup::{self, Consent, Part},
};

/// What to package.
pub struct Package {
    /// The architectures to build for.
    pub architectures: Vec<String>,
    /// The secret key of minisign that signs the digests.
    pub sign: Option<PathBuf>,
}

impl Package {
    /// Builds the parts, and packs them.
    pub fn run(self) -> Result<()> {
        ensure!(
            cfg!(target_os = "linux") && build::native::ARCHITECTURES.contains(&consts::ARCH),
            "a release is packed on Linux, on {}",
            build::native::ARCHITECTURES.join(" or ")
        );
        setup::run(&[Part::WasmTarget, Part::Zig], Consent::NotGiven)?;
        let cargo_deb = setup::cargo_deb()?;
        let parts = paths::root().join("target").join("release-parts");
        build::deployed(&parts, &self.architectures)?;
        task::step("package: dist/release");
        let mut cargo = task::cargo();
        cargo.args(["run", "--quiet", "--locked", "--package", "quotagate-release", "--"]);
        cargo.arg("--parts").arg(&parts).arg("--folder").arg(folder());
        cargo.args(self.architectures.iter().flat_map(|name| ["--architecture", name]));
        cargo.args(commit::shown().iter().flat_map(|commit| ["--commit", commit]));
        cargo.args(["--epoch", &commit::epoch()?.to_string()]);
        cargo.arg("--cargo-deb").arg(cargo_deb);
        cargo.args(self.sign.iter().flat_map(|key| [OsStr::new("--sign"), key.as_os_str()]));
        task::visibly(&mut cargo)
    }
}

/// What is published.
fn folder() -> PathBuf {
    paths::dist().join("release")
}
