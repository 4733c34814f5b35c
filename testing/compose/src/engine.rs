//! The Docker engine: the one that answers, or one of our own.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{self, Command},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use quotagate_support::process::Process;
use quotagate_workspace::{paths, task, tools};
use tempfile::TempDir;

use crate::program;

/// How long an engine may take to start or to stop.
const LIMIT: Duration = Duration::from_secs(60);
/// How long one command to it may take.
const COMMAND: Duration = Duration::from_secs(300);

/// What decides which engine runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// The command is on PATH.
    docker: bool,
    /// An engine answers the command, by `DOCKER_HOST` or at its usual socket.
    answers: bool,
    /// `DOCKER_HOST`, which names the engine to use.
    host: Option<String>,
    root: bool,
    /// Programs that an engine of our own lacks.
    missing: Vec<&'static str>,
}

/// Which engine runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// The one that answers.
    Use,
    /// One of our own.
    Start,
    /// None, for this reason.
    Impossible(String),
}

impl Machine {
    /// This machine.
    #[must_use]
    pub fn look() -> Self {
        let needed = ["dockerd", "containerd", "runc", "iptables", "setpriv"];
        Self {
            docker: tools::on_path("docker").is_some(),
            answers: task::succeeds(Command::new("docker").arg("version")),
            host: env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty()),
            root: fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0),
            missing: needed.into_iter().filter(|name| tools::on_path(name).is_none()).collect(),
        }
    }
}

/// Which engine this machine runs.
#[must_use]
pub fn plan(machine: &Machine) -> Plan {
    const SKIP: &str =
        "or write into the log that Compose was not run: `cargo xtask compose --skip`";
    let Machine { docker, answers, host, root, missing } = machine;
    let why = match host {
        _ if !docker => "there is no docker on PATH: run `cargo xtask setup --compose`".to_owned(),
        _ if *answers => return Plan::Use,
        Some(host) => {
            format!(
                "no Docker engine answers at DOCKER_HOST={host}: start it, or unset the variable"
            )
        }
        None if !root => {
            "no Docker engine answers, and only root can start one: start Docker, set \
                          DOCKER_HOST, or run this as root"
                .to_owned()
        }
        None if missing.is_empty() => return Plan::Start,
        None => format!(
            "no Docker engine answers, and {} to start one is missing: run `cargo xtask setup --compose`",
            missing.join(", ")
        ),
    };
    Plan::Impossible(format!("{why}; {SKIP}"))
}

/// A Docker engine that answers. One of our own ends when the value is dropped.
pub struct Engine {
    own: Option<Own>,
    compose: Vec<OsString>,
}

struct Own {
    process: Process,
    /// Images and containers.
    data: PathBuf,
    /// The socket, whose path must be short.
    run: TempDir,
}

impl Engine {
    /// The engine of this plan.
    ///
    /// # Errors
    /// When there can be none, or it does not start.
    pub fn open(plan: Plan) -> Result<Self> {
        let compose = tools::compose()?;
        let engine = match plan {
            Plan::Impossible(why) => bail!("{why}"),
            Plan::Use => Self { own: None, compose },
            Plan::Start => Self { own: Some(Own::start()?), compose },
        };
        let version =
            ["version", "--format", "{{.Server.Version}} on {{.Server.Os}}/{{.Server.Arch}}"];
        let whose = if engine.own.is_some() { "our own" } else { "the one that runs" };
        task::step(&format!("compose: Docker engine {}, {whose}", engine.docker(&version)?.trim()));
        Ok(engine)
    }

    /// What `docker ARGUMENTS` prints.
    ///
    /// # Errors
    /// When it fails.
    pub fn docker(&self, arguments: &[&str]) -> Result<String> {
        program::run(self.command("docker").args(arguments), COMMAND)
    }

    /// `docker build ARGUMENTS`, which leaves no container behind even if it fails.
    ///
    /// # Errors
    /// When it fails.
    pub fn build(&self, arguments: &[&str]) -> Result<()> {
        self.docker(&[&["build", "--quiet", "--force-rm"], arguments].concat()).map(drop)
    }

    /// [`docker`](Self::docker), which Ctrl-C does not end.
    ///
    /// # Errors
    /// When it fails.
    pub fn clean_up(&self, arguments: &[&str]) -> Result<String> {
        program::clean_up(self.command("docker").args(arguments), COMMAND)
    }

    /// The beginning of a command of Docker Compose.
    #[must_use]
    pub fn compose(&self) -> Command {
        let mut words = self.compose.iter();
        let program = words.next().map_or(OsStr::new("docker-compose"), OsString::as_os_str);
        let mut command = self.command(program);
        command.args(words);
        command
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        // The classic builder, which needs no plugin.
        command.env("DOCKER_BUILDKIT", "0");
        if let Some(own) = &self.own {
            command.env("DOCKER_HOST", own.socket());
        }
        command
    }

