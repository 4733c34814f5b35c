//! System packages, which are installed only with the user's consent.

use std::{fs, os::unix::fs::MetadataExt, path::Path, process::Command};

use anyhow::{Result, bail};
use quotagate_workspace::{task, tools};

use super::programs::Program;

/// Whether this task may install system packages (`--yes`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consent {
    /// The user agreed.
    Given,
    /// Name the command instead.
    NotGiven,
}

/// Installs what is missing if the user agreed.
///
/// # Errors
/// When something is missing and must not or cannot be installed; the message names the command.
pub fn provide(missing: &[&Program], consent: Consent) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> =
        missing.iter().flat_map(|program| program.packages).copied().collect();
    let apt = tools::on_path("apt-get").is_some();
    if consent == Consent::NotGiven || !apt || !is_root() {
        bail!("{}", advice(missing, apt, is_root()));
    }
    task::note(&format!("apt-get installs {}", packages.join(" ")));
    install(&packages)?;
    missing.iter().filter_map(|program| program.service).for_each(stop_service);
    let still: Vec<&str> = missing
        .iter()
        .filter(|program| (program.find)().is_none())
        .map(|program| program.name)
        .collect();
    if !still.is_empty() {
        bail!(
            "apt-get installed {}, but there is still no {}",
            packages.join(" "),
            still.join(", ")
        );
    }
    Ok(())
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// What is missing, and what the user can do.
fn advice(missing: &[&Program], apt: bool, root: bool) -> String {
    let names: Vec<&str> = missing.iter().map(|program| program.name).collect();
    let packages: Vec<&str> =
        missing.iter().flat_map(|program| program.packages).copied().collect();
    let elsewhere: Vec<&str> = missing.iter().map(|program| program.elsewhere).collect();
    let command = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    let (names, elsewhere) = (names.join(", "), elsewhere.join("; "));
    match (apt, root) {
        (true, true) => {
            format!(
                "missing: {names}. Run `{command}`, or let `cargo xtask setup --yes` run it ({elsewhere})"
            )
        }
        (true, false) => format!("missing: {names}. Run `sudo {command}` ({elsewhere})"),
        (false, _) => {
            format!(
                "missing: {names}. Install them with your package manager (Debian: `{command}`; {elsewhere})"
            )
        }
    }
}

/// Installs without recommended packages. Fetches the lists only if they seem old, because that is
/// slow.
fn install(packages: &[&str]) -> Result<()> {
    let install: Vec<&str> = ["install", "-y", "-qq", "--no-install-recommends"]
        .into_iter()
        .chain(packages.iter().copied())
        .collect();
    if let Err(first) = apt_get(&install)? {
        task::note("apt-get does not know them yet: apt-get update");
        let updated = apt_get(&["update", "-qq"])?;
        if let Err(errors) = apt_get(&install)? {
            let why = [first, updated.err().unwrap_or_default(), errors].join("\n");
            bail!("{}", failure(&packages.join(" "), &why));
        }
    }
    Ok(())
}

fn apt_get(arguments: &[&str]) -> Result<Result<(), String>> {
    task::judged(Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(arguments))
}

fn failure(packages: &str, errors: &str) -> String {
    let network =
        ["Temporary failure", "Could not resolve", "Could not connect", "Network is unreachable"];
    if network.iter().any(|sign| errors.contains(sign)) {
        return format!(
            "apt-get cannot reach its servers: install {packages} once there is a network"
        );
    }
    let last =
        errors.lines().rev().find(|line| line.starts_with("E:")).unwrap_or("no reason given");
    format!("apt-get cannot install {packages} ({last}): install it yourself")
}

/// Debian starts a server when it installs one.
fn stop_service(name: &str) {
    if Path::new("/run/systemd/system").is_dir() {
        task::succeeds(Command::new("systemctl").args(["disable", "--now", name]));
    } else {
        task::succeeds(Command::new("service").args([name, "stop"]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::Part;

    const ABSENT: [Program; 2] = [
        Program {
            name: "one",
            part: Part::Redis,
            find: || None,
            packages: &["p1", "p2"],
            service: None,
            elsewhere: "brew",
        },
        Program {
            name: "two",
            part: Part::Wrk,
            find: || None,
            packages: &["p3"],
            service: None,
            elsewhere: "dnf",
        },
    ];

    #[test]
    fn nothing_is_installed_without_consent() {
        let error = provide(&[&ABSENT[0]], Consent::NotGiven).unwrap_err().to_string();
        assert!(error.contains("missing: one") && error.contains("p1 p2"), "{error}");
        provide(&[], Consent::NotGiven).unwrap();
    }

    #[test]
    fn advice_is_one_command_for_everything_that_is_missing() {
        let missing: Vec<&Program> = ABSENT.iter().collect();
        let command = "apt-get install --no-install-recommends p1 p2 p3";
        let root = advice(&missing, true, true);
        assert!(root.contains(&format!("`{command}`")) && root.contains("setup --yes"), "{root}");
        let user = advice(&missing, true, false);
        assert!(user.contains(&format!("`sudo {command}`")) && !user.contains("--yes"), "{user}");
        let other = advice(&missing, false, false);
        assert!(other.contains("brew; dnf") && other.contains("one, two"), "{other}");
    }

    #[test]
    fn failures_are_one_sentence() {
        let offline = failure("x", "W: a\nE: Temporary failure resolving 'packages.example.org'");
        assert_eq!(offline, "apt-get cannot reach its servers: install x once there is a network");
        let unknown = failure("x", "E: one\nE: Unable to locate package x\n");
        assert_eq!(
            unknown,
            "apt-get cannot install x (E: Unable to locate package x): install it yourself"
        );
    }
}
