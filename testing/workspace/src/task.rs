//! Runs other programs on behalf of a task, and shows the user what happens.

use std::{
    env,
    ffi::OsString,
    process::{Command, ExitCode, Stdio},
};

use crate::paths;
use anyhow::{Context, Result, bail};

/// Announces the next step of a task.
pub fn step(text: &str) {
    eprintln!("==> {text}");
}

/// Prints a line that belongs to the current step.
pub fn note(text: &str) {
    eprintln!("    {text}");
}

/// The exit code of a task, after its error, if there is one, was printed.
pub fn ended(result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// The Cargo that runs this task, at the root of the workspace.
#[must_use]
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(paths::root());
    command
}

/// Runs a program whose output the user sees.
///
/// # Errors
/// When it cannot be started, or fails.
pub fn visibly(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", shown(command));
    }
    Ok(())
}

/// Runs a program in the place of this process, which ends here.
///
/// # Errors
/// When the program cannot be started.
pub fn replace_by(command: &mut Command) -> Result<()> {
    use std::os::unix::process::CommandExt;
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", shown(command)))
}

/// Runs a program whose standard output the user sees. The inner result carries what the program
/// printed on standard error when it failed.
///
/// # Errors
/// When it cannot be started.
pub fn judged(command: &mut Command) -> Result<Result<(), String>> {
    let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
    let output = child.and_then(std::process::Child::wait_with_output);
    let output = output.with_context(|| format!("cannot run {}", shown(command)))?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(if output.status.success() { Ok(()) } else { Err(errors) })
}

/// Whether a program runs and succeeds; its output is discarded.
pub fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// What a program prints on standard output.
///
/// # Errors
/// When it cannot be started, or fails.
pub fn printed(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot run {}", shown(command)))?;
    if !output.status.success() {
        bail!("`{}` failed ({})", shown(command), output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
