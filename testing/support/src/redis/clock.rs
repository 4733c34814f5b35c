//! The clock of one Redis, which can jump: the library of the package `quotagate-clock` is loaded
//! into it.

use std::fs;
use std::path::PathBuf;

use super::Redis;
use anyhow::{Context, Result};
use tempfile::TempDir;

const LIBRARY: &str = "libquotagate_clock.so";

/// The file that says how far a clock is ahead.
#[derive(Debug)]
pub struct Clock {
    file: PathBuf,
    _directory: TempDir,
}

impl Clock {
    /// Starts a Redis with this clock, which is right at first.
    ///
    /// # Errors
    /// When the library was not built, or Redis does not come up.
    pub fn redis() -> Result<(Self, Redis)> {
        let directory = tempfile::tempdir()?;
        let clock = Self { file: directory.path().join("ahead"), _directory: directory };
        clock.set(0)?;
        let library = library()?;
        let text = |path: PathBuf| {
            path.into_os_string().into_string().ok().context("a path that is no text")
        };
        let environment = [
            ("LD_PRELOAD".to_owned(), text(library)?),
            ("QUOTAGATE_CLOCK".to_owned(), text(clock.file.clone())?),
        ];
        Ok((clock, Redis::start_env(&environment)?))
    }

    /// Sets the clock so many seconds ahead of the system's, or behind if negative.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(&self, ahead_s: i64) -> Result<()> {
        // Renames the file: a concurrent read must not see half a number.
        let beside = self.file.with_extension("new");
        fs::write(&beside, ahead_s.to_string())?;
        Ok(fs::rename(beside, &self.file)?)
    }
}

/// Cargo puts libraries among the dependencies, like tests, and programs one folder above.
fn library() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let directory = program.parent().context("a program is in a directory")?;
    let candidates = [directory.join(LIBRARY), directory.join("deps").join(LIBRARY)];
    let found = candidates.into_iter().find(|file| file.is_file());
    found.with_context(|| {
        format!("{LIBRARY} is not there: run `cargo build --package quotagate-support`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_of_redis_jumps() {
        let (clock, redis) = Clock::redis().unwrap();
        let now = || -> i64 {
            redis.cli(&["TIME"]).unwrap().lines().lines().next().unwrap().parse().unwrap()
        };
        let before = now();
        clock.set(1000).unwrap();
        assert!((1000..1030).contains(&(now() - before)));
        clock.set(-1000).unwrap();
        assert!((-1000..-970).contains(&(now() - before)));
    }
}
