//! The images of a release, as OCI archives: files that `skopeo copy oci-archive:FILE docker://...`
//! reads.

mod command;
mod filter;
mod layout;
mod manifest;
mod roots;

use std::{collections::HashMap, fs, path::Path};

use anyhow::{Context, Result};
use jiff::Timestamp;
use oci_spec::image::{
    ANNOTATION_CREATED, ANNOTATION_DESCRIPTION, ANNOTATION_LICENSES, ANNOTATION_REVISION,
    ANNOTATION_TITLE, ANNOTATION_VERSION, Descriptor,
};

use crate::Parts;
use layout::ImageLayout;

/// Writes the images of the command, and those of both Wasm filters, each of these in two forms.
/// `licences` are those of the crates that are linked in.
///
/// # Errors
/// When a part cannot be read, or a file cannot be written.
pub fn write(parts: &Parts, licences: &str, folder: &Path) -> Result<()> {
    let write = |name: &str, layout: ImageLayout, root: Descriptor| {
        let file = folder.join(format!("quotagate-{name}-{}.oci.tar", parts.version));
        let archive = layout.archive(root, &parts.version, parts.epoch)?;
        fs::write(&file, archive).with_context(|| format!("cannot write {}", file.display()))
    };
    let mut shared = ImageLayout::default();
    let layers = command::layers(parts, licences, &mut shared)?;
    for image in command::IMAGES {
        let mut layout = shared.clone();
        let root = image.index(parts, &layers, &mut layout)?;
        write(image.name, layout, root)?;
    }
    for (form, file) in [("", &parts.filter), ("-bodies", &parts.bodies_filter)] {
        let module = read(file)?;
        let title = format!("quotagate-filter{form}");
        let mut layout = ImageLayout::default();
        let root = filter::image(parts, &title, &module, &mut layout)?;
        write(&format!("filter{form}"), layout, root)?;
        let mut layout = ImageLayout::default();
        let root = filter::artifact(parts, &title, module, &mut layout)?;
        write(&format!("filter{form}-artifact"), layout, root)?;
    }
    Ok(())
}

/// What every image says about itself.
fn labels(parts: &Parts, title: &str, description: &str) -> Result<HashMap<String, String>> {
    let mut labels = HashMap::from([
        (ANNOTATION_TITLE, title.to_owned()),
        (ANNOTATION_DESCRIPTION, description.to_owned()),
        (ANNOTATION_VERSION, parts.version.clone()),
        (ANNOTATION_LICENSES, env!("CARGO_PKG_LICENSE").to_owned()),
        (ANNOTATION_CREATED, created(parts)?),
    ]);
    labels.extend(parts.commit.clone().map(|commit| (ANNOTATION_REVISION, commit)));
    Ok(labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// The time of the commit, as images write it.
fn created(parts: &Parts) -> Result<String> {
    Ok(Timestamp::from_second(i64::try_from(parts.epoch)?)?.to_string())
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests;
