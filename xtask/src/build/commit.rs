//! The commit that is built.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result};
use quotagate_workspace::paths;

/// The variable that the command reads when it is compiled.
pub const VARIABLE: &str = "QUOTAGATE_COMMIT";
/// The time of packed files, in seconds since 1970. Packagers set it to make builds reproducible.
const EPOCH: &str = "SOURCE_DATE_EPOCH";
/// The time outside of a Git clone: 1980, because some formats know no earlier one.
const OLDEST: u64 = 315_532_800;

/// The commit as `quotagate --version` shows it, with `-modified` if files differ from it. `None`
/// outside of a Git clone.
pub fn shown() -> Option<String> {
    of(&paths::root())
}

/// The time that packed files carry: that of the commit, unless the variable says otherwise.
///
/// # Errors
/// When the variable is no number.
pub fn epoch() -> Result<u64> {
    match env::var(EPOCH) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{EPOCH} is {text:?}: set it to seconds since 1970")),
        Err(_) => Ok(time_of(&paths::root()).unwrap_or(OLDEST)),
    }
}

fn of(root: &Path) -> Option<String> {
    // A source archive may be unpacked inside of another project's clone.
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    let commit = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let clean = git(root, &["status", "--porcelain"])?.is_empty();
    Some(if clean { commit } else { format!("{commit}-modified") })
}

fn time_of(root: &Path) -> Option<u64> {
    of(root)?;
    git(root, &["log", "-1", "--no-show-signature", "--format=%ct"])?.parse().ok()
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let output = git.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn commit_is_named_with_its_time_and_modifications() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        assert_eq!((of(root), time_of(root)), (None, None));
        git(root, &["init", "--quiet"]).unwrap();
        fs::write(root.join("file"), "one").unwrap();
        git(root, &["add", "file"]).unwrap();
        let who = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
        // The user's own settings may ask for a signature.
        let who = [&who[..], &["-c", "commit.gpgsign=false", "commit", "--quiet"]].concat();
        git(root, &[&who[..], &["--message", "one"]].concat()).unwrap();
        let commit = of(root).unwrap();
        assert_eq!(commit.len(), 12, "{commit}");
        assert!(time_of(root).unwrap() > OLDEST);
        fs::write(root.join("file"), "two").unwrap();
        assert_eq!(of(root).unwrap(), format!("{commit}-modified"));
        fs::create_dir(root.join("below")).unwrap();
        assert_eq!(of(&root.join("below")), None, "another project's clone");
    }
}
