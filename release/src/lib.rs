//! Packs what `cargo xtask package` built into what a release publishes.

pub mod archive;
pub mod documents;
pub mod image;
pub mod parts;
pub mod sums;
pub mod tarball;
#[cfg(test)]
mod testing;

use std::{fs, path::Path};

use anyhow::{Context, Result};

use archive::Common;
use documents::Documents;
pub use parts::{Architecture, Parts, Programs};

/// Writes everything that a release publishes into a folder, in the place of what was there.
///
/// # Errors
/// When a part cannot be read, or a file cannot be written.
pub fn pack(parts: &Parts, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let documents = Documents::of(&parts.host)?;
    let common = Common { documents, licences: String::new() };
    for programs in &parts.programs {
        archive::write(parts, programs, &common, folder)?;
    }
    image::write(parts, folder)?;
    sums::write(folder)
}
