//! Packs what `cargo xtask package` built into what a release publishes.

pub mod archive;
pub mod crates;
pub mod deb;
pub mod documents;
pub mod examples;
pub mod image;
pub mod licences;
pub mod parts;
pub mod sbom;
pub mod sums;
pub mod tarball;
#[cfg(test)]
mod testing;

use std::{fs, path::Path, thread};

use anyhow::{Context, Result, bail};

use archive::Common;
use documents::Documents;
pub use parts::{Architecture, Parts, Programs};

/// Something to pack, independent of the rest.
type Packing<'a> = Box<dyn FnOnce() -> Result<()> + Send + 'a>;

/// Writes everything that a release publishes into a folder, in the place of what was there.
///
/// # Errors
/// When a part cannot be read, or a file cannot be written.
pub fn pack(parts: &Parts, cargo_deb: &Path, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let documents = Documents::of(&parts.host)?;
    let known = crates::all()?;
    let common = Common { documents, licences: licences::current(&known)? };
    // Each of these compresses some 20 MB for seconds.
    let mut packing: Vec<Packing<'_>> = Vec::new();
    for programs in &parts.programs {
        packing.push(Box::new(|| archive::write(parts, programs, &common, folder)));
        packing.push(Box::new(|| deb::write(cargo_deb, parts, programs, &common, folder)));
    }
    together(packing)?;
    sbom::write(parts, &known, folder)?;
    image::write(parts, &common.licences, folder)?;
    sums::write(folder)
}

/// Runs all of them at the same time, and reports the first failure.
fn together(packing: Vec<Packing<'_>>) -> Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = packing.into_iter().map(|pack| scope.spawn(pack)).collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(packed) => packed,
            Err(_) => bail!("a thread that packs has panicked"),
        });
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}
