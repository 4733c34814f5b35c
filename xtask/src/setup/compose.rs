//! Docker Compose 2, which Debian packages since trixie. The package runs on bookworm, too.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};
use quotagate_workspace::{
    debian, task,
    tools::{self, COMPOSE_RELEASE},
};

/// The package, and the program in it.
const PACKAGE: &str = "docker-compose";
const MEMBER: &str = "usr/libexec/docker/cli-plugins/docker-compose";

/// Finds Docker Compose 2, or fetches it without installing anything.
///
/// # Errors
/// When there is none, and the machine's own mirror of Debian does not lead to one.
pub fn find_or_fetch() -> Result<()> {
    if tools::compose().is_err() {
        let otherwise =
            "install Docker Compose 2 yourself (Ubuntu: `apt-get install docker-compose-v2`)";
        fetch().context(otherwise)?;
    }
    let words = tools::compose()?;
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    task::note(&format!("Docker Compose 2: {}", words.join(" ")));
    Ok(())
}

/// Fetches the package with apt, which verifies it, from the machine's own mirror. The lists and the
/// package stay in a folder of their own, so that nothing changes for the system.
fn fetch() -> Result<()> {
    task::note(&format!("Docker Compose 2: missing, apt fetches the package of {COMPOSE_RELEASE}"));
    let source = source(&debian::mirror()?);
    let target = tools::fetched(PACKAGE, COMPOSE_RELEASE);
    let folder = target.parent().context("the program has a folder")?;
    let apt = folder.join("apt");
    for folder in ["lists/partial", "cache/archives/partial", "unpacked"] {
        fs::create_dir_all(apt.join(folder))?;
    }
    fs::write(apt.join("sources.list"), source)?;
    let done = unpack(&apt, &target);
    fs::remove_dir_all(&apt)?;
    done
}

fn unpack(apt: &Path, target: &Path) -> Result<()> {
    let at = |name: &str| apt.join(name).display().to_string();
    let options = [
        format!("Dir::Etc::SourceList={}", at("sources.list")),
        "Dir::Etc::SourceParts=/dev/null".to_owned(),
        format!("Dir::State::Lists={}", at("lists")),
        format!("Dir::Cache={}", at("cache")),
        "Acquire::Languages=none".to_owned(),
        // `_apt` cannot read folders of the user.
        "APT::Sandbox::User=".to_owned(),
    ];
    for words in [&["update", "-qq"][..], &["download", "-qq", PACKAGE]] {
        let mut command = Command::new("apt-get");
        command.current_dir(apt).args(options.iter().flat_map(|option| ["--option", option]));
        if let Err(errors) = task::judged(command.args(words))? {
            bail!("`apt-get {}` failed: {}", words.join(" "), errors.trim());
        }
    }
    let package = fs::read_dir(apt)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("apt-get downloaded no package")?;
    let unpacked = apt.join("unpacked");
    let mut command = Command::new("dpkg-deb");
    if let Err(errors) = task::judged(command.arg("--extract").arg(&package).arg(&unpacked))? {
        bail!("dpkg-deb cannot unpack {}: {}", package.display(), errors.trim());
    }
    fs::rename(unpacked.join(MEMBER), target)
        .with_context(|| format!("{} has no {MEMBER}", package.display()))
}

/// The line of `sources.list` for the release with Compose 2.
fn source(mirror: &str) -> String {
    const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let signed =
        if Path::new(KEYS).is_file() { format!("[signed-by={KEYS}] ") } else { String::new() };
    format!("deb {signed}{mirror} {COMPOSE_RELEASE} main\n")
}
