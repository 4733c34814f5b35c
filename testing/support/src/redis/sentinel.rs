//! One Redis Sentinel.

use std::{fs, process::Command};

use anyhow::Result;
use tempfile::TempDir;

use super::Redis;
use crate::{ports, process::Process, tools};

/// A running Sentinel that watches one primary as `mymaster`. It decides alone, and fails over
/// about half a second after the primary has gone. It is ended when dropped.
#[derive(Debug)]
pub struct Sentinel {
    _process: Process,
    port: u16,
    _directory: TempDir,
}

impl Sentinel {
    /// Starts one on a free port, and does not wait until it answers.
    ///
    /// # Errors
    /// When there is no redis-server.
    pub fn start(primary: &Redis) -> Result<Self> {
        Self::start_with(primary, "")
    }

    /// Starts one with more lines in its configuration.
    ///
    /// # Errors
    /// When there is no redis-server.
    pub fn start_with(primary: &Redis, lines: &str) -> Result<Self> {
        let (port, directory) = (ports::free()?, tempfile::tempdir()?);
        let file = directory.path().join("sentinel.conf");
        let watched = format!("sentinel monitor mymaster 127.0.0.1 {} 1", primary.port());
        let quick = "sentinel down-after-milliseconds mymaster 300\n\
                     sentinel failover-timeout mymaster 2000";
        fs::write(&file, format!("port {port}\nbind 127.0.0.1\n{watched}\n{quick}\n{lines}\n"))?;
        let mut command = Command::new(tools::redis_server()?);
        command.arg(&file).arg("--sentinel").arg("--dir").arg(directory.path());
        let log = directory.path().join("sentinel.log");
        let process = Process::spawn("Sentinel", &mut command, &log)?;
        Ok(Self { _process: process, port, _directory: directory })
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis-sentinel://127.0.0.1:PORT/mymaster`
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis-sentinel://127.0.0.1:{}/mymaster", self.port)
    }
}
