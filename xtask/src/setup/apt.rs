//! Installing packages where that is possible without asking: as root, with apt.

use std::{ffi::OsStr, process::Command};

use anyhow::{Result, bail};
use quotagate_support::tools;
use rustix::process::geteuid;

use crate::run;

/// Whether [`install`] can work here.
pub fn available() -> bool {
    geteuid().is_root() && tools::on_path("apt-get").is_some()
}

/// Installs a package, without what it only recommends.
pub fn install(package: &str) -> Result<()> {
    let install = ["install", "-y", "-qq", "--no-install-recommends", package];
    // Without an update first where the lists are there: it is slow.
    if let Err(first) = apt_get(install)? {
        run::note("apt-get knows no such package yet: apt-get update");
        let updated = apt_get(["update", "-qq"])?;
        if let Err(errors) = apt_get(install)? {
            let why = [first, updated.err().unwrap_or_default(), errors].join("\n");
            bail!("{}", failure(package, &why));
        }
    }
    Ok(())
}

fn apt_get<const N: usize>(arguments: [&str; N]) -> Result<Result<(), String>> {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", OsStr::new("noninteractive")).args(arguments);
    run::judged(&mut command)
}

fn failure(package: &str, errors: &str) -> String {
    let network = ["Temporary failure", "Could not resolve", "Could not connect", "Network is unreachable"];
    if network.iter().any(|sign| errors.contains(sign)) {
        return format!("apt-get cannot reach its servers: install {package} once there is a network");
    }
    let last = errors.lines().rev().find(|line| line.starts_with("E:")).unwrap_or("no reason given");
    format!("apt-get cannot install {package} ({last}): install it yourself")
}

#[cfg(test)]
mod tests {
    use super::failure;

    #[test]
    fn failures_are_one_sentence() {
        let offline = failure("x", "W: a\nE: Temporary failure resolving 'packages.example.org'");
        assert_eq!(offline, "apt-get cannot reach its servers: install x once there is a network");
        let unknown = failure("x", "E: one\nE: Unable to locate package x\n");
        assert_eq!(unknown, "apt-get cannot install x (E: Unable to locate package x): install it yourself");
    }
}
