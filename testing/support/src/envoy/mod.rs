//! Real Envoy.

pub mod access_log;
pub mod edits;
pub mod form;
mod listeners;
mod metrics;
mod options;
pub mod prometheus;
pub mod yaml;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::{http, paths, process::Process, prometheus::Samples, tools};

pub use form::{Form, document, filter, is_filter, manager, plugin, position};
pub use listeners::ListenerFile;
use options::DRAIN_S;
pub use options::{EnvoyOptions, LOG_LEVELS, StoreAddress};

const START: Duration = Duration::from_secs(90);
const STOP: Duration = Duration::from_secs(20);
/// How often access logs are flushed to files; Envoy's default of 10 s is long for a test.
const FLUSH_MS: &str = "50";
/// The file in an Envoy's directory that names the base id.
const BASE_ID: &str = "base-id";

/// Where Envoy looks for modules.
const SEARCH_PATH: &str = "ENVOY_DYNAMIC_MODULES_SEARCH_PATH";

/// A running Envoy, killed when dropped.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    port: u16,
    admin_port: u16,
    directory: TempDir,
}

/// Which of the processes that share a base id, and so a hot restart, a process is.
enum Epoch {
    /// The only one. It chooses a base id.
    First,
    /// It takes over from the one with this base id.
    Second(String),
}

/// How a process starts, besides its configuration.
struct Start<'a> {
    concurrency: u32,
    drain_s: u32,
    log_levels: &'a str,
    /// The folder of the native module.
    modules: &'a Path,
    /// The words of a command that runs Envoy, such as a profiler's.
    under: &'a [OsString],
    /// How long it may take.
    limit: Duration,
}

impl<'a> Start<'a> {
    fn of(options: &'a EnvoyOptions) -> Self {
        let EnvoyOptions { concurrency, drain_s, log_levels, modules, .. } = options;
        let (concurrency, drain_s) = (*concurrency, *drain_s);
        Self { concurrency, drain_s, log_levels, modules, under: &[], limit: START }
    }
}

impl Envoy {
    /// Starts one and waits until it is ready.
    ///
    /// # Errors
    /// When there is no Envoy or no filter, or it refuses the configuration; the message ends with
    /// its log.
    pub fn start(options: &EnvoyOptions) -> Result<Self> {
        let built = match options.form.map_or_else(Form::of_run, Ok)? {
            Form::Wasm => options.wasm.clone(),
            Form::Native => options.modules.join(paths::MODULE),
        };
        if !options.bare && !built.is_file() {
            bail!("{} is not there: run `cargo xtask build --dev`", built.display());
        }
        Self::launch(&options.config()?, &Start::of(options), &Epoch::First)
    }

