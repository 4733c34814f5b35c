//! The control planes' programs: given by the user, or built from source.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use quotagate_workspace::{paths, task, tools};
use serde_json::Value;

/// The Go modules that programs are built from, and that have the definitions of their objects.
pub const ENVOY_GATEWAY: GoModule =
    GoModule { path: "github.com/envoyproxy/gateway", version: "v1.9.0" };
/// As above.
pub const ISTIO_API: GoModule = GoModule { path: "istio.io/api", version: "v1.31.1" };
/// As above.
pub const PROMETHEUS_OPERATOR: GoModule =
    GoModule { path: "github.com/prometheus-operator/prometheus-operator", version: "v0.85.0" };
const HELM: GoModule = GoModule { path: "helm.sh/helm/v4", version: "v4.2.0" };
const KUBERNETES: GoModule = GoModule { path: "k8s.io/kubernetes", version: "v1.37.2" };
const ISTIO_CLIENT: GoModule = GoModule { path: "istio.io/client-go", version: ISTIO_API.version };
/// The tag of istio/istio that istiod and its agent are built from. It is no version of a Go
/// module.
const ISTIO_TAG: &str = "1.31.0-rc.0";

/// The oldest Go that builds all of them.
const GO: &str = "1.26.6";

/// The whole of kube-apiserver. Its own package main is in no module that others can build.
const KUBE_APISERVER: &str = r#"package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
"#;

/// A version of a Go module.
#[derive(Debug, Clone, Copy)]
pub struct GoModule {
    path: &'static str,
    version: &'static str,
}

/// Where the programs are.
#[derive(Debug)]
pub struct Binaries {
    given: Option<PathBuf>,
    istio_source: Option<PathBuf>,
}

/// A program that a run may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

    /// Its version, and how long two cores need to build it without what Go has cached.
    fn about(self) -> (&'static str, &'static str) {
        match self {
            Self::EnvoyGateway => (ENVOY_GATEWAY.version, "about ten minutes"),
            Self::Helm => (HELM.version, "about three minutes"),
            Self::KubeApiserver => (KUBERNETES.version, "about eight minutes"),
            Self::PilotAgent => (ISTIO_TAG, "about three minutes"),
            Self::PilotDiscovery => (ISTIO_TAG, "about seven minutes"),
        }
    }
}

/// A program of the system, on PATH.
///
/// # Errors
/// When there is none, with what to do.
pub fn installed(name: &str) -> Result<PathBuf> {
    tools::on_path(name).with_context(|| match name {
        // Debian's is older than what Kubernetes and Istio ask for.
        "go" => format!("go is not on PATH: install Go {GO} or newer"),
        "git" => "git is not on PATH: install it, or give --bin or --istio-source".to_owned(),
        _ => format!("{name} is not on PATH: run `cargo xtask setup --mesh`"),
    })
}

impl GoModule {
    /// The folder of its files, fetched first if Go does not have them.
    ///
    /// # Errors
    /// When Go is missing, or cannot fetch it.
    pub fn folder(self) -> Result<PathBuf> {
        Ok(PathBuf::from(self.fetched("Dir")?))
    }

    /// What Go says of it.
    fn fetched(self, field: &str) -> Result<String> {
        let module = format!("{}@{}", self.path, self.version);
        let text = task::printed(go()?.args(["mod", "download", "-json", &module]))
            .with_context(|| format!("cannot fetch the Go module {module}"))?;
        let answer: Value = serde_json::from_str(&text)?;
        let text = answer.get(field).and_then(Value::as_str);
        Ok(text.with_context(|| format!("Go knows no {field} of {module}"))?.to_owned())
    }

    /// The argument of `go mod edit` that requires it.
    fn required(self) -> String {
        format!("-require={}@{}", self.path, self.version)
    }
}

impl Binaries {
    /// Programs in the folder `given`; otherwise built, istiod from `istio_source`.
    pub fn new(given: Option<PathBuf>, istio_source: Option<PathBuf>) -> Self {
        Self { given, istio_source }
    }

    /// The path of a program, built first if need be.
    ///
    /// # Errors
    /// When it is not in the given folder, or cannot be built.
    pub fn path(&self, program: Program) -> Result<PathBuf> {
        let name = program.name();
        if let Some(folder) = &self.given {
            let path = folder.join(name);
            if !path.is_file() {
                bail!(
                    "--bin: {} has no {name}. Add it, or leave --bin out to build it",
                    folder.display()
                );
            }
            return Ok(path);
        }
        let (version, time) = program.about();
        let folder = built();
        let path = folder.join(format!("{name}-{version}"));
        if !path.is_file() {
            let start = Instant::now();
            task::step(&format!("building {name} {version}, which takes {time} on two cores"));
            fs::create_dir_all(&folder)?;
            // A build that is stopped leaves nothing that looks whole.
            let unfinished = folder.join(format!("{name}.unfinished"));
            self.build(program, &unfinished).with_context(|| format!("cannot build {name}"))?;
            fs::rename(&unfinished, &path)?;
            task::note(&format!("built in {} s", start.elapsed().as_secs()));
        }
        Ok(path)
    }

