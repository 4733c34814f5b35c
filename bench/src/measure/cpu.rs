//! Processor time and memory of processes and of the machine, read from `/proc` (Linux). Times
//! are in clock ticks, usually 10 ms each: a measurement has to last for many of them.

use std::{fs, process};

use anyhow::{Context, Result};
use rustix::param::clock_ticks_per_second;

/// Microseconds of these ticks.
pub fn micros(ticks: u64) -> f64 {
    ticks as f64 * 1e6 / clock_ticks_per_second() as f64
}

/// The ticks that a process has used so far, in user mode and in the kernel.
pub fn used(pid: u32) -> Result<u64> {
    let stat = read(&format!("/proc/{pid}/stat"))?;
    ticks(&stat, &[UTIME, STIME]).with_context(|| format!("process {pid}: cannot parse its stat"))
}

/// The ticks that this task and the children that it has waited for have used so far.
pub fn own() -> Result<u64> {
    let stat = read(&format!("/proc/{}/stat", process::id()))?;
    ticks(&stat, &[UTIME, STIME, CUTIME, CSTIME]).context("cannot parse our own stat")
}

/// The process of a Redis server, in the lines of its `INFO server`.
pub fn of_redis(info: &str) -> Option<u32> {
    info.lines().find_map(|line| line.strip_prefix("process_id:"))?.trim().parse().ok()
}

/// Resident memory of a process in KiB.
pub fn resident(pid: u32) -> Result<u64> {
    let status = read(&format!("/proc/{pid}/status"))?;
    kib(&status).with_context(|| format!("process {pid}: no VmRSS"))
}

/// What all processors did so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Ticks spent in processes, and stolen by the host of this machine.
    pub busy: u64,
    /// Ticks that passed, on all processors.
    pub total: u64,
}

impl Machine {
    /// The ticks since an earlier time.
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(earlier.busy),
            total: self.total.saturating_sub(earlier.total),
        }
    }

    /// The busy part of it, 0 to 1.
    pub fn share(self) -> f64 {
        self.busy as f64 / self.total.max(1) as f64
    }
}

/// What all processors did so far.
pub fn machine() -> Result<Machine> {
    parse_machine(&read("/proc/stat")?).context("cannot parse /proc/stat")
}

// Positions among the fields that follow the name in `/proc/PID/stat`; see proc_pid_stat(5).
const UTIME: usize = 11;
const STIME: usize = 12;
const CUTIME: usize = 13;
const CSTIME: usize = 14;

fn ticks(stat: &str, indexes: &[usize]) -> Option<u64> {
    // The name may hold spaces and parentheses.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    indexes.iter().map(|&index| fields.get(index)?.parse::<u64>().ok()).sum()
}

fn kib(status: &str) -> Option<u64> {
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?
        .trim()
        .strip_suffix(" kB")?
        .parse()
        .ok()
}

fn parse_machine(stat: &str) -> Option<Machine> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> =
        line.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = fields.as_slice() else {
        return None;
    };
    // The kernel usually charges an interrupt to the process that it hits, so both contain it.
    let busy = user + nice + system + irq + softirq + steal;
    Some(Machine { busy, total: busy + idle + iowait })
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_with_spaces_and_parentheses_is_skipped() {
        let stat = "42 (a) S (b c) S 1 2 3 4 5 6 7 8 9 10 70 30 5 2 20 0 1 0 99 0 0";
        assert_eq!(ticks(stat, &[UTIME, STIME]), Some(100));
        assert_eq!(ticks(stat, &[UTIME, STIME, CUTIME, CSTIME]), Some(107));
        assert_eq!(ticks("42 (a) S 1 2", &[UTIME]), None);
        assert_eq!(ticks("", &[UTIME]), None);
    }

    #[test]
    fn redis_process_id_is_parsed() {
        assert_eq!(of_redis("redis_version:7.0.15\r\nprocess_id:4711\r\n"), Some(4711));
        assert_eq!(of_redis(""), None);
    }

    #[test]
    fn memory_is_read_in_kib() {
        assert_eq!(kib("VmPeak:\t 9 kB\nVmRSS:\t   61234 kB\n"), Some(61_234));
        assert_eq!(kib("Name:\tx\n"), None);
    }

    #[test]
    fn stolen_time_counts_as_busy() {
        let stat = "cpu  10 1 20 100 5 2 3 4 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(parse_machine(stat), Some(Machine { busy: 40, total: 145 }));
        assert_eq!(parse_machine("cpu  1 2 3\n"), None);
    }

    #[test]
    fn proc_files_of_this_process_are_parsed() {
        let before = own().unwrap();
        assert!(used(process::id()).unwrap() <= own().unwrap() && before <= own().unwrap());
        assert!(resident(process::id()).unwrap() > 100);
        let machine = machine().unwrap();
        assert!(machine.busy < machine.total);
        assert!(micros(1) > 0.0);
    }
}
