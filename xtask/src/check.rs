//! `cargo xtask test` and `cargo xtask ci`.

use std::process::Command;

use anyhow::{Result, bail};
use quotagate_support::{ports, tools};

use crate::{
    build, demo, deny, run,
    setup::{self, WASM_TARGET},
};

const DEMO_PORT: u16 = 10_000;

/// Sets up, builds, and runs every test.
pub fn test() -> Result<()> {
    setup::run(setup::Redis::Fetch)?;
    setup::chromium()?;
    setup::promtool()?;
    build::panicking_filter()?;
    build::run()?;
    run::step("test: everything");
    run::visibly(run::cargo().args(["test", "--workspace", "--locked"]))
}

/// What a change must pass.
pub fn ci() -> Result<()> {
    components()?;
    run::step("format");
    run::visibly(run::cargo().args(["fmt", "--all", "--check"]))?;
    setup::run(setup::Redis::Fetch)?;
    run::step("lints: everything, on this machine");
    let lints = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    run::visibly(run::cargo().args(lints))?;
    run::step("lints: the filter, as Wasm");
    let lints = ["clippy", "--package", "quotagate", "--lib", "--locked", "--target", WASM_TARGET];
    run::visibly(run::cargo().args(lints).args(["--all-features", "--", "-D", "warnings"]))?;
    run::step("documentation");
    let doc = ["doc", "--workspace", "--no-deps", "--locked"];
    run::visibly(run::cargo().args(doc).env("RUSTDOCFLAGS", "-D warnings"))?;
    deny::run()?;
    test()?;
    let port = if ports::is_free(DEMO_PORT) { DEMO_PORT } else { ports::free()? };
    demo::run(port, true)
}

/// A minimal Rust has neither formatter nor lints.
fn components() -> Result<()> {
    let missing = |tool: &str| !run::succeeds(run::cargo().args([tool, "--version"]));
    if !missing("fmt") && !missing("clippy") {
        return Ok(());
    }
    if tools::on_path("rustup").is_none() {
        bail!(
            "rustfmt and clippy are needed and there is no rustup to add them: install them as you did Rust"
        );
    }
    run::step("rustup adds rustfmt and clippy");
    run::visibly(Command::new("rustup").args(["component", "add", "rustfmt", "clippy"]))
}
