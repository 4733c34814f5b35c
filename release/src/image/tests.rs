use std::{collections::BTreeMap, io::Read as _};

use flate2::read::GzDecoder;
use oci_spec::image::{ImageConfiguration, ImageIndex, ImageManifest, MediaType};

use super::*;
use crate::{Architecture, testing};

/// The version that is packed.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The files that a release writes, by name.
type Files = BTreeMap<String, Vec<u8>>;

/// Packs these modules, and these commands of both architectures.
fn packed(module: &[u8], commands: [&[u8]; 2]) -> Files {
    let folder = tempfile::tempdir().unwrap();
    let parts = testing::parts(folder.path(), &[Architecture::X86_64, Architecture::Aarch64]);
    for (built, content) in parts.programs.iter().zip(commands) {
        fs::write(&built.command, content).unwrap();
    }
    for filter in [&parts.filter, &parts.bodies_filter] {
        fs::write(filter, module).unwrap();
    }
    let images = folder.path().join("images");
    fs::create_dir(&images).unwrap();
    write(&parts, "of crates", &images).unwrap();
    let written = fs::read_dir(images).unwrap().map(|entry| entry.unwrap().path());
    written
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read(path).unwrap())
        })
        .collect()
}

fn unpacked(tar: &[u8]) -> Files {
    let mut archive = tar::Archive::new(tar);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        (entry.path().unwrap().to_str().unwrap().to_owned(), content)
    });
    entries.collect()
}

/// The blob of a descriptor. It has the size and the digest that the descriptor says.
fn blob<'a>(files: &'a Files, descriptor: &Descriptor) -> &'a [u8] {
    let content = &files[&format!("blobs/sha256/{}", descriptor.digest().digest())];
    assert_eq!(content.len() as u64, descriptor.size());
    assert_eq!(layout::digest(content).unwrap(), *descriptor.digest());
    content
}

/// Describes the image in an archive.
fn root(archive: &[u8]) -> Descriptor {
    let files = unpacked(archive);
    let index = ImageIndex::from_reader(files["index.json"].as_slice()).unwrap();
    index.manifests()[0].clone()
}

#[test]
fn same_input_gives_the_same_bytes() {
    let first = packed(b"module", [b"one", b"two"]);
    for _ in 0..3 {
        assert_eq!(first, packed(b"module", [b"one", b"two"]));
    }
}

#[test]
fn one_changed_byte_gives_another_digest() {
    let before = packed(b"module", [b"one", b"two"]);
    let after = packed(b"modulf", [b"one", b"twp"]);
    assert_eq!(before.len(), 5);
    for (name, archive) in &before {
        assert_ne!(root(archive).digest(), root(&after[name]).digest(), "{name}");
    }
}

#[test]
fn store_runs_without_root_on_each_architecture() {
    let files =
        unpacked(&packed(b"", [b"one", b"two"])[&format!("quotagate-store-{VERSION}.oci.tar")]);
    let root = ImageIndex::from_reader(files["index.json"].as_slice()).unwrap();
    let root = &root.manifests()[0];
    assert_eq!(root.annotations().as_ref().unwrap()["org.opencontainers.image.ref.name"], VERSION);
    let index = ImageIndex::from_reader(blob(&files, root)).unwrap();
    assert_eq!(index.manifests().len(), 2);
    for (manifest, (name, command)) in
        index.manifests().iter().zip([("amd64", "one"), ("arm64", "two")])
    {
        let platform = manifest.platform().as_ref().unwrap();
        assert_eq!(platform.architecture().to_string(), name);
        let manifest = ImageManifest::from_reader(blob(&files, manifest)).unwrap();
        let image = ImageConfiguration::from_reader(blob(&files, manifest.config())).unwrap();
        assert_eq!(image.architecture(), platform.architecture());
        let config = image.config().as_ref().unwrap();
        assert_eq!(config.user().as_deref(), Some("65532:65532"));
        assert_eq!(config.entrypoint().as_deref(), Some(["/quotagate".to_owned()].as_slice()));
        let labels = config.labels().as_ref().unwrap();
        assert_eq!(labels["org.opencontainers.image.revision"], "abcdef123456");
        assert_eq!(labels["org.opencontainers.image.created"], "2023-11-14T22:13:20Z");
        let mut content = Files::new();
        for (layer, diff_id) in manifest.layers().iter().zip(image.rootfs().diff_ids()) {
            let mut tar = Vec::new();
            GzDecoder::new(blob(&files, layer)).read_to_end(&mut tar).unwrap();
            assert_eq!(layout::digest(&tar).unwrap().to_string(), *diff_id);
            content.extend(unpacked(&tar));
        }
        content.retain(|path, _| !path.ends_with('/'));
        assert_eq!(content.remove("quotagate").unwrap(), command.as_bytes());
        let certificates = content.remove("etc/ssl/certs/ca-certificates.crt").unwrap();
        assert!(pem::parse_many(certificates).unwrap().len() > 100);
        let licence = content.remove("licenses/LICENSE").unwrap();
        assert!(String::from_utf8(licence).unwrap().contains("Apache License"));
        assert_eq!(content.remove("licenses/THIRD-PARTY-LICENSES").unwrap(), b"of crates");
        assert!(content.is_empty(), "{content:?}");
    }
}

#[test]
fn artifact_holds_the_module_itself() {
    let files = packed(b"module", [b"one", b"two"]);
    for name in ["quotagate-filter-artifact", "quotagate-filter-bodies-artifact"] {
        let archive = &files[&format!("{name}-{VERSION}.oci.tar")];
        let files = unpacked(archive);
        let manifest = ImageManifest::from_reader(blob(&files, &root(archive))).unwrap();
        assert_eq!(manifest.media_type().as_ref(), Some(&MediaType::ImageManifest));
        assert_eq!(manifest.layers().len(), 2);
        assert_eq!(blob(&files, &manifest.layers()[1]), b"module");
    }
}
