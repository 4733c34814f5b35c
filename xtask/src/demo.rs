//! `cargo xtask demo`: builds the parts of the demo quickly, and runs them.

use std::process::Command;

use anyhow::Result;
use quotagate_workspace::{paths, task};

use crate::{
    build,
    setup::{self, Consent, Part},
};

/// Which demo runs, and how.
#[derive(Debug, Clone, Copy)]
pub struct Demo {
    /// The port that Envoy listens on.
    pub port: u16,
    /// The scripted burst, instead of running until Ctrl-C.
    pub once: bool,
    /// The native module, instead of the Wasm filter with its store.
    pub native: bool,
}

impl Demo {
    /// Sets up, builds and runs it. It runs in place of this process, so that Ctrl-C reaches only
    /// the program that cleans up.
    pub fn run(self, consent: Consent) -> Result<()> {
        if self.native {
            setup::run(&[Part::Envoy], consent)?;
            build::demo_native()?;
        } else {
            setup::run(&[Part::WasmTarget, Part::Envoy], consent)?;
            build::demo()?;
        }
        task::replace_by(&mut self.command())
    }

    /// Runs the one that was built last, and waits for its end.
    pub fn wait(self) -> Result<()> {
        task::visibly(&mut self.command())
    }

    fn command(self) -> Command {
        let parts = paths::demo();
        let mut demo = Command::new(parts.join(paths::DEMO));
        demo.current_dir(paths::root()).env(paths::PARTS, &parts);
        demo.args(["--port", &self.port.to_string()]);
        demo.args(self.once.then_some("--once")).args(self.native.then_some("--native"));
        demo
    }
}
