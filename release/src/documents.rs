//! Man pages and completions, which the command writes itself.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail, ensure};

/// The shells whose completions are packed, and the names that they look for.
const SHELLS: [(&str, &str); 3] =
    [("bash", "quotagate"), ("zsh", "_quotagate"), ("fish", "quotagate.fish")];

/// What a user reads or sources, sorted by name.
#[derive(Debug, Default, Clone)]
pub struct Documents {
    /// File names such as `quotagate-serve.1`, and their content.
    pub man: Vec<(String, Vec<u8>)>,
    /// Completions for shells.
    pub completions: Vec<Completion>,
}

/// The completions for one shell.
#[derive(Debug, Clone)]
pub struct Completion {
    /// The shell, as the command calls it.
    pub shell: &'static str,
    /// The name of the file in the folder where the shell looks for it.
    pub file: &'static str,
    /// The script.
    pub script: Vec<u8>,
}

impl Documents {
    /// Asks a command that runs on this machine.
    ///
    /// # Errors
    /// When it does not run, or writes nothing.
    pub fn of(command: &Path) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        output(Command::new(command).arg("man").arg(folder.path()))?;
        let mut man = Vec::new();
        for entry in fs::read_dir(folder.path())? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            man.push((name, fs::read(entry.path())?));
        }
        man.sort();
        ensure!(!man.is_empty(), "{} wrote no man pages", command.display());
        let completions = SHELLS.into_iter().map(|(shell, file)| {
            let script = output(Command::new(command).args(["completions", shell]))?;
            Ok(Completion { shell, file, script })
        });
        Ok(Self { man, completions: completions.collect::<Result<_>>()? })
    }
}

/// What a command prints, without the environment of this process: the text must not depend on it.
fn output(command: &mut Command) -> Result<Vec<u8>> {
    let shown = format!("{command:?}");
    let output = command.env_clear().output().with_context(|| format!("cannot run {shown}"))?;
    if !output.status.success() {
        bail!("{shown} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn command_writes_pages_and_completions() {
        let folder = tempfile::tempdir().unwrap();
        let documents = Documents::of(&testing::command(folder.path())).unwrap();
        let names: Vec<_> = documents.man.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["quotagate-serve.1", "quotagate.1"]);
        let scripts: Vec<_> =
            documents.completions.iter().map(|one| str::from_utf8(&one.script).unwrap()).collect();
        assert_eq!(scripts, ["completions bash\n", "completions zsh\n", "completions fish\n"]);
    }

    #[test]
    fn command_that_fails_is_named_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let file = testing::script(&folder.path().join("quotagate"), "echo broken >&2; exit 3");
        let error = Documents::of(&file).unwrap_err().to_string();
        assert!(error.contains("quotagate") && error.contains("broken"), "{error}");
    }
}
