//! `cargo xtask sanitize`: the native module's tests against an Envoy in memory, under
//! AddressSanitizer (with its search for leaks) and ThreadSanitizer.
//!
//! Sanitizers need a nightly Rust, and ThreadSanitizer a standard library that is compiled with it.

use std::{env::consts, process::Command};

use anyhow::{Result, ensure};
use quotagate_workspace::{paths, task};

/// Each sanitizer, as the compiler names it, and further arguments for Cargo.
const SANITIZERS: [(&str, &[&str]); 2] = [("address", &[]), ("thread", &["-Zbuild-std"])];

/// Runs the tests once under each sanitizer.
pub fn run() -> Result<()> {
    let source = ["component", "list", "--toolchain", "nightly", "--installed"];
    let installed = Command::new("rustup").args(source).output();
    let has_source = installed.is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout).lines().any(|line| line.starts_with("rust-src"))
    });
    ensure!(
        has_source,
        "sanitizers need a nightly Rust with its source: run `rustup toolchain install nightly \
         --component rust-src`"
    );
    SANITIZERS.iter().try_for_each(|(name, further)| {
        task::step(&format!("sanitize: {name}"));
        task::visibly(&mut cargo_test(name, further))
    })
}

/// Through rustup, because the Rust that runs this task is no nightly.
fn cargo_test(sanitizer: &str, further: &[&str]) -> Command {
    let target = format!("{}-unknown-linux-gnu", consts::ARCH);
    let folder = paths::root().join("target").join("sanitize").join(sanitizer);
    let mut command = Command::new("rustup");
    command
        .current_dir(paths::root())
        .env("RUSTFLAGS", format!("-Zsanitizer={sanitizer} --cfg quotagate_sanitize"))
        .args(["run", "nightly", "cargo", "test", "--locked", "--package", "quotagate-native"])
        .args(["--test", "fake_envoy", "--target", &target])
        .args(further)
        .arg("--target-dir")
        .arg(folder);
    command
}
