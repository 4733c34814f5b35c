//! A child process: its output in a file, ended by its process id when the value is dropped.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use crate::wait;

/// How many of its last lines an error message shows.
const TAIL: usize = 30;

/// Lets this process and its children open as many files as the system allows: thousands of
/// connections need more than most shells allow.
///
/// # Errors
/// When the system refuses.
pub fn raise_file_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    setrlimit(Resource::Nofile, raised).context("cannot raise the limit of open files")
}

/// A running (or ended) child process.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its standard output and errors in the file `log` (appended).
    ///
    /// # Errors
    /// When the log cannot be opened or the program cannot be started.
    pub fn spawn(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let out = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("{name}: cannot open its log {}", log.display()))?;
        let errors = out.try_clone()?;
        let child =
            command.stdin(Stdio::null()).stdout(out).stderr(errors).spawn().with_context(|| {
                format!("cannot start {name} ({})", command.get_program().display())
            })?;
        Ok(Self { name: name.to_owned(), child, log: log.to_path_buf() })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All output so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// When the system cannot say.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits until `condition` yields a value; fails at once when the process ends.
    ///
    /// # Errors
    /// When `limit` has passed or the process has ended; the message ends with the last lines of
    /// its log.
    pub fn wait_until<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut(&Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let found = wait::until(what, limit, || {
            if let Some(value) = condition(self).ok().flatten() {
                return Ok(Some(Some(value)));
            }
            Ok((!self.is_running()?).then_some(None))
        });
        match found {
            Ok(Some(value)) => Ok(value),
            Ok(None) => {
                bail!("{} has ended, before {what}; its last words:\n{}", self.name, self.tail())
            }
            Err(error) => {
                Err(error.context(format!("{}; its last words:\n{}", self.name, self.tail())))
            }
        }
    }

    /// Sends a signal, such as [`Signal::STOP`] or [`Signal::CONT`].
    ///
    /// # Errors
    /// When the process has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        // The system may reuse the id of a process that was waited for, so never signal it again.
        if !self.is_running()? {
            bail!("{} has ended already", self.name);
        }
        let pid = Pid::from_raw(i32::try_from(self.child.id())?).context("process id 0")?;
        kill_process(pid, signal).with_context(|| format!("cannot signal {}", self.name))
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// When it has not ended after `limit`; it is killed then.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        self.signal(Signal::TERM)?;
        let ended = wait::until("its end after SIGTERM", limit, || Ok(self.child.try_wait()?));
        if ended.is_err() {
            self.kill()?;
        }
        ended.with_context(|| format!("{}; its last words:\n{}", self.name, self.tail()))
    }

    /// SIGKILL, and waits for the end. Does nothing if the process has ended.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn kill(&mut self) -> Result<()> {
        if self.is_running()? {
            self.child.kill()?;
            self.child.wait()?;
        }
        Ok(())
    }

    /// The last lines of the log.
    #[must_use]
    pub fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let from = lines.len().saturating_sub(TAIL);
        lines.get(from..).unwrap_or_default().join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // `drop` cannot report a failure.
        let _ = self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn shell(script: &str, log: &Path) -> Process {
        Process::spawn("shell", Command::new("sh").args(["-c", script]), log).unwrap()
    }

    #[test]
    fn early_exit_is_reported_with_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = shell("echo no such option >&2; exit 3", &dir.path().join("log"));
        let error = process.wait_until("an answer", LIMIT, |_| Ok(None::<()>)).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("has ended") && text.contains("no such option"), "{text}");
    }

    #[test]
    fn sigterm_ends_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = shell("echo up; exec sleep 60", &dir.path().join("log"));
        process
            .wait_until("its line", LIMIT, |p| Ok(p.log().contains("up").then_some(())))
            .unwrap();
        process.terminate(LIMIT).unwrap();
        assert!(!process.is_running().unwrap());
        assert!(process.signal(Signal::CONT).is_err());
    }
}
