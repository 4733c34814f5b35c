//! The load: wrk with a script that chooses the users, and the output of wrk.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use quotagate_support::{process::Process, wait};

use crate::stacks::USER_HEADER;

/// How much longer than requested wrk may take.
const SLACK: Duration = Duration::from_secs(20);

/// A load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Connections, each with one request under way.
    pub connections: u32,
    /// Users. Each request is that of a random one; with 1, all requests are the same user's.
    pub users: u32,
    /// How long.
    pub seconds: u32,
}

/// What wrk saw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    /// Requests answered in a second.
    pub rate: f64,
    /// Median time to an answer in milliseconds.
    pub p50_ms: f64,
    /// The response time of 99 of 100 answers at most, in milliseconds.
    pub p99_ms: f64,
    /// Answers.
    pub requests: u64,
    /// Answers of status 400 and above.
    pub refused: u64,
    /// Connections that failed, broke or waited too long.
    pub broken: u64,
}

/// Runs wrk.
#[derive(Debug)]
pub struct Wrk {
    program: PathBuf,
    directory: tempfile::TempDir,
}

impl Wrk {
    /// With this program.
    pub fn new(program: PathBuf) -> Result<Self> {
        Ok(Self { program, directory: tempfile::tempdir()? })
    }

    /// Sends this load to a port of 127.0.0.1 until its time is over or `interrupted` is set.
    pub fn send(&self, load: Load, port: u16, interrupted: &AtomicBool) -> Result<Seen> {
        let file = |name: &str| self.directory.path().join(name);
        fs::write(file("load.lua"), script(load.users))?;
        let log = file("wrk.log");
        fs::write(&log, "")?;
        let mut process =
            Process::spawn("wrk", &mut self.command(load, port, &file("load.lua")), &log)?;
        let limit = Duration::from_secs(load.seconds.into());
        sleep_unless(interrupted, limit)?;
        wait::until_true("wrk to end", SLACK, || Ok(!process.is_running()?))?;
        let status = process.terminate(SLACK)?;
        if !status.success() {
            bail!("wrk failed ({status}): {}", process.tail());
        }
        parse(&process.log())
            .with_context(|| format!("cannot read the output of wrk: {}", process.tail()))
    }

    fn command(&self, load: Load, port: u16, script: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--threads", "1", "--timeout", "2s"]);
        command.args(["--connections", &load.connections.to_string()]);
        command.args(["--duration", &format!("{}s", load.seconds)]);
        command.arg("--script").arg(script).arg(format!("http://127.0.0.1:{port}/api/items"));
        command
    }
}

/// The wait ends with the load, or with Ctrl-C.
fn sleep_unless(interrupted: &AtomicBool, limit: Duration) -> Result<()> {
    let step = Duration::from_millis(50);
    let mut left = limit;
    while !left.is_zero() {
        if interrupted.load(Ordering::SeqCst) {
            bail!("interrupted");
        }
        sleep(step.min(left));
        left = left.saturating_sub(step);
    }
    Ok(())
}

/// Requests are made before the load begins. With one user wrk sends the same bytes again and again
/// and never enters Lua; with more it calls `request` for each, in every stack alike.
fn script(users: u32) -> String {
    let choose = if users > 1 {
        format!(
            "local requests = {{}}\n\
             function init()\n  \
               math.randomseed(42)\n  \
               for i = 1, {users} do\n    \
                 wrk.headers['{USER_HEADER}'] = 'user-' .. i\n    \
                 requests[i] = wrk.format()\n  \
               end\n\
             end\n\
             function request() return requests[math.random({users})] end\n"
        )
    } else {
        format!("wrk.headers['{USER_HEADER}'] = 'user-1'\n")
    };
    choose + DONE
}

const DONE: &str = "function done(summary, latency)
  local e = summary.errors
  print(string.format('seen %d %d %d %d %d %d', summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), e.status, e.connect + e.read + e.write + e.timeout))
end
";

/// Reads the line that the script prints at the end; `None` if there is none, or no request was
/// answered.
fn parse(log: &str) -> Option<Seen> {
    let line = log.lines().find_map(|line| line.strip_prefix("seen "))?;
    let numbers: Vec<u64> =
        line.split(' ').map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let &[requests, micros, p50, p99, refused, broken] = numbers.as_slice() else { return None };
    let milliseconds = |micros: u64| micros as f64 / 1e3;
    (requests > 0 && micros > 0).then(|| Seen {
        rate: requests as f64 * 1e6 / micros as f64,
        p50_ms: milliseconds(p50),
        p99_ms: milliseconds(p99),
        requests,
        refused,
        broken,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_wrk_is_parsed() {
        let log = "Running 2s test @ http://127.0.0.1:1/\n  Thread Stats ...\nRequests/sec:  9\n\
                   seen 20000 2000000 1500 4250 7 1\n";
        let seen = Seen {
            rate: 10_000.0,
            p50_ms: 1.5,
            p99_ms: 4.25,
            requests: 20_000,
            refused: 7,
            broken: 1,
        };
        assert_eq!(parse(log), Some(seen));
        for bad in
            ["", "seen 1 2 3", "seen a b c d e f", "seen 0 2000000 0 0 0 9", "seen 1 2 3 4 5 6 7"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn one_user_never_enters_lua() {
        assert!(!script(1).contains("function request"));
        assert!(
            script(1000).contains("function request") && script(1000).contains("math.random(1000)")
        );
        for users in [1, 1000] {
            assert!(script(users).contains("function done") && script(users).contains("x-user"));
        }
    }

    #[test]
    fn ctrl_c_ends_the_wait() {
        assert!(sleep_unless(&AtomicBool::new(true), SLACK).is_err());
        assert!(sleep_unless(&AtomicBool::new(false), Duration::ZERO).is_ok());
    }
}
