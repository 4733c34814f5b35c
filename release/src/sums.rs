//! `SHA256SUMS`, and its signature.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use quotagate_workspace::tools;
use sha2::{Digest, Sha256};

use crate::examples::files;

/// The list of digests.
pub const SUMS: &str = "SHA256SUMS";
/// The program that signs, and the package that contains it.
const MINISIGN: &str = "minisign";

/// Writes the digest of every file in a folder, as `sha256sum --check` reads them.
///
/// # Errors
/// When a file cannot be read.
pub fn write(folder: &Path) -> Result<()> {
    let mut text = String::new();
    for file in files(folder)? {
        let name = name(&file);
        if name.starts_with(SUMS) {
            continue;
        }
        let content = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        writeln!(text, "{}  {name}", hex::encode(Sha256::digest(content)))?;
    }
    fs::write(folder.join(SUMS), text).context("cannot write the digests")
}

/// Signs the digests with a secret key of minisign, into `SHA256SUMS.minisig`. If the key has a
/// password, minisign asks for it.
///
/// # Errors
/// When minisign is missing, or refuses the key.
pub fn sign(folder: &Path, key: &Path, comment: &str) -> Result<()> {
    let mut command = Command::new(program()?);
    command.args(["-S", "-t", comment, "-s"]).arg(key).arg("-m").arg(folder.join(SUMS));
    let status = command.stdout(Stdio::null()).status()?;
    if !status.success() {
        bail!("{MINISIGN} did not sign with {} ({status})", key.display());
    }
    Ok(())
}

fn program() -> Result<PathBuf> {
    let missing =
        || format!("{MINISIGN} is not on PATH: Debian has it (`apt-get install {MINISIGN}`)");
    tools::on_path(MINISIGN).with_context(missing)
}

/// The name and the size of every file in a folder, sorted, for people.
///
/// # Errors
/// When the folder cannot be read.
pub fn listing(folder: &Path) -> Result<String> {
    let mut text = String::new();
    for file in files(folder)? {
        let size = fs::metadata(&file)?.len();
        writeln!(text, "{:>9} KiB  {}", size.div_ceil(1024), name(&file))?;
    }
    Ok(text)
}

fn name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_what_sha256sum_checks() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("b"), "b").unwrap();
        fs::write(folder.path().join("a"), "a").unwrap();
        fs::write(folder.path().join("SHA256SUMS.minisig"), "old").unwrap();
        write(folder.path()).unwrap();
        let check = || {
            let mut sum = Command::new("sha256sum");
            sum.args(["--check", "--strict", SUMS]).current_dir(folder.path()).output().unwrap()
        };
        let checked = check();
        assert_eq!(String::from_utf8_lossy(&checked.stdout), "a: OK\nb: OK\n");
        assert!(checked.status.success());
        fs::write(folder.path().join("a"), "A").unwrap();
        assert!(!check().status.success());
        assert!(listing(folder.path()).unwrap().contains("1 KiB  a\n"));
    }

    #[test]
    fn signature_is_verified_with_the_public_key() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "a").unwrap();
        write(folder.path()).unwrap();
        let (public, secret) = (folder.path().join("key.pub"), folder.path().join("key"));
        let minisign = program().unwrap();
        let run = |arguments: &[&str]| {
            let mut command = Command::new(&minisign);
            command.args(arguments).current_dir(folder.path()).output().unwrap().status.success()
        };
        assert!(run(&["-G", "-W", "-p", public.to_str().unwrap(), "-s", secret.to_str().unwrap()]));
        sign(folder.path(), &secret, "quotagate 0.1.0").unwrap();
        assert!(run(&["-V", "-p", "key.pub", "-m", SUMS]));
        fs::write(folder.path().join(SUMS), "other").unwrap();
        assert!(!run(&["-V", "-p", "key.pub", "-m", SUMS]));
        assert!(sign(folder.path(), &folder.path().join("absent"), "test").is_err());
    }
}
