//! The control planes' programs: given by the user, or built from source.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use quotagate_workspace::tools;

/// Where the programs are.
#[derive(Debug)]
pub struct Binaries {
    given: Option<PathBuf>,
    istio_source: Option<PathBuf>,
}

/// A program that a run may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "other areas")]
pub enum Program {
    EnvoyGateway,
    Helm,
    KubeApiserver,
    PilotAgent,
    PilotDiscovery,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::EnvoyGateway => "envoy-gateway",
            Self::Helm => "helm",
            Self::KubeApiserver => "kube-apiserver",
            Self::PilotAgent => "pilot-agent",
            Self::PilotDiscovery => "pilot-discovery",
        }
    }
}

/// A program of the system, on PATH.
///
/// # Errors
/// When there is none, with what to do.
pub fn installed(name: &str) -> Result<PathBuf> {
    tools::on_path(name)
        .with_context(|| format!("{name} is not on PATH: run `cargo xtask setup --mesh`"))
}

impl Binaries {
    /// Programs in the folder `given`; otherwise built, istiod from `istio_source`.
    pub fn new(given: Option<PathBuf>, istio_source: Option<PathBuf>) -> Self {
        Self { given, istio_source }
    }

    /// The work tree of Istio, whose charts are installed.
    ///
    /// # Errors
    /// When the user named none.
    pub fn istio_source(&self) -> Result<PathBuf> {
        self.istio_source.clone().context("name a work tree of istio/istio with --istio-source")
    }

    /// The path of a program, built first if need be.
    ///
    /// # Errors
    /// When it is not in the given folder, or cannot be built.
    pub fn path(&self, program: Program) -> Result<PathBuf> {
        let name = program.name();
        let Some(folder) = &self.given else { bail!("{name}: give its folder with --bin") };
        let path = folder.join(name);
        if !path.is_file() {
            bail!("--bin: {} has no {name}", folder.display());
        }
        Ok(path)
    }
}
