//! Rule files of envoyproxy/ratelimit that a command is given.

use std::fs;
use std::path::{Path, PathBuf};

use quotagate_ratelimit::files::{RuleFolder, RulesByDomain};
use quotagate_ratelimit::rules::{
    DomainRules, FileFault, RuleFile, SharedDomains, read_files, read_trees,
};

/// What a command does with the domains of rule files.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub(crate) struct SharedArgs {
    /// Rule files may share a domain, as with MERGE_DOMAIN_CONFIG of the service
    #[arg(long)]
    merge_domains: bool,
}

/// Rule files that a service would read together.
#[derive(Debug)]
pub(crate) struct RuleSet {
    files: Vec<RuleFile>,
    shared: SharedDomains,
}

impl SharedArgs {
    /// What happens to a domain that several files name.
    pub(crate) fn domains(self) -> SharedDomains {
        if self.merge_domains { SharedDomains::Merge } else { SharedDomains::Refuse }
    }
}

impl RuleSet {
    /// These files, in the order of their names. A file that is named twice is read once.
    pub(crate) fn of(mut files: Vec<RuleFile>, shared: SharedArgs) -> Self {
        files.sort_by(|a, b| a.name.cmp(&b.name));
        files.dedup_by(|a, b| a.name == b.name);
        Self { files, shared: shared.domains() }
    }

    /// The files at these paths, and in these folders.
    ///
    /// # Errors
    /// One sentence about a path that cannot be read.
    pub(crate) fn read(paths: &[PathBuf], shared: &SharedArgs) -> Result<Self, String> {
        let mut files = Vec::new();
        for path in paths {
            if path.is_dir() {
                files.extend(folder(path)?);
            } else {
                let text = fs::read(path)
                    .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                files.push(RuleFile { name: path.display().to_string(), text });
            }
        }
        Ok(Self::of(files, *shared))
    }

    /// The names of the files.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.name.as_str())
    }

    /// The rules of all domains.
    ///
    /// # Errors
    /// All faults, as the service finds them.
    pub(crate) fn rules(&self) -> Result<RulesByDomain, Vec<FileFault>> {
        read_files(&self.files, self.shared)
    }

    /// The rules as they are written.
    pub(crate) fn trees(&self) -> Vec<DomainRules> {
        read_trees(&self.files)
    }
}

/// The rule files that the service reads in a folder, named with its path.
///
/// # Errors
/// One sentence about what cannot be read.
pub(crate) fn folder(path: &Path) -> Result<Vec<RuleFile>, String> {
    let folder = RuleFolder {
        siblings: false,
        path: path.to_owned(),
        ignores_dot_files: false,
        shared: SharedDomains::default(),
    };
    let files = folder.files().map_err(|error| error.to_string())?;
    let named = files.into_iter().map(|file| {
        let name = path.join(&file.name).display().to_string();
        RuleFile { name, ..file }
    });
    Ok(named.collect())
}