    /// Stops an engine of our own, and removes what it kept.
    ///
    /// # Errors
    /// When it does not stop, or its data cannot be removed.
    pub fn stop(mut self) -> Result<()> {
        self.own.take().map_or(Ok(()), Own::stop)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // `drop` cannot report a failure.
        let _ = self.own.take().map(Own::stop);
    }
}

impl Own {
    fn start() -> Result<Self> {
        let folder = paths::compose();
        remove_stale(&folder);
        let data = folder.join(format!("engine-{}", process::id()));
        fs::create_dir_all(&data)?;
        let run = tempfile::tempdir()?;
        let config = run.path().join("daemon.json");
        fs::write(&config, "{}")?;
        let at = |name: &str| run.path().join(name);
        let socket = format!("unix://{}", at("docker.sock").display());
        // The engine ends with this process, even if that is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "dockerd"]).process_group(0);
        command.arg("--config-file").arg(&config).arg("--data-root").arg(&data);
        command.arg("--exec-root").arg(at("exec")).arg("--pidfile").arg(at("pid"));
        command.args(["--host", &socket]);
        // Compose makes a network of its own. An engine that turned forwarding on would also change
        // the machine's default to dropping.
        command.args(["--bridge", "none", "--ip-forward=false"]);
        // An engine that was killed may leave rules for its own networks behind, such as those of
        // 172.17.0.0/16. They would translate addresses between our containers.
        command.args(["--default-address-pool", &address_pool(process::id())]);
        let process = Process::spawn("dockerd", &mut command, &at("log"))?;
        let mut own = Self { process, data, run };
        let started = own.process.wait_until("an answer of the engine", LIMIT, |_| {
            let mut version = Command::new("docker");
            version.args(["--host", &socket, "version"]);
            // After Ctrl-C, the next command fails.
            let is_over = program::go_on().is_err() || task::succeeds(&mut version);
            Ok(is_over.then_some(()))
        });
        match started {
            Ok(()) => Ok(own),
            Err(error) => {
                // The first error counts.
                let _ = own.stop();
                Err(error.context(
                    "dockerd cannot be started here; in a container it needs --privileged. Without an \
                     engine, `cargo xtask compose --skip` writes into the log that Compose was not run",
                ))
            }
        }
    }

    fn socket(&self) -> String {
        format!("unix://{}", self.run.path().join("docker.sock").display())
    }

    fn stop(mut self) -> Result<()> {
        task::note("the engine stops, and its images go");
        let stopped = self.process.terminate(LIMIT).map(drop);
        let removed = fs::remove_dir_all(&self.data)
            .with_context(|| format!("cannot remove {}", self.data.display()));
        stopped.and(removed)
    }
}

/// Addresses that no other engine uses by default, others for each run.
fn address_pool(run: u32) -> String {
    format!("base=10.{}.{}.0/20,size=24", 200 + run % 50, (run / 50) % 16 * 16)
}

/// Removes the data of engines whose task was killed.
fn remove_stale(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix("engine-"));
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            // Something may still be mounted there; the next run tries again.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(machine: &Machine) -> String {
        match plan(machine) {
            Plan::Impossible(why) => why,
            plan => panic!("{plan:?}"),
        }
    }

    #[test]
    fn an_engine_that_answers_is_used_by_everybody() {
        for root in [false, true] {
            let machine = Machine { docker: true, answers: true, root, ..Machine::default() };
            assert_eq!(plan(&machine), Plan::Use);
        }
    }

    #[test]
    fn root_starts_an_engine_of_its_own() {
        let machine = Machine { docker: true, root: true, ..Machine::default() };
        assert_eq!(plan(&machine), Plan::Start);
    }

    #[test]
    fn an_impossible_plan_names_reason_and_remedy() {
        let docker = Machine { docker: true, ..Machine::default() };
        let host = Some("tcp://192.0.2.1:2375".to_owned());
        for (machine, says) in [
            (Machine::default(), "no docker on PATH: run `cargo xtask setup --compose`"),
            (docker.clone(), "only root can start one"),
            (Machine { missing: vec!["runc"], root: true, ..docker.clone() }, "runc to start one"),
            (Machine { host, root: true, ..docker }, "DOCKER_HOST=tcp://192.0.2.1:2375: start it"),
        ] {
            let why = reason(&machine);
            assert!(why.contains(says) && why.contains("--skip"), "{why}");
        }
    }

    #[test]
    fn runs_at_the_same_time_use_different_addresses() {
        let pools: std::collections::BTreeSet<String> = (1_000..1_800).map(address_pool).collect();
        assert_eq!(pools.len(), 800);
        assert!(pools.contains("base=10.200.64.0/20,size=24"), "{pools:?}");
    }

    #[test]
    fn data_of_a_killed_run_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let [gone, own, other] = ["engine-4194399", &format!("engine-{}", process::id()), "base"]
            .map(|name| folder.path().join(name));
        [&gone, &own, &other].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        remove_stale(folder.path());
        assert!(!gone.exists() && own.exists() && other.exists());
    }
}
