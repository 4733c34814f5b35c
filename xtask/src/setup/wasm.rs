//! The standard library for the filter's target.

use std::{path::Path, process::Command};

use anyhow::{Result, bail};
use quotagate_workspace::{task, tools};

/// What the filter is compiled for.
pub const TARGET: &str = "wasm32-wasip1";

pub fn run() -> Result<()> {
    let sysroot = task::printed(Command::new("rustc").args(["--print", "sysroot"]))?;
    if Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).join("lib").is_dir() {
        task::note(&format!("Rust target {TARGET}: there"));
        return Ok(());
    }
    if tools::on_path("rustup").is_none() {
        bail!(
            "Rust has no target {TARGET} and there is no rustup to add it: install it the way you installed Rust, \
             or use rustup (https://rustup.rs)"
        );
    }
    task::note(&format!("Rust target {TARGET}: missing, rustup adds it"));
    if let Err(errors) = task::judged(Command::new("rustup").args(["target", "add", TARGET]))? {
        bail!(
            "rustup cannot add the target {TARGET}; is there a network? It says: {}",
            errors.trim()
        );
    }
    Ok(())
}
