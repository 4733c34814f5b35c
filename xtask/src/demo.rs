//! `cargo xtask demo`: builds the parts of the demo quickly, and runs them.

use std::process::Command;

use anyhow::Result;
use quotagate_workspace::{paths, task};

use crate::{
    build,
    setup::{self, Consent, Part},
};

/// Sets up, builds and runs the demo on this port: the scripted burst, or until Ctrl-C.
pub fn run(port: u16, once: bool, consent: Consent) -> Result<()> {
    setup::run(&[Part::WasmTarget, Part::Envoy], consent)?;
    build::demo()?;
    start(port, once)
}

/// Runs the demo that was built last, in place of this process, so that Ctrl-C reaches only the
/// program that cleans up.
pub fn start(port: u16, once: bool) -> Result<()> {
    let parts = paths::demo();
    let mut demo = Command::new(parts.join(paths::DEMO));
    demo.current_dir(paths::root()).env(paths::PARTS, &parts).args(["--port", &port.to_string()]);
    task::replace_by(demo.args(once.then_some("--once")))
}