    /// Starts one that takes over the listener of this one, which drains and ends. Both must have
    /// the same port and number of workers.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn successor(&self, options: &EnvoyOptions) -> Result<Self> {
        let base_id = fs::read_to_string(self.directory.path().join(BASE_ID))?;
        let epoch = Epoch::Second(base_id.trim().to_owned());
        Self::launch(&options.config()?, &Start::of(options), &epoch)
    }

    /// Starts one with a configuration of any shape that has one listener.
    ///
    /// # Errors
    /// When there is no Envoy, or it refuses the configuration; the message ends with its log.
    pub fn start_config(config: &Value, concurrency: u32, log_levels: &str) -> Result<Self> {
        let modules = &paths::parts();
        let drain_s = DRAIN_S;
        let start = Start { concurrency, drain_s, log_levels, modules, under: &[], limit: START };
        Self::launch(config, &start, &Epoch::First)
    }

    /// The same under another program, such as a profiler: `under` is its command line. It may
    /// take as long as `limit`.
    ///
    /// # Errors
    /// As for [`start_config`](Self::start_config).
    pub fn start_under(
        under: &[OsString],
        config: &Value,
        log_levels: &str,
        limit: Duration,
    ) -> Result<Self> {
        let modules = &paths::parts();
        let drain_s = DRAIN_S;
        let start = Start { concurrency: 1, drain_s, log_levels, modules, under, limit };
        Self::launch(config, &start, &Epoch::First)
    }

    fn launch(config: &Value, start: &Start<'_>, epoch: &Epoch) -> Result<Self> {
        let Start { concurrency, drain_s, log_levels, modules, under, limit } = start;
        let directory = tempfile::tempdir()?;
        let config = write(config, directory.path())?;
        let admin_file = directory.path().join("admin");
        let mut command = command(modules, under)?;
        command.arg("--config-path").arg(config).arg("--admin-address-path").arg(&admin_file);
        command.args(["--concurrency", &concurrency.to_string()]);
        match epoch {
            Epoch::First => {
                command.args(["--use-dynamic-base-id", "--base-id-path"]);
                command.arg(directory.path().join(BASE_ID));
            }
            Epoch::Second(base_id) => {
                command.args(["--restart-epoch", "1", "--base-id", base_id]);
            }
        }
        command.args(["--log-level", "warn", "--component-log-level", log_levels]);
        // Do not wait for a predecessor, nor at the end for open connections.
        command.args(["--drain-time-s", &drain_s.to_string()]);
        command.args(["--parent-shutdown-time-s", &(drain_s + 1).to_string()]);
        command.args(["--file-flush-interval-msec", FLUSH_MS]);
        let mut process =
            Process::spawn("Envoy", &mut command, &directory.path().join("envoy.log"))?;
        let (admin_port, port) = process.wait_until("Envoy to be ready", *limit, |_| {
            let admin = fs::read_to_string(&admin_file)?;
            let admin_port: u16 = admin.rsplit(':').next().unwrap_or_default().trim().parse()?;
            if http::get(admin_port, "/ready")?.status != 200 {
                return Ok(None);
            }
            Ok(Some((admin_port, listener_port(admin_port)?)))
        })?;
        Ok(Self { process, port, admin_port, directory })
    }

    /// The output of `envoy --mode validate` for a configuration.
    ///
    /// # Errors
    /// The output if Envoy refuses the configuration, or the absence of Envoy.
    pub fn validate(config: &Value) -> Result<(), String> {
        let run = || -> Result<Output> {
            let directory = tempfile::tempdir()?;
            let path = write(config, directory.path())?;
            Self::validate_file(&path)
        };
        match run() {
            Err(error) => Err(format!("{error:#}")),
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Runs `envoy --mode validate` on a file.
    ///
    /// # Errors
    /// When there is no Envoy.
    pub fn validate_file(path: &Path) -> Result<Output> {
        let mut command = command(&paths::parts(), &[])?;
        command.args([
            "--mode",
            "validate",
            "--log-level",
            "warn",
            "--use-dynamic-base-id",
            "--config-path",
        ]);
        Ok(command.arg(path).output()?)
    }

    /// The port of its listener on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port of its admin interface on 127.0.0.1.
    #[must_use]
    pub fn admin_port(&self) -> u16 {
        self.admin_port
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// All output so far, with the filter's log lines.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The statistics whose names match this regular expression, as `name: value` lines.
    ///
    /// # Errors
    /// When the admin interface does not answer.
    pub fn stats(&self, filter: &str) -> Result<String> {
        Ok(http::get(self.admin_port, &format!("/stats?filter={filter}"))?.text())
    }

    /// The page that Prometheus would read.
    ///
    /// # Errors
    /// When the admin interface does not answer.
    pub fn prometheus(&self) -> Result<Samples> {
        Ok(Samples::new(http::get(self.admin_port, "/stats/prometheus")?.text()))
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// When it does not end within 20 s.
    pub fn stop(&mut self) -> Result<()> {
        self.process.terminate(STOP).map(drop)
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Freezes it: connections stay open, nothing is answered.
    ///
    /// # Errors
    /// When it has ended.
    pub fn freeze(&mut self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Ends a [`freeze`](Self::freeze).
    ///
    /// # Errors
    /// When it has ended.
    pub fn thaw(&mut self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Fails if Envoy has ended.
    ///
    /// # Errors
    /// When it has ended; the message ends with its last lines.
    pub fn check(&mut self) -> Result<()> {
        let running = self.process.is_running()?;
        running.then_some(()).with_context(|| format!("Envoy has ended:\n{}", self.process.tail()))
    }
}

/// Envoy, which finds the native module of this folder, run by the command `under` if it has words.
fn command(modules: &Path, under: &[OsString]) -> Result<Command> {
    let envoy = tools::envoy()?.into_os_string();
    let mut words = under.iter().chain([&envoy]);
    let mut command = Command::new(words.next().unwrap_or(&envoy));
    command.args(words).env(SEARCH_PATH, modules);
    Ok(command)
}

fn write(config: &Value, directory: &Path) -> Result<PathBuf> {
    let path = directory.join("envoy.json");
    fs::write(&path, serde_json::to_vec_pretty(config)?)?;
    Ok(path)
}

/// The port that the first listener was given.
fn listener_port(admin_port: u16) -> Result<u16> {
    let listeners = http::get(admin_port, "/listeners?format=json")?.json()?;
    let port = listeners.pointer("/listener_statuses/0/local_address/socket_address/port_value");
    let port = port.and_then(Value::as_u64).ok_or_else(|| anyhow!("no listener yet"))?;
    Ok(u16::try_from(port)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        http::{Client, Request},
        jwt,
        upstream::Upstream,
        yaml,
    };
    use serde_json::json;

    fn bare(upstream: u16) -> EnvoyOptions {
        EnvoyOptions::new(upstream, 1).bare()
    }

    #[test]
    fn two_envoys_run_side_by_side_and_reject_forged_tokens() {
        let upstream = Upstream::start().unwrap();
        let envoys = [(); 2].map(|()| Envoy::start(&bare(upstream.port()).concurrency(2)).unwrap());
        assert_ne!(envoys[0].port(), envoys[1].port());
        for envoy in &envoys {
            let mut client = Client::connect(envoy.port()).unwrap();
            let mut status = |request: Request| client.send(&request).unwrap().status;
            assert_eq!(status(Request::get("/")), 200);
            assert_eq!(status(Request::get("/").bearer(&jwt::token("alice").unwrap())), 200);
            assert_eq!(status(Request::get("/").bearer(&jwt::forged("alice").unwrap())), 401);
        }
        assert_eq!(upstream.requests(), 4);
    }

    #[test]
    fn rejected_configuration_is_explained() {
        let mut config = bare(1).config().unwrap();
        assert_eq!(Envoy::validate(&config), Ok(()));
        *yaml::at(manager(&mut config).unwrap(), "/stat_prefix").unwrap() = json!(["no", "text"]);
        let error = Envoy::validate(&config).unwrap_err();
        assert!(error.contains("stat_prefix"), "{error}");
    }
}
