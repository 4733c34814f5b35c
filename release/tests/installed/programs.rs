//! The programs that the tests run.

use std::{
    io::{self, Write},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use quotagate_support::tools;

/// A program of the system.
///
/// # Errors
/// When it is missing; the message names the package.
pub fn needed(program: &str, package: &str) -> Result<Command> {
    let path = tools::on_path(program).with_context(|| {
        format!(
            "{program} is not on PATH: run `cargo xtask setup --release --yes`, or install {package}"
        )
    })?;
    Ok(Command::new(path))
}

/// Runs a program, and returns what it printed.
///
/// # Errors
/// When it fails; the message has all of its output.
pub fn run(command: &mut Command) -> Result<String> {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let line = words.join(" ");
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run `{line}`"))?;
    let (out, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        bail!("`{line}` failed ({}):\n{out}{errors}", output.status);
    }
    Ok(format!("{out}{errors}"))
}

/// Shows what was tried and what it printed, also if the test passes: the harness hides only what
/// `println` writes.
pub fn show(what: &str, printed: &str) -> Result<()> {
    let mut text = format!("installed: {what}\n");
    for line in printed.lines() {
        text.push_str("    ");
        text.push_str(line);
        text.push('\n');
    }
    Ok(io::stderr().write_all(text.as_bytes())?)
}
