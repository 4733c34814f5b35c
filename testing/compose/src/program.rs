//! Runs programs so that Ctrl-C ends what runs now, and never what cleans up.

use std::{
    fs::File,
    io::{Read, Seek},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// How often a running program is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How many of its last lines an error message shows.
const TAIL: usize = 20;

/// From now on, Ctrl-C and SIGTERM end running programs, and no others are started but those that
/// clean up.
///
/// # Errors
/// When the system refuses.
pub fn listen_for_ctrl_c() -> Result<()> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::SeqCst))
        .context("cannot listen for Ctrl-C")
}

/// An error after Ctrl-C.
///
/// # Errors
/// When there was one.
pub fn go_on() -> Result<()> {
    if INTERRUPTED.load(Ordering::SeqCst) {
        bail!("interrupted");
    }
    Ok(())
}

/// Waits until a condition holds. Unlike in `quotagate_support::wait`, an error of the condition
/// ends the wait at once.
///
/// # Errors
/// The first error of the condition; after Ctrl-C; when `limit` has passed.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let start = Instant::now();
    loop {
        go_on()?;
        if condition()? {
            return Ok(());
        }
        if start.elapsed() > limit {
            bail!("waited {} s: {what}", limit.as_secs());
        }
        sleep(LOOK);
    }
}

/// What a program prints on standard output.
///
/// # Errors
/// When it cannot be started, fails, takes longer than `limit`, or Ctrl-C ends it.
pub fn run(command: &mut Command, limit: Duration) -> Result<String> {
    finish(command, limit, true)
}

/// [`run`], which Ctrl-C does not end.
///
/// # Errors
/// When it cannot be started, fails, or takes longer than `limit`.
pub fn clean_up(command: &mut Command, limit: Duration) -> Result<String> {
    finish(command, limit, false)
}

fn finish(command: &mut Command, limit: Duration, interruptible: bool) -> Result<String> {
    if interruptible {
        go_on()?;
    }
    let shown = shown(command);
    let [mut out, mut errors] = [tempfile::tempfile()?, tempfile::tempfile()?];
    // A group of its own, because a terminal sends Ctrl-C to the whole group.
    command.process_group(0).stdin(Stdio::null());
    command.stdout(out.try_clone()?).stderr(errors.try_clone()?);
    let mut child = command.spawn().with_context(|| format!("cannot run `{shown}`"))?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let ended = if start.elapsed() > limit {
            Err(anyhow::anyhow!("took longer than {} s", limit.as_secs()))
        } else if interruptible {
            go_on()
        } else {
            Ok(())
        };
        if let Err(why) = ended {
            end(&mut child)?;
            return Err(
                why.context(format!("`{shown}` was ended; it said:\n{}", tail(&mut errors)?))
            );
        }
        sleep(LOOK);
    };
    if !status.success() {
        bail!("`{shown}` failed ({status}):\n{}", tail(&mut errors)?);
    }
    read(&mut out)
}

fn end(child: &mut Child) -> Result<()> {
    let group = Pid::from_raw(i32::try_from(child.id())?).context("process id 0")?;
    for signal in [Signal::TERM, Signal::KILL] {
        // It may have ended by itself.
        let _ = kill_process_group(group, signal);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            if child.try_wait()?.is_some() {
                return Ok(());
            }
            sleep(LOOK);
        }
    }
    Ok(())
}

fn read(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn tail(file: &mut File) -> Result<String> {
    let text = read(file)?;
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines.get(lines.len().saturating_sub(TAIL)..).unwrap_or_default().join("\n"))
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<String> {
        run(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn output_or_the_last_words_are_returned() {
        let limit = Duration::from_secs(20);
        assert_eq!(shell("echo out; echo err >&2", limit).unwrap(), "out\n");
        let error = shell("echo the reason >&2; exit 3", limit).unwrap_err().to_string();
        assert!(error.contains("the reason") && error.contains('3'), "{error}");
    }

    #[test]
    fn an_error_ends_a_wait_at_once() {
        let mut calls = 0;
        let error = wait_until("never", Duration::from_secs(20), || {
            calls += 1;
            Err(anyhow::anyhow!("the reason"))
        });
        assert_eq!((error.unwrap_err().to_string().as_str(), calls), ("the reason", 1));
        wait_until("at once", Duration::ZERO, || Ok(true)).unwrap();
        let error = wait_until("a replica takes over", Duration::ZERO, || Ok(false)).unwrap_err();
        assert!(error.to_string().contains("a replica takes over"), "{error}");
    }

    #[test]
    fn a_program_that_hangs_is_ended_with_its_children() {
        let start = Instant::now();
        let error =
            shell("echo stuck >&2; sleep 60 & wait", Duration::from_millis(100)).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("stuck") && error.contains("longer"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
