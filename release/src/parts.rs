//! What was built for a release.

use std::{
    env::consts,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use quotagate_workspace::paths;

/// What was built for a release, and what it is called. Everything that is packed is a function of
/// these values and of the source tree: the same input gives the same bytes.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The version of the workspace, such as `0.1.0`.
    pub version: String,
    /// The commit that was built, as `quotagate --version` shows it. `None` outside of a Git clone.
    pub commit: Option<String>,
    /// The time that packed files carry, in seconds since 1970: `SOURCE_DATE_EPOCH`, or that of the
    /// commit.
    pub epoch: u64,
    /// The programs, one entry for each architecture that was built, in the order of
    /// [`Architecture`].
    pub programs: Vec<Programs>,
    /// The command for the architecture of this machine, which writes man pages and completions.
    pub host: PathBuf,
    /// The Wasm filter.
    pub filter: PathBuf,
    /// The Wasm filter that reads bodies, too.
    pub bodies_filter: PathBuf,
}

/// What is built for each architecture.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The architecture.
    pub architecture: Architecture,
    /// The store and the commands: one static file.
    pub command: PathBuf,
    /// The native module, for glibc 2.28 or newer.
    pub module: PathBuf,
}

/// An architecture that is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Architecture {
    /// 64-bit Intel and AMD.
    #[value(name = "x86_64")]
    X86_64,
    /// 64-bit ARM.
    Aarch64,
}

impl Architecture {
    /// Rust's name, and the kernel's.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// The name that Debian, Go and OCI images use.
    #[must_use]
    pub const fn short_name(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }
}

impl Parts {
    /// The parts in a folder that `cargo xtask package` filled:
    /// `ARCHITECTURE/{quotagate,libquotagate.so}` and `wasm/{quotagate,quotagate-bodies}.wasm`.
    ///
    /// # Errors
    /// When a file is missing.
    pub fn find(
        folder: &Path,
        architectures: &[Architecture],
        commit: Option<String>,
        epoch: u64,
    ) -> Result<Self> {
        let mut architectures = architectures.to_vec();
        architectures.sort_unstable();
        architectures.dedup();
        let programs = architectures.into_iter().map(|architecture| {
            let folder = folder.join(architecture.name());
            let (command, module) = (folder.join(paths::COMMAND), folder.join(paths::MODULE));
            Programs { architecture, command, module }
        });
        let wasm = folder.join("wasm");
        let found = Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit,
            epoch,
            programs: programs.collect(),
            host: folder.join(consts::ARCH).join(paths::COMMAND),
            filter: wasm.join(paths::FILTER),
            bodies_filter: wasm.join(paths::BODIES_FILTER),
        };
        for file in found.files() {
            ensure!(
                file.is_file(),
                "{} is missing: `cargo xtask package` builds it",
                file.display()
            );
        }
        Ok(found)
    }

    fn files(&self) -> impl Iterator<Item = &Path> {
        let programs = self.programs.iter().flat_map(|built| [&built.command, &built.module]);
        programs.chain([&self.host, &self.filter, &self.bodies_filter]).map(PathBuf::as_path)
    }
}
