//! What processes hold: resident memory and open descriptors, from `/proc`.

use std::fmt;
use std::fs;

use anyhow::{Context, Result};

/// The sum over several processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Resident memory of the Envoys.
    pub envoys_kib: u64,
    /// Resident memory of the stores.
    pub stores_kib: u64,
    /// Open descriptors of all of them.
    pub descriptors: u64,
}

impl Footprint {
    /// The footprint of these processes now. A process that has ended holds nothing.
    #[must_use]
    pub fn of(envoys: &[u32], stores: &[u32]) -> Self {
        let memory = |pids: &[u32]| pids.iter().filter_map(|&pid| resident(pid).ok()).sum();
        Self {
            envoys_kib: memory(envoys),
            stores_kib: memory(stores),
            descriptors: envoys.iter().chain(stores).map(|&pid| descriptors(pid)).sum(),
        }
    }

    /// Resident memory of all of them.
    #[must_use]
    pub fn kib(&self) -> u64 {
        self.envoys_kib + self.stores_kib
    }
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |kib: u64| kib as f64 / 1024.0;
        write!(
            f,
            "{:.0} + {:.1} MiB, {} descriptors",
            mib(self.envoys_kib),
            mib(self.stores_kib),
            self.descriptors
        )
    }
}

/// The resident memory of a process, in KiB.
///
/// # Errors
/// When it has ended.
pub fn resident(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}

/// The open descriptors of a process; none where it has ended.
#[must_use]
pub fn descriptors(pid: u32) -> u64 {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |files| files.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_and_missing_process_is_none() {
        let own = Footprint::of(&[std::process::id()], &[]);
        assert!(own.envoys_kib > 1000 && own.descriptors >= 3, "{own}");
        assert_eq!(Footprint::of(&[], &[u32::MAX]), Footprint::default());
    }
}
