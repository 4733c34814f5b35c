//! What Istio and Envoy Gateway do with the URL `oci://...` of a Wasm filter, step by step.
//!
//! Sources: `pkg/wasm/imagefetcher.go` of Istio (commit 86c9f01f) and
//! `internal/wasm/imagefetcher.go` of Envoy Gateway (commit d32f2829). They differ only where this
//! says so. Both read manifests with go-containerregistry.

use std::io::Read;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;
use oci_spec::image::MediaType;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    artifacts::{self, VERSION},
    programs::show,
    registry::Registry,
};

/// The most bytes of a module, or of the layer around it. In Istio it is the default of
/// `ISTIO_WASM_MAX_BINARY_SIZE_BYTES`.
const CAP: u64 = 256 << 20;

const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
const WASM_LAYER: &str = "application/vnd.module.wasm.content.layer.v1+wasm";

/// Fetches the module of an image.
fn fetch(registry: &Registry, name: &str, reference: &str, cap: u64) -> Result<Vec<u8>> {
    let (index, image) = (MediaType::ImageIndex.to_string(), MediaType::ImageManifest.to_string());
    let accept = [DOCKER_MANIFEST, &image, DOCKER_LIST, &index].join(",");
    let response = registry.manifest(name, reference, &accept)?;
    let kind = response.header("content-type").context("no content type")?.to_owned();
    let manifest = response.json()?;
    if kind == index || kind == DOCKER_LIST {
        // Whatever the machine, go-containerregistry chooses this platform.
        let child = list(&manifest, "manifests")?.iter().find(|child| {
            let platform = |field: &str| child["platform"][field].as_str();
            (platform("os"), platform("architecture")) == (Some("linux"), Some("amd64"))
        });
        let child = child.context("the index has no manifest for linux/amd64")?;
        return fetch(registry, name, text(child, "digest")?, cap);
    }
    ensure!(kind == image || kind == DOCKER_MANIFEST, "{kind} is no manifest");
    let layers = list(&manifest, "layers")?;
    if manifest["mediaType"] == DOCKER_MANIFEST {
        return packed(registry, name, layers, DOCKER_LAYER, cap);
    }
    let packed = packed(registry, name, layers, MediaType::ImageLayerGzip.as_ref(), cap);
    packed.or_else(|first| {
        let plain = plain(registry, name, layers, cap);
        plain.with_context(|| format!("neither an image ({first:#}) nor an artifact"))
    })
}

/// The module in the last layer, which must have this type.
fn packed(
    registry: &Registry,
    name: &str,
    layers: &[Value],
    media_type: &str,
    cap: u64,
) -> Result<Vec<u8>> {
    let layer = layers.last().context("no layers")?;
    let found = text(layer, "mediaType")?;
    ensure!(found == media_type, "the last layer is {found}, not {media_type}");
    let layer = blob(registry, name, layer)?;
    let mut tar = tar::Archive::new(GzDecoder::new(layer.as_slice()).take(cap));
    for entry in tar.entries()? {
        let mut entry = entry?;
        if entry.path()?.file_name().is_some_and(|name| name == "plugin.wasm") {
            let mut module = Vec::new();
            entry.read_to_end(&mut module)?;
            ensure!(module.len() as u64 == entry.size(), "plugin.wasm is longer than {cap} bytes");
            return Ok(module);
        }
    }
    bail!("no plugin.wasm in the last layer")
}

/// The module that is a layer itself.
fn plain(registry: &Registry, name: &str, layers: &[Value], cap: u64) -> Result<Vec<u8>> {
    ensure!(layers.len() == 2, "{} layers, not 2", layers.len());
    let layer = layers.iter().find(|layer| layer["mediaType"] == WASM_LAYER);
    let module = blob(registry, name, layer.context("no layer is a module")?)?;
    // Envoy Gateway refuses it. Istio cuts it off, and then Envoy refuses it.
    ensure!(module.len() as u64 <= cap, "the module is longer than {cap} bytes");
    Ok(module)
}

fn blob(registry: &Registry, name: &str, layer: &Value) -> Result<Vec<u8>> {
    let digest = text(layer, "digest")?;
    let bytes = registry.blob(name, digest)?;
    ensure!(digest == format!("sha256:{}", hex::encode(Sha256::digest(&bytes))), "not {digest}");
    Ok(bytes)
}

fn list<'a>(value: &'a Value, field: &str) -> Result<&'a Vec<Value>> {
    value[field].as_array().with_context(|| format!("no {field}"))
}

fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str> {
    value[field].as_str().with_context(|| format!("no {field}"))
}

/// A registry with one image, and the manifest of that image.
fn pushed(name: &str) -> (Registry, Value) {
    let registry = Registry::start().unwrap();
    registry.push(name, &["--preserve-digests"]).unwrap();
    let any = MediaType::ImageManifest.to_string();
    let manifest = registry.manifest(name, VERSION, &any).unwrap().json().unwrap();
    (registry, manifest)
}

/// Why the fetchers refuse the image with this manifest.
fn refusal(registry: &Registry, name: &str, manifest: &Value) -> String {
    registry.put(name, "wrong", MediaType::ImageManifest.as_ref(), manifest).unwrap();
    format!("{:#}", fetch(registry, name, "wrong", CAP).unwrap_err())
}

#[test]
fn both_fetchers_get_the_module_that_was_built_from_every_form() {
    let registry = Registry::start().unwrap();
    let mut printed = String::new();
    for form in ["", "-bodies"] {
        let built = std::fs::read(artifacts::part(&format!("wasm/quotagate{form}.wasm")).unwrap());
        let built = built.unwrap();
        for (kind, options) in [
            ("", &["--preserve-digests"][..]),
            ("-artifact", &["--preserve-digests"]),
            // Some registries and mirrors convert images.
            ("", &["--format", "v2s2"]),
        ] {
            let name = format!("filter{form}{kind}");
            registry.push(&name, options).unwrap();
            assert!(fetch(&registry, &name, VERSION, CAP).unwrap() == built, "{name} {options:?}");
            let size = built.len();
            printed.push_str(&format!("quotagate-{name} {}: {size} bytes\n", options.join(" ")));
        }
    }
    show("filters, fetched as Istio and Envoy Gateway do", &printed).unwrap();
}

#[test]
fn filter_in_an_index_is_fetched_for_the_one_platform_that_fetchers_choose() {
    let (registry, _) = pushed("filter");
    let any = MediaType::ImageManifest.to_string();
    let response = registry.manifest("filter", VERSION, &any).unwrap();
    let digest = response.header("docker-content-digest").unwrap();
    let index = |architecture: &str| {
        let platform = json!({"os": "linux", "architecture": architecture});
        let size = response.body.len();
        let child = json!({"mediaType": any, "digest": digest, "size": size, "platform": platform});
        json!({"schemaVersion": 2, "mediaType": MediaType::ImageIndex, "manifests": [child]})
    };
    let fetched = |architecture: &str| {
        let index = index(architecture);
        registry.put("filter", architecture, MediaType::ImageIndex.as_ref(), &index).unwrap();
        fetch(&registry, "filter", architecture, CAP)
    };
    fetched("amd64").unwrap();
    let error = fetched("arm64").unwrap_err().to_string();
    assert!(error.contains("linux/amd64"), "{error}");
}

#[test]
fn wrong_media_types_and_layers_are_refused() {
    let (registry, image) = pushed("filter");
    for media_type in [MediaType::ImageLayer, MediaType::ImageLayerZstd] {
        let mut wrong = image.clone();
        wrong["layers"][0]["mediaType"] = json!(media_type);
        let error = refusal(&registry, "filter", &wrong);
        assert!(error.contains(media_type.as_ref()) && error.contains("1 layers"), "{error}");
    }
    let (registry, artifact) = pushed("filter-artifact");
    let mut wrong = artifact.clone();
    wrong["layers"].as_array_mut().unwrap().remove(0);
    assert!(refusal(&registry, "filter-artifact", &wrong).contains("1 layers, not 2"));
    let mut wrong = artifact;
    wrong["layers"][1]["mediaType"] = json!("application/wasm");
    assert!(refusal(&registry, "filter-artifact", &wrong).contains("no layer is a module"));
}

#[test]
fn image_without_a_module_and_modules_above_the_cap_are_refused() {
    let registry = Registry::start().unwrap();
    registry.push("store", &["--preserve-digests"]).unwrap();
    let error = format!("{:#}", fetch(&registry, "store", VERSION, CAP).unwrap_err());
    assert!(error.contains("no plugin.wasm in the last layer"), "{error}");
    for name in ["filter", "filter-artifact"] {
        registry.push(name, &["--preserve-digests"]).unwrap();
        fetch(&registry, name, VERSION, 2 << 20).unwrap();
        let error = format!("{:#}", fetch(&registry, name, VERSION, 1 << 16).unwrap_err());
        assert!(error.contains("65536"), "{error}");
    }
}
