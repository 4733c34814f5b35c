//! redis-server: the user's own, else Debian's.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};
use quotagate_support::tools;

use super::{Redis, apt};
use crate::run;

const PACKAGE: &str = "redis-server";

#[derive(Debug, PartialEq, Eq)]
enum Plan {
    Use(PathBuf),
    DoWithout,
    Install,
    Refuse,
}

pub fn run(redis: Redis) -> Result<Option<PathBuf>> {
    match plan(tools::redis_server().ok(), redis, apt::available()) {
        Plan::Use(path) => {
            run::note(&format!("Redis: {}", path.display()));
            Ok(Some(path))
        }
        Plan::DoWithout => {
            run::note("Redis: none here; `cargo xtask setup` would look further");
            Ok(None)
        }
        Plan::Install => {
            run::note(&format!("Redis: none here, apt-get installs {PACKAGE}"));
            apt::install(PACKAGE)?;
            stop_service();
            tools::redis_server().map(Some)
        }
        Plan::Refuse => bail!(
            "the tests need redis-server (7.0 or newer) or valkey-server on PATH, and there is none: install it \
             (Debian, Ubuntu: `sudo apt-get install redis-server`; macOS: `brew install redis`)"
        ),
    }
}

fn plan(found: Option<PathBuf>, redis: Redis, apt: bool) -> Plan {
    match (found, redis) {
        (Some(path), _) => Plan::Use(path),
        (None, Redis::Optional) => Plan::DoWithout,
        (None, Redis::Fetch) if apt => Plan::Install,
        (None, Redis::Fetch) => Plan::Refuse,
    }
}

/// Debian starts what it installs. Nobody asked for a server on port 6379.
fn stop_service() {
    let stopped = if Path::new("/run/systemd/system").is_dir() {
        run::succeeds(Command::new("systemctl").args(["disable", "--now", PACKAGE]))
    } else {
        run::succeeds(Command::new("service").args([PACKAGE, "stop"]))
    };
    if !stopped {
        run::note("its system service was not running");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_is_installed() {
        let path = PathBuf::from("/usr/bin/redis-server");
        assert_eq!(plan(Some(path.clone()), Redis::Fetch, true), Plan::Use(path));
        assert_eq!(plan(None, Redis::Optional, true), Plan::DoWithout);
        assert_eq!(plan(None, Redis::Fetch, true), Plan::Install);
        assert_eq!(plan(None, Redis::Fetch, false), Plan::Refuse);
    }
}
