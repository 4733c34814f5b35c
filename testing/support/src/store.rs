//! The store as a user runs it: `quotagate serve`, or inside `quotagate ratelimit`.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    http::{self, Client, Request},
    paths, ports,
    process::Process,
    redis::retried,
};

const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(30);

/// What Envoy Gateway sets for its rate limit service, besides addresses, TLS and the source of
/// rules.
pub const BY_ENVOY_GATEWAY: [(&str, &str); 10] = [
    ("RUNTIME_ROOT", "/data"),
    ("RUNTIME_SUBDIRECTORY", "ratelimit"),
    ("RUNTIME_IGNOREDOTFILES", "true"),
    ("RUNTIME_WATCH_ROOT", "false"),
    ("LOG_LEVEL", "info"),
    ("USE_STATSD", "false"),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ("REDIS_SOCKET_TYPE", "tcp"),
    ("USE_PROMETHEUS", "true"),
    ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
];

/// How to start a store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The command: `serve` or `ratelimit`.
    pub subcommand: &'static str,
    /// `--store`
    pub store: String,
    /// `--listen`: an address, or `unix:/path`.
    pub listen: String,
    /// `--admin`
    pub admin: String,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// Variables of its environment, besides those of the test.
    pub environment: Vec<(String, String)>,
    /// The command; without one, that of [`paths::command`].
    pub program: Option<PathBuf>,
    /// A command that runs it, such as valgrind with its arguments.
    pub under: Vec<OsString>,
}

impl StoreOptions {
    /// On free ports of 127.0.0.1.
    #[must_use]
    pub fn new(store: &str) -> Self {
        let any = "127.0.0.1:0".to_owned();
        Self {
            subcommand: "serve",
            store: store.to_owned(),
            listen: any.clone(),
            admin: any,
            arguments: Vec::new(),
            environment: Vec::new(),
            program: None,
            under: Vec::new(),
        }
    }

    /// A rate limit service with the rules in this folder, on free ports of 127.0.0.1.
    #[must_use]
    pub fn rate_limits(store: &str, rules: &Path) -> Self {
        let rules = rules.display().to_string();
        let any = "127.0.0.1:0";
        Self { subcommand: "ratelimit", ..Self::new(store) }
            .arguments(&["--config", &rules, "--http", any, "--debug", any, "--log", "info"])
    }

    /// On this port instead, or `unix:/path`.
    #[must_use]
    pub fn listen(mut self, address: &str) -> Self {
        address.clone_into(&mut self.listen);
        self
    }

    /// With this admin address instead.
    #[must_use]
    pub fn admin(mut self, address: &str) -> Self {
        address.clone_into(&mut self.admin);
        self
    }

    /// With further arguments.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&a| a.to_owned()));
        self
    }

    /// With this variable in its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With this command instead, such as the one that Cargo built for a test of the same crate.
    #[must_use]
    pub fn program(mut self, path: impl AsRef<Path>) -> Self {
        self.program = Some(path.as_ref().to_owned());
        self
    }
}

/// A running store, killed when dropped.
#[derive(Debug)]
pub struct StoreProcess {
    process: Process,
    port: u16,
    admin_port: u16,
    http_port: Option<u16>,
    _directory: TempDir,
}

impl StoreProcess {
    /// Starts one on free ports and waits until it listens. Its backend may be missing. No outgoing
    /// connection can take its port while it is down, so another one can be [started on
    /// it](Self::start_on).
    ///
    /// # Errors
    /// When it was not built, or does not come up.
    pub fn start(store: &str, arguments: &[&str]) -> Result<Self> {
        retried(|| Self::start_on(ports::free()?, store, arguments))
    }

    /// Starts one on this port, for stores that come up after their Envoy.
    ///
    /// # Errors
    /// When it was not built, or does not come up.
    pub fn start_on(port: u16, store: &str, arguments: &[&str]) -> Result<Self> {
        let options =
            StoreOptions::new(store).listen(&format!("127.0.0.1:{port}")).arguments(arguments);
        Self::start_with(&options)
    }

    /// Starts one and waits until it listens.
    ///
    /// # Errors
    /// When it was not built, or does not come up.
    pub fn start_with(options: &StoreOptions) -> Result<Self> {
        let program = options.program.clone().unwrap_or_else(paths::command);
        if !program.is_file() {
            bail!("{} is not there: run `cargo xtask build --dev`", program.display());
        }
        let directory = tempfile::tempdir()?;
        let mut words = options.under.iter().cloned().chain([program.into()]);
        let mut command = Command::new(words.next().context("no program")?);
        command.args(words).arg(options.subcommand).args([
            "--store",
            &options.store,
            "--listen",
            &options.listen,
        ]);
        command.args(["--admin", &options.admin]).args(&options.arguments);
        // Few tests have anything to drain; those give `--drain` themselves.
        command.env("QUOTAGATE_DRAIN", "0s");
        command.envs(options.environment.iter().map(|(name, value)| (name, value)));
        let mut process =
            Process::spawn("the store", &mut command, &directory.path().join("store.log"))?;
        let unix = options.listen.starts_with("unix:");
        let (port, admin_port) = process.wait_until("its ready lines", START, |process| {
            let log = process.log();
            let port = if unix {
                log.contains("listening on unix:").then_some(0)
            } else {
                port_after(&log, "listening on http://")
            };
            Ok(port.zip(port_after(&log, "admin on http://")))
        })?;
        let http_port = port_after(&process.log(), "(gRPC), http://");
        Ok(Self { process, port, admin_port, http_port, _directory: directory })
    }

