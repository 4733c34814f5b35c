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

/// The content of files, and the targets of links.
fn unpacked(tar: &[u8]) -> Files {
    let mut archive = tar::Archive::new(tar);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        match entry.link_name_bytes() {
            Some(target) => content.extend_from_slice(&target),
            None => _ = entry.read_to_end(&mut content).unwrap(),
        }
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
    assert_eq!(before.len(), 6);
    for (name, archive) in &before {
        assert_ne!(root(archive).digest(), root(&after[name]).digest(), "{name}");
    }
}

/// The image of a command for an architecture: its configuration, its files, and their digests.
struct Built {
    image: ImageConfiguration,
    files: Files,
    layers: Vec<Descriptor>,
}

/// The images of this name that [`packed`] made of the commands `one` and `two`, by architecture.
fn built(name: &str) -> Vec<Built> {
    let archives = packed(b"", [b"one", b"two"]);
    let files = unpacked(&archives[&format!("quotagate-{name}-{VERSION}.oci.tar")]);
    let root = ImageIndex::from_reader(files["index.json"].as_slice()).unwrap();
    let root = &root.manifests()[0];
    assert_eq!(root.annotations().as_ref().unwrap()["org.opencontainers.image.ref.name"], VERSION);
    let index = ImageIndex::from_reader(blob(&files, root)).unwrap();
    let title = &index.annotations().as_ref().unwrap()["org.opencontainers.image.title"];
    assert_eq!(*title, format!("quotagate-{name}"));
    let of = |manifest: &Descriptor| {
        let platform = manifest.platform().as_ref().unwrap();
        let manifest = ImageManifest::from_reader(blob(&files, manifest)).unwrap();
        let image = ImageConfiguration::from_reader(blob(&files, manifest.config())).unwrap();
        assert_eq!(image.architecture(), platform.architecture());
        let mut content = Files::new();
        for (layer, diff_id) in manifest.layers().iter().zip(image.rootfs().diff_ids()) {
            let mut tar = Vec::new();
            GzDecoder::new(blob(&files, layer)).read_to_end(&mut tar).unwrap();
            assert_eq!(layout::digest(&tar).unwrap().to_string(), *diff_id);
            content.extend(unpacked(&tar));
        }
        content.retain(|path, _| !path.ends_with('/'));
        Built { image, files: content, layers: manifest.layers().clone() }
    };
    index.manifests().iter().map(of).collect()
}

#[test]
fn images_of_the_command_run_without_root_on_each_architecture() {
    for name in ["store", "ratelimit"] {
        let built = built(name);
        let architectures: Vec<String> =
            built.iter().map(|built| built.image.architecture().to_string()).collect();
        assert_eq!(architectures, ["amd64", "arm64"]);
        for (mut built, command) in built.into_iter().zip(["one", "two"]) {
            let config = built.image.config().as_ref().unwrap();
            assert_eq!(config.user().as_deref(), Some("65532:65532"));
            let labels = config.labels().as_ref().unwrap();
            assert_eq!(labels["org.opencontainers.image.revision"], "abcdef123456");
            assert_eq!(labels["org.opencontainers.image.created"], "2023-11-14T22:13:20Z");
            let files = &mut built.files;
            assert_eq!(files.remove("quotagate").unwrap(), command.as_bytes());
            for link in ["bin/quotagate", "bin/ratelimit"] {
                assert_eq!(files.remove(link).unwrap(), b"../quotagate");
            }
            let certificates = files.remove("etc/ssl/certs/ca-certificates.crt").unwrap();
            assert!(pem::parse_many(certificates).unwrap().len() > 100);
            let licence = files.remove("licenses/LICENSE").unwrap();
            assert!(String::from_utf8(licence).unwrap().contains("Apache License"));
            assert_eq!(files.remove("licenses/THIRD-PARTY-LICENSES").unwrap(), b"of crates");
            assert!(files.is_empty(), "{files:?}");
        }
    }
}

#[test]
fn images_of_the_command_differ_in_how_they_start_and_share_their_layers() {
    let (stores, services) = (built("store"), built("ratelimit"));
    for (store, service) in stores.iter().zip(&services) {
        assert_eq!(store.layers, service.layers);
        let [store, service] = [store, service].map(|built| built.image.config().clone().unwrap());
        let starts = |config: &oci_spec::image::Config| {
            [config.entrypoint(), config.cmd()].map(|words| words.clone().unwrap()).concat()
        };
        assert_eq!(starts(&store), ["/quotagate", "serve"]);
        assert_eq!(starts(&service), ["/bin/ratelimit"]);
        let ports = |config: &oci_spec::image::Config| {
            let mut ports = config.exposed_ports().clone().unwrap();
            ports.sort();
            ports
        };
        assert_eq!(ports(&store), ["9180/tcp", "9181/tcp"]);
        assert_eq!(ports(&service), ["6070/tcp", "8080/tcp", "8081/tcp"]);
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
