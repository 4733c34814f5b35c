//! System packages, which are installed only with the user's consent.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Result, bail};
use quotagate_workspace::{task, tools};

use super::programs::Program;

/// Debian's names of packages that Ubuntu calls otherwise.
const ON_UBUNTU: &[(&str, &str)] =
    &[("chromium", "chromium-browser"), ("chromium-driver", "chromium-chromedriver")];

/// Whether this task may install system packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consent {
    /// The user said `--yes`: install them, with sudo unless this user is root.
    Given,
    /// Install them if this user is root, else name the command.
    IfRoot,
    /// Name the command.
    NotGiven,
}

/// The user who runs apt-get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Installer {
    Root,
    Sudo,
}

impl Installer {
    /// Who installs packages, if this task may and can.
    fn of(consent: Consent, machine: Machine) -> Option<Self> {
        match consent {
            _ if !machine.has_apt => None,
            Consent::Given | Consent::IfRoot if machine.is_root => Some(Self::Root),
            Consent::Given if machine.has_sudo => Some(Self::Sudo),
            _ => None,
        }
    }

    fn command(self, program: &str) -> Command {
        match self {
            Self::Root => Command::new(program),
            Self::Sudo => {
                let mut command = Command::new("sudo");
                command.arg(program);
                command
            }
        }
    }
}

/// What decides how packages are installed here.
#[derive(Debug, Clone, Copy)]
struct Machine {
    has_apt: bool,
    has_sudo: bool,
    is_root: bool,
    is_ubuntu: bool,
}

impl Machine {
    fn this() -> Self {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        Self {
            has_apt: tools::on_path("apt-get").is_some(),
            has_sudo: tools::on_path("sudo").is_some(),
            is_root: fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0),
            is_ubuntu: release.lines().any(|line| line == "ID=ubuntu"),
        }
    }

    /// The packages of these programs, by the names that this system gives them.
    fn packages(self, missing: &[&Program]) -> Vec<&'static str> {
        let mut packages = Vec::new();
        for &debian in missing.iter().flat_map(|program| program.packages) {
            let other = ON_UBUNTU.iter().find(|(name, _)| self.is_ubuntu && *name == debian);
            let package = other.map_or(debian, |(_, ubuntu)| ubuntu);
            if !packages.contains(&package) {
                packages.push(package);
            }
        }
        packages
    }
}

/// Installs what is missing, if the user agreed.
///
/// # Errors
/// When something is missing and must not or cannot be installed; the message names the command.
pub fn provide(missing: &[&Program], consent: Consent) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let machine = Machine::this();
    let packages = machine.packages(missing);
    let Some(installer) = Installer::of(consent, machine) else {
        bail!("{}", advice(missing, machine));
    };
    let who = match installer {
        Installer::Root => "this task runs as root, so apt-get now installs",
        Installer::Sudo => "sudo apt-get now installs",
    };
    task::note(&format!("{who} {} (this can take minutes)", packages.join(" ")));
    install(installer, &packages)?;
    let services = missing.iter().filter_map(|program| program.service);
    services.for_each(|service| stop_service(installer, service));
    let still: Vec<String> = missing
        .iter()
        .filter(|program| (program.find)().is_none())
        .map(|program| format!("{} ({})", program.name, program.elsewhere))
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

/// What is missing, and what the user can do.
fn advice(missing: &[&Program], machine: Machine) -> String {
    let names: Vec<&str> = missing.iter().map(|program| program.name).collect();
    let elsewhere: Vec<&str> = missing.iter().map(|program| program.elsewhere).collect();
    let packages = machine.packages(missing).join(" ");
    let command = format!("apt-get install --no-install-recommends {packages}");
    let (names, elsewhere) = (names.join(", "), elsewhere.join("; "));
    match machine {
        Machine { has_apt: false, .. } => {
            format!(
                "missing: {names}. Install them with your package manager (Debian: `{command}`; {elsewhere})"
            )
        }
        Machine { is_root: true, .. } => {
            format!(
                "missing: {names}. Run `{command}`, or let `cargo xtask setup --yes` run it ({elsewhere})"
            )
        }
        Machine { has_sudo: true, .. } => {
            format!(
                "missing: {names}. Run `sudo {command}`, or let `cargo xtask setup --yes` run it ({elsewhere})"
            )
        }
        _ => format!("missing: {names}. Run `{command}` as root ({elsewhere})"),
    }
}

