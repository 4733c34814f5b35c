//! One composition on the engine.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Result, bail};
use quotagate_support::ports;
use quotagate_workspace::{paths, task};

use crate::{engine::Engine, images::Images, program};

/// How long one command may take: waiting for health is the longest.
const LIMIT: Duration = Duration::from_secs(240);

/// Which composition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// `docker-compose.yml`
    Wasm,
    /// `docker-compose.native.yml`
    Native,
    /// `docker-compose.ratelimit.yml`
    RateLimit,
}

impl Variant {
    /// Its file.
    #[must_use]
    pub fn file(self) -> &'static str {
        match self {
            Self::Wasm => "docker-compose.yml",
            Self::Native => "docker-compose.native.yml",
            Self::RateLimit => "docker-compose.ratelimit.yml",
        }
    }
}

/// A composition with names and ports of its own. It is removed when the value is dropped.
pub struct Project<'e> {
    engine: &'e Engine,
    /// Which one.
    pub variant: Variant,
    /// The port of Envoy.
    pub port: u16,
    /// The port of the first store's admin address.
    pub admin_port: u16,
    name: String,
    environment: [(&'static str, String); 5],
    is_removed: bool,
}

impl<'e> Project<'e> {
    /// Starts nothing yet.
    ///
    /// # Errors
    /// When no port is free.
    pub fn new(
        engine: &'e Engine,
        variant: Variant,
        images: &Images<'_>,
        port: Option<u16>,
    ) -> Result<Self> {
        let (port, admin_port) = (port.map_or_else(ports::free, Ok)?, ports::free()?);
        let form = match variant {
            Variant::Wasm => "wasm",
            Variant::Native => "native",
            Variant::RateLimit => "ratelimit",
        };
        let environment = [
            ("QUOTAGATE_PORT", port.to_string()),
            ("QUOTAGATE_ADMIN_PORT", admin_port.to_string()),
            ("QUOTAGATE_STORE_IMAGE", images.store.clone()),
            ("QUOTAGATE_ENVOY_IMAGE", images.envoy.clone()),
            ("QUOTAGATE_RATELIMIT_IMAGE", images.rate_limits.clone()),
        ];
        let name = format!("quotagate-compose-{form}-{}", std::process::id());
        Ok(Self { engine, variant, port, admin_port, name, environment, is_removed: false })
    }

    /// What `docker compose ARGUMENTS` prints.
    ///
    /// # Errors
    /// When it fails.
    pub fn compose(&self, arguments: &[&str]) -> Result<String> {
        program::run(self.command().args(arguments), LIMIT)
    }

    fn command(&self) -> Command {
        let mut command = self.engine.compose();
        command.arg("--project-name").arg(&self.name).arg("--ansi").arg("never");
        command.arg("--project-directory").arg(paths::root());
        command.arg("--file").arg(Path::new(&paths::root()).join(self.variant.file()));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Shows what runs, and the last lines of each service.
    pub fn explain(&self) {
        for arguments in [&["ps", "--all"][..], &["logs", "--no-color", "--tail", "8"]] {
            // The first error counts.
            let said = program::clean_up(self.command().args(arguments), LIMIT);
            eprintln!("{}", said.unwrap_or_else(|error| format!("{error:#}")));
        }
    }

    /// Removes containers, networks and volumes.
    ///
    /// # Errors
    /// When one of them is still there.
    pub fn remove(&mut self) -> Result<()> {
        self.is_removed = true;
        task::note("containers, networks and volumes go");
        let down = ["down", "--volumes", "--remove-orphans", "--timeout", "1"];
        program::clean_up(self.command().args(down), LIMIT)?;
        let label = format!("label=com.docker.compose.project={}", self.name);
        for kind in ["container", "network", "volume"] {
            let mut list = vec![kind, "ls", "--quiet", "--filter", &label];
            list.extend((kind == "container").then_some("--all"));
            let left = self.engine.clean_up(&list)?;
            if !left.trim().is_empty() {
                bail!("{} leaves a {kind}: {}", self.variant.file(), left.trim());
            }
        }
        Ok(())
    }
}

impl Drop for Project<'_> {
    fn drop(&mut self) {
        if !self.is_removed {
            // `drop` cannot report a failure.
            let _ = self.remove();
        }
    }
}
