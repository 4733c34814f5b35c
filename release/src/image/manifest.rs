//! The manifest of an image: its configuration, and its layers.

use std::collections::HashMap;

use anyhow::Result;
use oci_spec::image::{
    Arch, Config, Descriptor, Digest, HistoryBuilder, ImageConfigurationBuilder,
    ImageManifestBuilder, MediaType, Os, PlatformBuilder, RootFsBuilder, SCHEMA_VERSION,
};

use super::layout::{self, ImageLayout};
use crate::{
    Parts,
    tarball::{Tarball, gzip},
};

/// A compressed layer of files.
#[derive(Clone)]
pub struct Layer {
    /// Names the compressed bytes.
    descriptor: Descriptor,
    /// The digest of the tar file, before compression.
    diff_id: Digest,
}

impl Layer {
    /// Adds a layer to a layout.
    pub fn of(files: &Tarball, epoch: u64, layout: &mut ImageLayout) -> Result<Self> {
        let tar = files.bytes(epoch)?;
        let diff_id = layout::digest(&tar)?;
        // Fetchers of filters accept no other media type.
        let descriptor = layout.blob(MediaType::ImageLayerGzip, gzip(&tar)?)?;
        Ok(Self { descriptor, diff_id })
    }
}

/// What an image is, besides its layers.
pub struct Image {
    /// Go's name of the architecture.
    pub architecture: Arch,
    /// How it is run.
    pub config: Config,
    /// What its manifest says about it.
    pub annotations: HashMap<String, String>,
}

impl Image {
    /// Adds the manifest and the configuration to a layout, and returns the manifest's descriptor.
    pub fn manifest(
        self,
        parts: &Parts,
        layers: &[Layer],
        layout: &mut ImageLayout,
    ) -> Result<Descriptor> {
        let created = super::created(parts)?;
        let diff_ids: Vec<String> = layers.iter().map(|layer| layer.diff_id.to_string()).collect();
        let history = HistoryBuilder::default()
            .created(created.clone())
            .created_by("cargo xtask package")
            .build()?;
        let configuration = ImageConfigurationBuilder::default()
            .architecture(self.architecture.clone())
            .os(Os::Linux)
            .created(created)
            .config(self.config)
            .rootfs(RootFsBuilder::default().typ("layers").diff_ids(diff_ids).build()?)
            .history(vec![history; layers.len()])
            .build()?;
        let configuration = layout.document(MediaType::ImageConfig, &configuration)?;
        let layers: Vec<Descriptor> = layers.iter().map(|layer| layer.descriptor.clone()).collect();
        let manifest = ImageManifestBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageManifest)
            .config(configuration)
            .layers(layers)
            .annotations(self.annotations)
            .build()?;
        let platform =
            PlatformBuilder::default().architecture(self.architecture).os(Os::Linux).build()?;
        let mut manifest = layout.document(MediaType::ImageManifest, &manifest)?;
        manifest.set_platform(Some(platform));
        Ok(manifest)
    }
}
