//! How the filter reads its configuration.

#![cfg(test)]

mod faults;
mod reading;
mod refusals;
mod routes;

use std::path::{Path, PathBuf};

use quotagate_quota::config::{Config, Faults};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn parse(name: &str) -> Result<Config, Faults> {
    Config::parse(&std::fs::read(fixtures().join(format!("{name}.json"))).unwrap_or_default())
}
