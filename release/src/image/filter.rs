//! The images of the Wasm filter, in the two forms that Istio and Envoy Gateway fetch.
//!
//! Both fetchers follow the [Wasm image specification][1]: *compat* is an image with one layer,
//! *oci* an artifact with a layer for the module itself.
//!
//! [1]: https://github.com/solo-io/wasm/tree/master/spec

use anyhow::Result;
use oci_spec::image::{
    ANNOTATION_TITLE, Arch, Config, Descriptor, ImageManifestBuilder, MediaType, SCHEMA_VERSION,
};
use serde_json::json;

use super::{
    labels,
    layout::ImageLayout,
    manifest::{Image, Layer},
};
use crate::{Parts, tarball::Tarball};

/// The name that the fetchers look for.
const MODULE: &str = "plugin.wasm";
/// The module itself, not compressed.
const CONTENT: &str = "application/vnd.module.wasm.content.layer.v1+wasm";
/// What the module needs of its host.
const RUNTIME: &str = "application/vnd.module.wasm.config.v1+json";

/// Adds an image with one layer, and returns the descriptor of its manifest.
pub fn image(
    parts: &Parts,
    title: &str,
    module: &[u8],
    layout: &mut ImageLayout,
) -> Result<Descriptor> {
    let mut files = Tarball::default();
    files.file(MODULE, 0o644, module);
    let layer = Layer::of(&files, parts.epoch, layout)?;
    let mut annotations = labels(parts, title, DESCRIPTION)?;
    let mut config = Config::default();
    config.set_labels(Some(annotations.clone()));
    annotations.insert("module.wasm.image/variant".to_owned(), "compat".to_owned());
    // Wasm runs anywhere. Of an index, fetchers take the image for this platform.
    let image = Image { architecture: Arch::Amd64, config, annotations };
    let mut manifest = image.manifest(parts, &[layer], layout)?;
    manifest.set_platform(None);
    Ok(manifest)
}

/// Adds an artifact with two layers, and returns the descriptor of its manifest.
pub fn artifact(
    parts: &Parts,
    title: &str,
    module: Vec<u8>,
    layout: &mut ImageLayout,
) -> Result<Descriptor> {
    let runtime = json!({
        "type": "envoy_proxy",
        "abiVersions": ["0.2.1"],
        // The module has one root context, which serves any id.
        "config": {"rootIds": [""]},
    });
    let named = |mut layer: Descriptor, name: &str| {
        layer.set_annotations(Some([(ANNOTATION_TITLE.to_owned(), name.to_owned())].into()));
        layer
    };
    let runtime = layout.document(MediaType::Other(RUNTIME.to_owned()), &runtime)?;
    let module = layout.blob(MediaType::Other(CONTENT.to_owned()), module)?;
    let manifest = ImageManifestBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageManifest)
        .config(runtime.clone())
        .layers([named(runtime, "runtime-config.json"), named(module, MODULE)])
        .annotations(labels(parts, title, DESCRIPTION)?)
        .build()?;
    layout.document(MediaType::ImageManifest, &manifest)
}

const DESCRIPTION: &str = "The Wasm filter of quotagate, for Istio and Envoy Gateway";
