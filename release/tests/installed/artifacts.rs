//! What `cargo xtask package` made.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use oci_spec::image::{Digest, ImageIndex};
use quotagate_support::paths;

/// The version that was packed.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The architecture of this machine, if a release has it.
pub const ARCHITECTURE: &str = std::env::consts::ARCH;

/// A file of `dist/release`.
///
/// # Errors
/// When it is missing.
pub fn file(name: &str) -> Result<PathBuf> {
    let file = paths::release().join(name);
    if !file.is_file() {
        bail!(
            "{} is missing: run `cargo xtask package --architecture {ARCHITECTURE}`",
            file.display()
        );
    }
    Ok(file)
}

/// The OCI archive of an image.
pub fn image(name: &str) -> Result<PathBuf> {
    file(&format!("quotagate-{name}-{VERSION}.oci.tar"))
}

/// The part that an artefact was packed from.
pub fn part(name: &str) -> Result<PathBuf> {
    let file = paths::root().join("target").join("release-parts").join(name);
    if !file.is_file() {
        bail!("{} is missing: run `cargo xtask package`", file.display());
    }
    Ok(file)
}

/// The digest of the image in an OCI archive.
pub fn digest(archive: &Path) -> Result<Digest> {
    let mut tar = tar::Archive::new(File::open(archive)?);
    for entry in tar.entries()? {
        let mut entry = entry?;
        if entry.path()?.ends_with("index.json") {
            let mut json = Vec::new();
            entry.read_to_end(&mut json)?;
            let index = ImageIndex::from_reader(json.as_slice())?;
            let root = index.manifests().first().context("the index is empty")?;
            return Ok(root.digest().clone());
        }
    }
    bail!("{} has no index.json", archive.display())
}
