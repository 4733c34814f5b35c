//! Packs what `cargo xtask package` built into what a release publishes.

pub mod image;
pub mod parts;
pub mod tarball;

use std::{fs, path::Path};

use anyhow::{Context, Result};

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
    image::write(parts, folder)
}