    /// The work tree of Istio, whose charts are installed.
    ///
    /// # Errors
    /// When none was given, and it cannot be fetched.
    pub fn istio_source(&self) -> Result<PathBuf> {
        self.istio_source.clone().map_or_else(|| self.istio(), Ok)
    }

    fn build(&self, program: Program, to: &Path) -> Result<()> {
        match program {
            Program::EnvoyGateway => {
                compile(&copied(ENVOY_GATEWAY)?, "./cmd/envoy-gateway", &[], "", to)
            }
            Program::Helm => compile(&copied(HELM)?, "./cmd/helm", &[], "", to),
            Program::KubeApiserver => {
                // kubectl and Helm read the version of the server.
                let version = KUBERNETES.version;
                let minor = version.split('.').nth(1).unwrap_or_default();
                let flags: String =
                    [("gitVersion", version), ("gitMajor", "1"), ("gitMinor", minor)]
                        .map(|(name, value)| {
                            format!(" -X k8s.io/component-base/version.{name}={value}")
                        })
                        .concat();
                compile(&kube_apiserver()?, ".", &[], &flags, to)
            }
            Program::PilotAgent => {
                compile(&self.istio()?, "./pilot/cmd/pilot-agent", &["agent,disable_pgv"], "", to)
            }
            Program::PilotDiscovery => {
                let tags = ["vtprotobuf,disable_pgv"];
                compile(&self.istio()?, "./pilot/cmd/pilot-discovery", &tags, "", to)
            }
        }
    }

    /// A work tree of istio/istio of our own, with a version of the API that Go can fetch.
    fn istio(&self) -> Result<PathBuf> {
        let folder = built().join(format!("istio-{ISTIO_TAG}"));
        if !folder.join("go.mod").is_file() {
            let parent = built();
            fs::create_dir_all(&parent)?;
            let new = parent.join("istio.unfinished");
            remove(&new)?;
            match &self.istio_source {
                Some(source) => copy(source, &new)?,
                None => {
                    let source = "https://github.com/istio/istio";
                    let mut git = Command::new(installed("git")?);
                    git.args(["clone", "--quiet", "--depth", "1", "--branch", ISTIO_TAG, source]);
                    task::visibly(git.arg(&new)).context(
                        "without a network, give a work tree of istio/istio with --istio-source",
                    )?;
                }
            }
            let required = [ISTIO_API.required(), ISTIO_CLIENT.required()];
            task::visibly(go()?.args(["mod", "edit"]).args(required).current_dir(&new))?;
            fs::rename(&new, &folder)?;
        }
        Ok(folder)
    }
}

/// Where programs are built.
fn built() -> PathBuf {
    paths::root().join("target").join("mesh")
}

fn go() -> Result<Command> {
    let mut go = Command::new(installed("go")?);
    go.env("GOFLAGS", "-mod=mod -buildvcs=false").env("GOTOOLCHAIN", "local");
    go.env("CGO_ENABLED", "0").current_dir(std::env::temp_dir());
    Ok(go)
}

fn compile(source: &Path, package: &str, tags: &[&str], flags: &str, to: &Path) -> Result<()> {
    let mut go = go()?;
    go.current_dir(source).args(["build", "-ldflags", &format!("-s -w{flags}")]);
    tags.iter().for_each(|tags| _ = go.args(["-tags", tags]));
    task::visibly(go.arg("-o").arg(to).arg(package))
}

/// A copy of a module that Go may write to: `-mod=mod` completes go.sum.
fn copied(module: GoModule) -> Result<PathBuf> {
    let name = module.path.replace('/', "-");
    let folder = built().join(format!("{name}-{}", module.version));
    if !folder.join("go.mod").is_file() {
        remove(&folder)?;
        copy(&module.folder()?, &folder)?;
        task::visibly(Command::new("chmod").args(["-R", "u+w"]).arg(&folder))?;
    }
    Ok(folder)
}

/// A module that is kube-apiserver. Kubernetes names its parts by folders of its own repository,
/// so each is replaced by the module of the same version.
fn kube_apiserver() -> Result<PathBuf> {
    let folder = built().join("kube-apiserver");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("main.go"), KUBE_APISERVER)?;
    fs::write(folder.join("go.mod"), "module apiserver\n")?;
    let modules = fs::read_to_string(KUBERNETES.fetched("GoMod")?)?;
    let version = KUBERNETES.version.replacen("v1.", "v0.", 1);
    let replaced = modules.lines().filter_map(|line| {
        let (module, _) =
            line.trim().trim_start_matches("replace ").split_once(" => ./staging/")?;
        Some(format!("-replace={module}={module}@{version}"))
    });
    let required = KUBERNETES.required();
    let edits: Vec<String> = replaced.chain([required]).collect();
    task::visibly(go()?.args(["mod", "edit"]).args(edits).current_dir(&folder))?;
    Ok(folder)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    task::visibly(Command::new("cp").arg("-r").arg(from).arg(to))
}

fn remove(folder: &Path) -> Result<()> {
    if folder.is_dir() {
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}
