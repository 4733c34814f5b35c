//! `cargo xtask mesh`: applies the shipped files to real control planes, and checks what the
//! documents promise.

#![expect(
    clippy::indexing_slicing,
    reason = "of JSON alone, where what is missing reads as null: all of it comes from files and servers \
              of this run"
)]

mod binaries;
mod checks;
mod gateway;
mod istio;
mod kubernetes;
mod supervision;

use std::{
    env, fs,
    path::PathBuf,
    process::{self, Command, ExitCode},
    time::Instant,
};

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use quotagate_workspace::{paths, task};

use binaries::Binaries;
use checks::Checks;

/// Check the shipped files under the real Envoy Gateway, istiod and kube-apiserver
#[derive(Debug, Parser)]
#[command(name = "cargo xtask mesh", version)]
struct Cli {
    /// The control planes to run [default: all]
    #[arg(value_enum)]
    areas: Vec<Area>,
    /// A folder with their binaries [default: build what is missing in target/mesh, which needs Go]
    #[arg(long, value_name = "DIR")]
    bin: Option<PathBuf>,
    /// A work tree of istio/istio at the version that this task names, to build istiod from
    #[arg(long, value_name = "DIR")]
    istio_source: Option<PathBuf>,
    /// Run only the check of this name, such as kubernetes.controller; or if there is none, those
    /// whose names begin like this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// The process that waits for this one
    #[arg(long, hide = true)]
    supervisor: Option<u32>,
}

/// A control plane, with the files that are applied to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Area {
    /// kube-apiserver and Helm: the chart's lifecycle
    Kubernetes,
    /// Envoy Gateway: envoy/gateway, and its rate limit service
    Eg,
    /// istiod with its injector, pilot-agent and mTLS: envoy/istio
    Istio,
}

impl Area {
    /// How the names of its checks begin, before the dot.
    fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Eg => "eg",
            Self::Istio => "istio",
        }
    }
}

/// The page with a row for each check.
const TABLE: &str = "docs/operate/mesh.md";

fn main() -> ExitCode {
    task::ended(perform(&Cli::parse()))
}

fn perform(cli: &Cli) -> Result<ExitCode> {
    if let Some(supervisor) = cli.supervisor {
        supervision::end_with(supervisor)?;
        return run(cli).map(|()| ExitCode::SUCCESS);
    }
    let mut command = Command::new(env::current_exe()?);
    let own = ["--supervisor".to_owned(), process::id().to_string()];
    supervision::supervise(command.args(own).args(env::args_os().skip(1)))
}

fn run(cli: &Cli) -> Result<()> {
    let start = Instant::now();
    let areas = if cli.areas.is_empty() { Area::value_variants() } else { &cli.areas };
    let binaries = Binaries::new(cli.bin.clone(), cli.istio_source.clone());
    let mut checks = match &cli.only {
        Some(only) => Checks::only(only, &fs::read_to_string(paths::root().join(TABLE))?),
        None => Checks::default(),
    };
    for area in areas {
        if !checks.may_run(area.name()) {
            continue;
        }
        match area {
            Area::Kubernetes => kubernetes::run(&binaries, &mut checks)?,
            Area::Eg => gateway::run(&binaries, &mut checks)?,
            Area::Istio => istio::run(&binaries, &mut checks)?,
        }
    }
    if let (0, Some(only)) = (checks.all(), &cli.only) {
        bail!("no check of these control planes has the name {only}, or one that begins so");
    }
    print!("{}", checks.table());
    let (failed, all) = (checks.failed(), checks.all());
    if failed > 0 {
        bail!("{failed} of {all} checks failed");
    }
    task::step(&format!("mesh: all {all} checks passed in {} s", start.elapsed().as_secs()));
    Ok(())
}
