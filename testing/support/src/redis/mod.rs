//! One real Redis (or Valkey) without persistence.

pub mod clock;
pub mod cluster;
pub mod resp;
pub mod rights;
pub mod sentinel;

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context, Result};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{ports, process::Process, resp::Reply, tools};

const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(30);
/// A port can be lost to another process between finding and binding it.
const ATTEMPTS: usize = 5;

/// A running Redis, ended when dropped.
#[derive(Debug)]
pub struct Redis {
    process: Process,
    port: u16,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    directory: TempDir,
}

impl Redis {
    /// Starts one on a free port and waits until it answers.
    ///
    /// # Errors
    /// When there is no redis-server, or it does not come up.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// Starts one with further arguments, such as `["--maxmemory-policy", "allkeys-lru"]`.
    ///
    /// # Errors
    /// When there is no redis-server, or it does not come up.
    pub fn start_with(arguments: &[&str]) -> Result<Self> {
        retried(|| Self::start_on(ports::free()?, arguments))
    }

    /// Starts one on this port.
    ///
    /// # Errors
    /// When there is no redis-server, or it does not come up.
    pub fn start_on(port: u16, arguments: &[&str]) -> Result<Self> {
        Self::start_in(port, arguments, &[])
    }

    /// Starts one on a free port with these variables in its environment.
    ///
    /// # Errors
    /// When there is no redis-server, or it does not come up.
    pub fn start_env(environment: &[(String, String)]) -> Result<Self> {
        retried(|| Self::start_in(ports::free()?, &[], environment))
    }

    fn start_in(port: u16, arguments: &[&str], environment: &[(String, String)]) -> Result<Self> {
        let arguments: Vec<String> = arguments.iter().map(|&a| a.to_owned()).collect();
        let directory = tempfile::tempdir()?;
        let process = launch(port, &arguments, environment, directory.path())?;
        Ok(Self { process, port, arguments, environment: environment.to_vec(), directory })
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT/0`
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Sends one command, as `redis-cli` would.
    ///
    /// # Errors
    /// When it does not answer or answers with an error.
    pub fn cli(&self, command: &[&str]) -> Result<Reply> {
        resp::command(self.port, command)
    }

    /// Ends it. Its data are lost.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn stop(&mut self) -> Result<()> {
        self.process.terminate(STOP).map(drop)
    }

    /// SIGKILL. Its data are lost.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Stops it if it runs, and starts it again, empty, on the same port.
    ///
    /// # Errors
    /// When it does not end or does not come up.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.process =
            launch(self.port, &self.arguments, &self.environment, self.directory.path())?;
        Ok(())
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
}

fn launch(
    port: u16,
    arguments: &[String],
    environment: &[(String, String)],
    directory: &Path,
) -> Result<Process> {
    let mut process = spawn(port, arguments, environment, directory)?;
    process.wait_until("an answer to PING", START, |_| answers(port))?;
    Ok(process)
}

/// Starts the server and does not wait.
pub(crate) fn spawn(
    port: u16,
    arguments: &[String],
    environment: &[(String, String)],
    directory: &Path,
) -> Result<Process> {
    let mut command = Command::new(tools::redis_server()?);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]).arg("--dir").arg(directory);
    command
        .args(["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"])
        .args(arguments);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    Process::spawn(&format!("Redis on port {port}"), &mut command, &directory.join("redis.log"))
}

/// Whether the server answers PING.
pub(crate) fn answers(port: u16) -> Result<Option<()>> {
    Ok((resp::command(port, &["PING"])? == Reply::Text("PONG".to_owned())).then_some(()))
}

/// Retries if another process took the port first.
pub(crate) fn retried<T>(mut start: impl FnMut() -> Result<T>) -> Result<T> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        match start() {
            Err(error) if format!("{error:#}").contains("Address already in use") => {
                last = Some(error)
            }
            result => return result,
        }
    }
    Err(last.context("no attempt was made")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_restarts_empty_on_its_port() {
        let mut redis = Redis::start().unwrap();
        redis.cli(&["SET", "k", "v"]).unwrap();
        assert_eq!(redis.cli(&["GET", "k"]).unwrap(), Reply::Text("v".into()));
        let port = redis.port();
        redis.restart().unwrap();
        assert_eq!(redis.port(), port);
        assert_eq!(redis.cli(&["GET", "k"]).unwrap(), Reply::Nil);
        redis.stop().unwrap();
        assert!(redis.cli(&["PING"]).is_err());
        redis.restart().unwrap();
        assert!(redis.cli(&["PING"]).is_ok());
    }

    #[test]
    fn drop_ends_the_process() {
        let redis = Redis::start_with(&["--maxmemory-policy", "allkeys-lru"]).unwrap();
        let policy = redis.cli(&["CONFIG", "GET", "maxmemory-policy"]).unwrap();
        assert!(policy.lines().contains("allkeys-lru"));
        let port = redis.port();
        drop(redis);
        assert!(resp::command(port, &["PING"]).is_err());
    }
}
