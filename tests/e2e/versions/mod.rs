//! Two versions of the filter and of the store, in all combinations.
//!
//! `cargo xtask versions --previous REV` builds the previous version and sets [`PREVIOUS`] to the
//! folder of its parts. Without it, these tests say that they did not run.

mod combinations;
mod documents;
mod record;
mod scenario;

use std::env;
use std::io::{self, Write as _};
use std::path::PathBuf;

use anyhow::Result;
use quotagate_support::paths;
use quotagate_support::store::{StoreOptions, StoreProcess};

/// The variable with the folder of the parts of the previous version.
const PREVIOUS: &str = "QUOTAGATE_PREVIOUS";

/// A version of both programs.
#[derive(Clone)]
struct Version {
    name: &'static str,
    /// The folder of its parts.
    parts: PathBuf,
}

impl Version {
    /// The previous version and this one; `None` if no previous one is named.
    fn both() -> Result<Option<[Self; 2]>> {
        let Some(previous) = env::var_os(PREVIOUS).filter(|folder| !folder.is_empty()) else {
            writeln!(
                io::stderr(),
                "not run: `cargo xtask versions --previous REV` names a version"
            )?;
            return Ok(None);
        };
        let previous = Self { name: "previous", parts: paths::root().join(previous) };
        Ok(Some([previous, Self { name: "this", parts: paths::parts() }]))
    }

    /// Starts its store.
    fn store(&self, url: &str) -> Result<StoreProcess> {
        StoreProcess::start_with(&StoreOptions::new(url).program(self.parts.join(paths::COMMAND)))
    }
}
