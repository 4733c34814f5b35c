//! `cargo xtask package`: everything that a release publishes, in `dist/release`.

use std::{env::consts, ffi::OsStr, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use quotagate_workspace::{paths, task};

use crate::{
    build::{self, Artifact, commit},
    setup::{self, Consent, Part},
};

/// The program that packs.
const PACKER: &str = "quotagate-release";

/// What was built to be packed, by architecture.
pub fn parts() -> PathBuf {
    paths::root().join("target").join("release-parts")
}

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
        let mut cargo = task::cargo();
        cargo.args(["run", "--quiet", "--locked", "--package", PACKER, "--"]);
        self.run_by(cargo)
    }

    /// The same with the program of an earlier build, such as that of the tests.
    pub fn run_from(self, built: &[Artifact]) -> Result<()> {
        self.run_by(Command::new(build::executable(built, PACKER)?))
    }

    fn run_by(self, mut packer: Command) -> Result<()> {
        ensure!(
            cfg!(target_os = "linux") && build::native::ARCHITECTURES.contains(&consts::ARCH),
            "a release is packed on Linux, on {}",
            build::native::ARCHITECTURES.join(" or ")
        );
        // Before the build, which takes minutes. The packer runs in another folder.
        let key = self.sign.map(|key| {
            key.canonicalize().with_context(|| format!("cannot find the key {}", key.display()))
        });
        let key = key.transpose()?;
        let signer = key.as_ref().map(|_| Part::Minisign);
        let needed: Vec<Part> = [Part::WasmTarget, Part::Zig].into_iter().chain(signer).collect();
        setup::run(&needed, Consent::NotGiven)?;
        let cargo_deb = setup::cargo_deb()?;
        let parts = parts();
        build::deployed(&parts, &self.architectures)?;
        task::step("package: dist/release");
        packer.current_dir(paths::root());
        packer.arg("--parts").arg(&parts).arg("--folder").arg(paths::release());
        packer.args(self.architectures.iter().flat_map(|name| ["--architecture", name]));
        let shown = commit::shown();
        if shown.is_none() {
            task::note("no commit is named: this is no Git clone, or git refuses to read it");
        }
        packer.args(shown.iter().flat_map(|commit| ["--commit", commit]));
        packer.args(["--epoch", &commit::epoch()?.to_string()]);
        packer.arg("--cargo-deb").arg(cargo_deb);
        packer.args(key.iter().flat_map(|key| [OsStr::new("--sign"), key.as_os_str()]));
        task::visibly(&mut packer)
    }
}
