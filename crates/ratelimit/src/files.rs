//! Rule files in a folder, read again whenever they change.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::rules::{FileFault, RuleDomain, RuleFile, SharedDomains, read_files};

/// Most levels of folders.
const MAX_LEVELS: usize = 16;

/// A folder with rule files.
#[derive(Clone, Debug)]
pub struct RuleFolder {
    /// Its path. Kubernetes replaces what it links to.
    pub path: PathBuf,
    /// Whether what stands beside it, and begins with its name and a dot, belongs to it: the
    /// original reads `config.yaml` and `config.d/x.yaml`, too, unless `RUNTIME_WATCH_ROOT` is
    /// false. Then the folder itself may be missing.
    pub siblings: bool,
    /// Whether names that begin with a dot are left out.
    pub ignores_dot_files: bool,
    /// What happens to a domain that several files name.
    pub shared: SharedDomains,
}

/// Why rules were not taken. The rules before stay in force.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The folder cannot be read.
    #[error("cannot read {path}: {error}: name an existing folder with rule files")]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It has no rules. An empty folder is more often a mistake than the end of all limits.
    #[error("{path} has no rules: put a rule file into it; one with a domain alone limits nothing")]
    Empty {
        /// The folder.
        path: PathBuf,
    },
    /// Files have faults.
    #[error("{} in the rule files", if .0.len() == 1 { "a fault".to_owned() } else { format!("{} faults", .0.len()) })]
    Faults(Vec<FileFault>),
}

impl Refused {
    /// What is wrong, a line each.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.to_string()];
        if let Self::Faults(faults) = self {
            lines.extend(faults.iter().map(ToString::to_string));
        }
        lines
    }
}

/// The rules of all domains, by their names.
pub type RulesByDomain = BTreeMap<Arc<str>, Arc<RuleDomain>>;

impl RuleFolder {
    /// The files now. Every file is read, whatever its name, and those of inner folders, too.
    ///
    /// # Errors
    /// When a folder or file cannot be read.
    pub fn files(&self) -> Result<Vec<RuleFile>, Refused> {
        let mut files = Vec::new();
        if let (true, Some(parent), Some(name)) =
            (self.siblings, self.path.parent(), self.path.file_name())
        {
            let begin = format!("{}.", name.to_string_lossy());
            // A parent that cannot be read is named as the folder itself, below.
            for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with(&begin) {
                    self.collect_one(&entry.path(), name, 0, &mut files)?;
                }
            }
        }
        match std::fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !files.is_empty() => {}
            _ => self.collect(&self.path, "", 0, &mut files)?,
        }
        files.sort_by(|a: &RuleFile, b| a.name.cmp(&b.name));
        Ok(files)
    }

    /// The rules in these files.
    ///
    /// # Errors
    /// All their faults, or that there are none.
    pub fn rules(&self, files: &[RuleFile]) -> Result<RulesByDomain, Refused> {
        let rules = read_files(files, self.shared).map_err(Refused::Faults)?;
        if rules.is_empty() {
            return Err(Refused::Empty { path: self.path.clone() });
        }
        Ok(rules)
    }

    fn collect(
        &self,
        folder: &Path,
        prefix: &str,
        level: usize,
        files: &mut Vec<RuleFile>,
    ) -> Result<(), Refused> {
        for entry in std::fs::read_dir(folder).map_err(refused(folder))? {
            let entry = entry.map_err(refused(folder))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // A mounted ConfigMap holds links into `..data`, which holds the same files again.
            if name.starts_with("..") || self.ignores_dot_files && name.starts_with('.') {
                continue;
            }
            self.collect_one(&entry.path(), format!("{prefix}{name}"), level, files)?;
        }
        Ok(())
    }

    /// Reads a file, or those of an inner folder.
    fn collect_one(
        &self,
        path: &Path,
        name: String,
        level: usize,
        files: &mut Vec<RuleFile>,
    ) -> Result<(), Refused> {
        // Follows links.
        let metadata = std::fs::metadata(path).map_err(refused(path))?;
        if metadata.is_dir() {
            if level < MAX_LEVELS {
                self.collect(path, &format!("{name}/"), level + 1, files)?;
            }
        } else if !metadata.is_file() {
            // Reading a pipe would never end.
            let error = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
            return Err(refused(path)(error));
        } else {
            let text = std::fs::read(path).map_err(refused(path))?;
            files.push(RuleFile { name, text });
        }
        Ok(())
    }
}

fn refused(path: &Path) -> impl FnOnce(io::Error) -> Refused {
    let path = path.to_owned();
    move |error| Refused::Folder { path, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(path: &Path) -> RuleFolder {
        let shared = SharedDomains::Refuse;
        let path = path.to_owned();
        RuleFolder { path, siblings: false, ignores_dot_files: false, shared }
    }

    #[test]
    fn files_beside_the_folder_that_begin_like_it_belong_to_it() {
        let root = tempfile::tempdir().unwrap();
        let names = |siblings: bool| -> Result<Vec<String>, Refused> {
            let of = RuleFolder { siblings, ..folder(&root.path().join("config")) };
            Ok(of.files()?.into_iter().map(|file| file.name).collect())
        };
        assert!(names(true).unwrap_err().to_string().contains("/config: "));
        for file in ["config.yaml", "config.d/x.yaml", "configs/x.yaml", "other.yaml"] {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "domain: d\n").unwrap();
        }
        assert_eq!(names(true).unwrap(), ["config.d/x.yaml", "config.yaml"]);
        assert!(names(false).is_err());
        std::fs::create_dir(root.path().join("config")).unwrap();
        std::fs::write(root.path().join("config/a.yaml"), "domain: d\n").unwrap();
        assert_eq!(names(true).unwrap(), ["a.yaml", "config.d/x.yaml", "config.yaml"]);
        assert_eq!(names(false).unwrap(), ["a.yaml"]);
    }

    #[test]
    fn mounted_config_map_is_read_once_and_its_swap_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for (version, domain) in [("..v1", "one"), ("..v2", "two")] {
            std::fs::create_dir(at(version)).unwrap();
            std::fs::write(at(version).join("rules.yaml"), format!("domain: {domain}\n")).unwrap();
        }
        std::os::unix::fs::symlink("..v1", at("..data")).unwrap();
        std::os::unix::fs::symlink("..data/rules.yaml", at("rules.yaml")).unwrap();
        let domains = || -> Vec<String> {
            let folder = folder(root.path());
            let rules = folder.rules(&folder.files().unwrap()).unwrap();
            rules.keys().map(|name| name.to_string()).collect()
        };
        assert_eq!(domains(), ["one"]);
        std::os::unix::fs::symlink("..v2", at("..new")).unwrap();
        std::fs::rename(at("..new"), at("..data")).unwrap();
        assert_eq!(domains(), ["two"]);
    }

    #[test]
    fn pipe_is_a_fault_and_does_not_hang() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("rules.yaml");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = folder(root.path()).files().unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn missing_folder_is_named() {
        let error = folder(Path::new("/absent/rules")).files().unwrap_err();
        assert!(error.to_string().starts_with("cannot read /absent/rules: "), "{error}");
    }
}
