//! `cargo xtask setup`: finds what the tasks need, fetches what is missing, and says which of both it does.

mod apt;
mod chromium;
mod envoy;
mod promtool;
mod redis;
mod wasm;
mod wrk;

use std::path::PathBuf;

use anyhow::Result;

use crate::run;

/// What to do where there is no redis-server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redis {
    /// Install it; the tests cannot do without.
    Fetch,
    /// Do without.
    Optional,
}

/// What was found or fetched.
#[derive(Debug)]
pub struct Found {
    /// `redis-server` or `valkey-server`.
    pub redis: Option<PathBuf>,
}

/// Sees that everything is there.
pub fn run(redis: Redis) -> Result<Found> {
    run::step("setup: the Wasm target, Envoy, Redis");
    wasm::run()?;
    envoy::run()?;
    Ok(Found { redis: redis::run(redis)? })
}

pub use chromium::run as chromium;
pub use promtool::run as promtool;
pub use wasm::TARGET as WASM_TARGET;
pub use wrk::run as wrk;