    /// Starts envoyproxy/ratelimit itself with the rules in a folder, to compare with: this
    /// program, and the Redis on this port. Its admin port is that of its debug address.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start_original(
        program: &Path,
        redis: u16,
        rules: &Path,
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        // It follows no link to the folder.
        let config = directory.path().join("rules").join("config");
        fs::create_dir_all(&config)?;
        for file in fs::read_dir(rules)? {
            let file = file?;
            fs::copy(file.path(), config.join(file.file_name()))?;
        }
        let (port, http, debug) = (ports::free()?, ports::free()?, ports::free()?);
        let mut command = Command::new(program);
        command.env("RUNTIME_ROOT", directory.path()).env("RUNTIME_SUBDIRECTORY", "rules");
        command.env("RUNTIME_WATCH_ROOT", "false").env("USE_STATSD", "false");
        command.env("REDIS_SOCKET_TYPE", "tcp").env("REDIS_URL", format!("127.0.0.1:{redis}"));
        for (name, port) in [("GRPC", port), ("", http), ("DEBUG", debug)] {
            let name = |last| format!("{name}_{last}").trim_start_matches('_').to_owned();
            command.env(name("HOST"), "127.0.0.1").env(name("PORT"), port.to_string());
        }
        command.envs(environment.iter().copied());
        let log = directory.path().join("original.log");
        let mut process = Process::spawn("envoyproxy/ratelimit", &mut command, &log)?;
        process.wait_until("its health", START, |_| {
            let health = http::get(http, "/healthcheck")?;
            Ok((health.status == 200 && http::Client::connect(port).is_ok()).then_some(()))
        })?;
        Ok(Self { process, port, admin_port: debug, http_port: Some(http), _directory: directory })
    }

    /// The port that filters call; 0 for a Unix socket.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port of its admin address.
    #[must_use]
    pub fn admin_port(&self) -> u16 {
        self.admin_port
    }

    /// The port of `/json` and `/healthcheck`, which only rate limit services have.
    ///
    /// # Errors
    /// When it is none.
    pub fn http_port(&self) -> Result<u16> {
        self.http_port.context("this is no rate limit service")
    }

    /// Sends JSON to its admin address, as an operator does. Returns the answer, which must be 200.
    ///
    /// # Errors
    /// When no answer comes, or another one.
    pub fn operate(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let text = body.to_string();
        let request = Request::new(method, path)
            .header("content-type", "application/json")
            .header("content-length", text.len().to_string())
            .body(text.as_bytes());
        let response = Client::connect(self.admin_port)?.send(&request)?;
        if response.status != 200 {
            bail!("{method} {path} of {text} is answered {}: {}", response.status, response.text());
        }
        Ok(serde_json::from_slice(&response.body)?)
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// All output so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Sends SIGTERM and does not wait: the store drains, and ends later.
    ///
    /// # Errors
    /// When it has ended.
    pub fn ask_to_stop(&mut self) -> Result<()> {
        self.process.signal(Signal::TERM)
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// When it does not end within 15 s, or not with status 0.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.process.terminate(STOP)?;
        if !status.success() {
            bail!("the store ended with {status}; its last words:\n{}", self.process.tail());
        }
        Ok(())
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

    /// Fails if the store has ended.
    ///
    /// # Errors
    /// When it has ended; the message ends with its last lines.
    pub fn check(&mut self) -> Result<()> {
        let running = self.process.is_running()?;
        running
            .then_some(())
            .with_context(|| format!("the store has ended:\n{}", self.process.tail()))
    }
}

/// The port of the address that follows `marker`.
fn port_after(log: &str, marker: &str) -> Option<u16> {
    let (_, rest) = log.split_once(marker)?;
    // A line that is still being written may end in the middle of the number.
    let (address, _) = rest.split_once(['\n', ' ', ',', '"'])?;
    address.rsplit_once(':')?.1.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_from_whole_lines_only() {
        let log = "INFO listening on http://127.0.0.1:4711\nINFO admin on http://127.0.0.1:47";
        assert_eq!(port_after(log, "listening on http://"), Some(4711));
        assert_eq!(port_after(log, "admin on http://"), None);
        assert_eq!(port_after("", "admin on http://"), None);
    }
}
