//! The store's image: one static file on an empty root, for each architecture that was built.

use anyhow::Result;
use oci_spec::image::{
    Arch, ConfigBuilder, Descriptor, ImageIndexBuilder, MediaType, SCHEMA_VERSION,
};

use quotagate_workspace::paths;

use super::{
    labels,
    layout::ImageLayout,
    manifest::{Image, Layer},
    read, roots,
};
use crate::{Architecture, Parts, Programs, tarball::Tarball};

/// A user that no machine has, and that is not root.
const USER: &str = "65532:65532";
/// The port that filters call, and that of operators.
const PORTS: [&str; 2] = ["9180/tcp", "9181/tcp"];
/// `PATH` lets `docker exec` and `kubectl exec` run `quotagate` by its name.
const ENVIRONMENT: [&str; 3] =
    ["PATH=/", "QUOTAGATE_LISTEN=0.0.0.0:9180", "QUOTAGATE_ADMIN=0.0.0.0:9181"];

/// Adds the image to a layout, and returns the descriptor of its index.
pub fn image(parts: &Parts, licences: &str, layout: &mut ImageLayout) -> Result<Descriptor> {
    // A layer of its own: the same for all architectures.
    let mut common = Tarball::default();
    common.file(roots::PATH, 0o644, roots::pem());
    common.file("licenses/LICENSE", 0o644, read(&paths::root().join("LICENSE"))?);
    common.file("licenses/THIRD-PARTY-LICENSES", 0o644, licences);
    let common = Layer::of(&common, parts.epoch, layout)?;
    let manifests: Result<Vec<Descriptor>> =
        parts.programs.iter().map(|built| manifest(parts, built, &common, layout)).collect();
    let index = ImageIndexBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageIndex)
        .manifests(manifests?)
        .annotations(about(parts)?)
        .build()?;
    layout.document(MediaType::ImageIndex, &index)
}

fn manifest(
    parts: &Parts,
    built: &Programs,
    common: &Layer,
    layout: &mut ImageLayout,
) -> Result<Descriptor> {
    let mut command = Tarball::default();
    command.file("quotagate", 0o755, read(&built.command)?);
    let command = Layer::of(&command, parts.epoch, layout)?;
    let config = ConfigBuilder::default()
        .user(USER)
        .exposed_ports(PORTS.map(String::from))
        .env(ENVIRONMENT.map(String::from))
        .entrypoint(["/quotagate".to_owned()])
        .cmd(["serve".to_owned()])
        .labels(about(parts)?)
        .build()?;
    let architecture = match built.architecture {
        Architecture::X86_64 => Arch::Amd64,
        Architecture::Aarch64 => Arch::ARM64,
    };
    let image = Image { architecture, config, annotations: about(parts)? };
    image.manifest(parts, &[common.clone(), command], layout)
}

fn about(parts: &Parts) -> Result<std::collections::HashMap<String, String>> {
    labels(parts, "quotagate-store", "The store of quotagate: quotas in Redis or Redis Cluster")
}