/// Installs without recommended packages. Fetches the lists only if they seem old, because that is
/// slow.
fn install(installer: Installer, packages: &[&str]) -> Result<()> {
    let install: Vec<&str> = ["install", "-y", "-qq", "--no-install-recommends"]
        .into_iter()
        .chain(packages.iter().copied())
        .collect();
    if let Err(first) = apt_get(installer, &install)? {
        task::note("apt-get does not know them yet: apt-get update");
        let updated = apt_get(installer, &["update", "-qq"])?;
        if let Err(errors) = apt_get(installer, &install)? {
            let why = [first, updated.err().unwrap_or_default(), errors].join("\n");
            bail!("{}", failure(&packages.join(" "), &why));
        }
    }
    Ok(())
}

fn apt_get(installer: Installer, arguments: &[&str]) -> Result<Result<(), String>> {
    // sudo passes no variable on, but `env` sets it after sudo.
    let mut command = installer.command("env");
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]).args(arguments);
    // dpkg prints lines for each package, hundreds in all.
    task::judged(command.stdout(Stdio::null()))
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
fn stop_service(installer: Installer, name: &str) {
    if Path::new("/run/systemd/system").is_dir() {
        task::succeeds(installer.command("systemctl").args(["disable", "--now", name]));
    } else {
        task::succeeds(installer.command("service").args([name, "stop"]));
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
            part: Part::Bench,
            find: || None,
            packages: &["p3"],
            service: None,
            elsewhere: "dnf",
        },
    ];

    const DEBIAN: Machine =
        Machine { has_apt: true, has_sudo: true, is_root: false, is_ubuntu: false };
    const ROOT: Machine = Machine { is_root: true, ..DEBIAN };

    #[test]
    fn nothing_is_installed_without_consent() {
        let error = provide(&[&ABSENT[0]], Consent::NotGiven).unwrap_err().to_string();
        assert!(error.contains("missing: one") && error.contains("p1 p2"), "{error}");
        provide(&[], Consent::NotGiven).unwrap();
    }

    #[test]
    fn root_or_consent_decides_who_installs() {
        let no_sudo = Machine { has_sudo: false, ..DEBIAN };
        let no_apt = Machine { has_apt: false, ..ROOT };
        let cases = [
            (Consent::Given, ROOT, Some(Installer::Root)),
            (Consent::Given, DEBIAN, Some(Installer::Sudo)),
            (Consent::Given, no_sudo, None),
            (Consent::Given, no_apt, None),
            (Consent::IfRoot, ROOT, Some(Installer::Root)),
            (Consent::IfRoot, DEBIAN, None),
            (Consent::IfRoot, no_apt, None),
            (Consent::NotGiven, ROOT, None),
            (Consent::NotGiven, DEBIAN, None),
        ];
        for (consent, machine, expected) in cases {
            assert_eq!(Installer::of(consent, machine), expected, "{consent:?} on {machine:?}");
        }
    }

    #[test]
    fn sudo_precedes_command_unless_root() {
        assert_eq!(Installer::Root.command("service").get_program(), "service");
        let with_sudo = Installer::Sudo.command("service");
        assert_eq!(with_sudo.get_program(), "sudo");
        assert!(with_sudo.get_args().eq(["service"]));
    }

    #[test]
    fn packages_have_names_of_this_system_and_stand_once() {
        let browser = Program { packages: &["chromium", "p3"], ..ABSENT[0] };
        let ubuntu = Machine { is_ubuntu: true, ..DEBIAN };
        assert_eq!(DEBIAN.packages(&[&browser, &ABSENT[1]]), ["chromium", "p3"]);
        assert_eq!(ubuntu.packages(&[&browser]), ["chromium-browser", "p3"]);
    }

    #[test]
    fn advice_is_one_command_for_everything_that_is_missing() {
        let missing: Vec<&Program> = ABSENT.iter().collect();
        let command = "apt-get install --no-install-recommends p1 p2 p3";
        let root = advice(&missing, ROOT);
        assert!(root.contains(&format!("`{command}`")) && root.contains("setup --yes"), "{root}");
        let user = advice(&missing, DEBIAN);
        assert!(user.contains(&format!("`sudo {command}`")), "{user}");
        assert!(user.contains("setup --yes"), "{user}");
        let no_sudo = advice(&missing, Machine { has_sudo: false, ..DEBIAN });
        assert!(no_sudo.contains("as root") && !no_sudo.contains("sudo"), "{no_sudo}");
        assert!(!no_sudo.contains("--yes"), "{no_sudo}");
        let other = advice(&missing, Machine { has_apt: false, ..DEBIAN });
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
