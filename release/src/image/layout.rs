//! An OCI image layout: blobs by digest, and an index that names the image among them.
//!
//! The media types are those of the [image specification][1].
//!
//! [1]: https://github.com/opencontainers/image-spec

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result};
use canon_json::CanonJsonSerialize;
use oci_spec::image::{
    ANNOTATION_REF_NAME, Descriptor, Digest, ImageIndexBuilder, MediaType, OciLayoutBuilder,
    SCHEMA_VERSION,
};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::tarball::Tarball;

/// The blobs of an image. Add layers, then what names them, and [`archive`](Self::archive) last.
#[derive(Clone, Default)]
pub struct ImageLayout {
    blobs: BTreeMap<String, Vec<u8>>,
}

impl ImageLayout {
    /// Adds bytes.
    pub fn blob(&mut self, media_type: MediaType, bytes: Vec<u8>) -> Result<Descriptor> {
        let digest = digest(&bytes)?;
        let descriptor = Descriptor::new(media_type, bytes.len() as u64, digest.clone());
        self.blobs.insert(digest.digest().to_owned(), bytes);
        Ok(descriptor)
    }

    /// Adds a document, in JSON's canonical form: its maps have no order of their own.
    pub fn document(
        &mut self,
        media_type: MediaType,
        document: &impl Serialize,
    ) -> Result<Descriptor> {
        self.blob(media_type, json(document)?)
    }

    /// The tar file. `root` describes the manifest or index that `tag` names.
    pub fn archive(self, mut root: Descriptor, tag: &str, epoch: u64) -> Result<Vec<u8>> {
        root.set_annotations(Some(HashMap::from([(
            ANNOTATION_REF_NAME.to_owned(),
            tag.to_owned(),
        )])));
        let index = ImageIndexBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageIndex)
            .manifests([root])
            .build()?;
        let layout = OciLayoutBuilder::default().image_layout_version("1.0.0").build()?;
        let mut tar = Tarball::default();
        tar.file("index.json", 0o644, json(&index)?);
        tar.file("oci-layout", 0o644, json(&layout)?);
        for (digest, bytes) in self.blobs {
            tar.file(&format!("blobs/sha256/{digest}"), 0o644, bytes);
        }
        tar.bytes(epoch)
    }
}

/// The digest of these bytes, as images write it.
pub fn digest(bytes: &[u8]) -> Result<Digest> {
    Ok(format!("sha256:{}", hex::encode(Sha256::digest(bytes))).parse()?)
}

fn json(document: &impl Serialize) -> Result<Vec<u8>> {
    document.to_canon_json_vec().context("cannot write JSON")
}
