//! A run is a process of its own, with a process group of its own. This one waits for it, and then
//! ends whatever it has left, also after Ctrl-C and SIGTERM. Runs in other PID namespaces must not
//! share `/run/netns`: here they look as if they had ended.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quotagate_support::wait;
use quotagate_workspace::task;
use rustix::process::{
    Pid, Signal, getppid, kill_current_process_group, kill_process, kill_process_group,
    set_parent_process_death_signal,
};

/// The network namespaces that `ip netns` knows.
const NAMESPACES: &str = "/run/netns";
/// What names of the namespaces of all runs begin with.
const PREFIX: &str = "mesh";
/// The name of this program, as the system shows it.
const PROGRAM: &str = env!("CARGO_PKG_NAME");
/// How often a run is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long its files may take to go.
const REMOVAL: Duration = Duration::from_secs(20);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The name of a network namespace of the run with this process id.
pub fn namespace(run: u32, name: &str) -> String {
    format!("{PREFIX}{run}{name}")
}

/// Removes what earlier runs that were killed have left, and does a run, which `command` starts.
///
/// # Errors
/// When it cannot be started, or Ctrl-C or SIGTERM ended it.
pub fn supervise(command: &mut Command) -> Result<ExitCode> {
    remove_namespaces(|run| !is_running(run))?;
    ctrlc::set_handler(|| INTERRUPTED.store(true, SeqCst)).context("cannot listen for Ctrl-C")?;
    // Containers run as other users, who must be able to enter the folder.
    let folder = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
    fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
    let status = finish(command.env("TMPDIR", folder.path()), &INTERRUPTED);
    // What was killed may write files until it is gone.
    wait::until_true("the removal of its files", REMOVAL, || {
        Ok(fs::remove_dir_all(&folder).is_ok() || !folder.path().exists())
    })?;
    let status = status?;
    if status.code().is_none() {
        bail!("the run ended by a signal: {status}");
    }
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, Into::into))
}

/// In the process of a run: from now on, it ends with the process of this id, which has started it,
/// and with it all that it starts.
///
/// # Errors
/// When that process has ended already, or the system refuses.
pub fn end_with(supervisor: u32) -> Result<()> {
    ctrlc::set_handler(|| {
        // It ends this process, too.
        let _ = kill_current_process_group(Signal::KILL);
    })
    .context("cannot listen for SIGTERM")?;
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have ended before the line above.
    if getppid() != Pid::from_raw(i32::try_from(supervisor)?) {
        bail!("the process {supervisor}, which has started this run, has ended");
    }
    Ok(())
}

fn finish(command: &mut Command, interrupted: &AtomicBool) -> Result<ExitStatus> {
    let mut run = command.process_group(0).spawn().context("cannot start the run")?;
    let ended = end_of(&mut run, interrupted);
    let group = Pid::from_raw(i32::try_from(run.id())?).context("process id 0")?;
    // All of them may have ended by themselves.
    let _ = kill_process_group(group, Signal::KILL);
    run.wait()?;
    remove_namespaces(|id| id == run.id())?;
    ended
}

fn end_of(run: &mut Child, interrupted: &AtomicBool) -> Result<ExitStatus> {
    loop {
        if let Some(status) = run.try_wait()? {
            return Ok(status);
        }
        if interrupted.load(SeqCst) {
            bail!("interrupted");
        }
        sleep(LOOK);
    }
}

/// Removes the namespaces of the runs that `is_over` selects by their process ids, with the
/// processes in them.
fn remove_namespaces(is_over: impl Fn(u32) -> bool) -> Result<()> {
    if !Path::new(NAMESPACES).is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(NAMESPACES)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|name| run_of(name).is_some_and(&is_over)) else {
            continue;
        };
        if let Err(error) = remove_namespace(name) {
            // Another command may have removed it at the same time, or root may have made it.
            task::note(&format!("the namespace {name} stays: {error:#}"));
        }
    }
    Ok(())
}

fn remove_namespace(name: &str) -> Result<()> {
    let processes = task::printed(Command::new("ip").args(["netns", "pids", name]))?;
    for id in processes.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        // It may have ended meanwhile.
        let _ = kill_process(id, Signal::KILL);
    }
    task::printed(Command::new("ip").args(["netns", "del", name]))?;
    Ok(())
}

/// The process id of the run that a namespace of this name belongs to.
fn run_of(namespace: &str) -> Option<u32> {
    let rest = namespace.strip_prefix(PREFIX)?;
    let (run, name) = rest.split_at(rest.find(|letter: char| !letter.is_ascii_digit())?);
    (name == "hub" || name.strip_prefix("pod")?.parse::<u8>().is_ok()).then(|| run.parse().ok())?
}

fn is_running(run: u32) -> bool {
    has_name(run, PROGRAM)
}

/// Whether a process runs a program of this name. Linux keeps 15 letters of it.
fn has_name(process: u32, program: &str) -> bool {
    let kept = program.get(..15).unwrap_or(program);
    fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name.trim_end() == kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_of_other_programs_are_left_alone() {
        assert_eq!(run_of(&namespace(12, "hub")), Some(12));
        assert_eq!(run_of(&namespace(12, "pod254")), Some(12));
        for other in ["mesh", "meshhub", "mesh12", "mesh12pod", "mesh12pods", "mesh-12hub", "a1hub"]
        {
            assert_eq!(run_of(other), None, "{other}");
        }
    }

    #[test]
    fn run_is_known_by_the_name_of_its_program() {
        let mut other = Command::new("sleep").arg("600").spawn().unwrap();
        assert_eq!(
            [has_name(other.id(), "sleep"), is_running(other.id())],
            [true, false],
            "the program is {PROGRAM}"
        );
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn interrupted_run_ends_with_all_that_it_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("id");
        let script = r#"sleep 600 & echo $! > "$1.part"; mv "$1.part" "$1"; wait"#;
        let (interrupted, started) = (AtomicBool::new(false), Duration::from_secs(30));
        std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                let mut command = Command::new("sh");
                finish(command.args(["-c", script, "sh"]).arg(&file), &interrupted)
            });
            wait::until_true("its start", started, || Ok(file.exists())).unwrap();
            interrupted.store(true, SeqCst);
            let error = run.join().unwrap().unwrap_err();
            assert_eq!(error.to_string(), "interrupted");
        });
        let id = fs::read_to_string(&file).unwrap();
        let state = format!("/proc/{}/stat", id.trim());
        // A process that nobody waits for stays as a zombie.
        let ended = || Ok(fs::read_to_string(&state).map_or(true, |text| text.contains(") Z ")));
        wait::until_true("the end of its child", started, ended).unwrap();
    }

    #[test]
    fn run_that_ends_by_itself_has_its_status() {
        let end = |script: &str| {
            finish(Command::new("sh").args(["-c", script]), &AtomicBool::new(false)).unwrap()
        };
        assert!(end("exit 0").success());
        assert_eq!(end("exit 3").code(), Some(3));
    }
}
