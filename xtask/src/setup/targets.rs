//! Rust's standard library for other targets.

use std::{path::Path, process::Command};

use anyhow::{Result, bail};
use quotagate_workspace::{task, tools};

/// What the Wasm filter is compiled for.
pub const WASM_TARGET: &str = "wasm32-wasip1";

/// Finds or adds a target.
///
/// # Errors
/// When it is missing and rustup cannot add it.
pub fn rust_target(target: &str) -> Result<()> {
    let sysroot = task::printed(Command::new("rustc").args(["--print", "sysroot"]))?;
    if Path::new(sysroot.trim()).join("lib/rustlib").join(target).join("lib").is_dir() {
        task::note(&format!("Rust target {target}: there"));
        return Ok(());
    }
    if tools::on_path("rustup").is_none() {
        bail!(
            "Rust has no target {target} and there is no rustup to add it: install it the way you installed Rust, \
             or use rustup (https://rustup.rs)"
        );
    }
    task::note(&format!("Rust target {target}: missing, rustup adds it"));
    if let Err(errors) = task::judged(Command::new("rustup").args(["target", "add", target]))? {
        bail!(
            "rustup cannot add the target {target}; is there a network? It says: {}",
            errors.trim()
        );
    }
    Ok(())
}
