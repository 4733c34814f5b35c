//! The images of the command: one static file on an empty root, for each architecture that was
//! built. They differ in how a container starts it, and share their layers.

use std::collections::HashMap;

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
use crate::{Architecture, Parts, tarball::Tarball};

/// A user that no machine has, and that is not root.
const USER: &str = "65532:65532";

/// How an image starts the command.
pub struct CommandImage {
    /// Its name, after `quotagate-`.
    pub name: &'static str,
    description: &'static str,
    ports: &'static [&'static str],
    /// `PATH` lets `docker exec` and `kubectl exec` run `quotagate` by its name.
    environment: &'static [&'static str],
    entrypoint: &'static str,
    arguments: &'static [&'static str],
}

/// All of them.
pub const IMAGES: [CommandImage; 2] = [
    CommandImage {
        name: "store",
        description: "The store of quotagate: quotas in Redis or Redis Cluster",
        // For filters, and for operators.
        ports: &["9180/tcp", "9181/tcp"],
        environment: &["PATH=/", "QUOTAGATE_LISTEN=0.0.0.0:9180", "QUOTAGATE_ADMIN=0.0.0.0:9181"],
        entrypoint: "/quotagate",
        arguments: &["serve"],
    },
    CommandImage {
        name: "ratelimit",
        description: "The rate limit service of quotagate: Envoy's rate limit protocol",
        // gRPC, HTTP, and for debugging, as in envoyproxy/ratelimit. That of operators stays on
        // loopback, for `kubectl port-forward`: it needs no token there.
        ports: &["8081/tcp", "8080/tcp", "6070/tcp"],
        environment: &["PATH=/bin"],
        entrypoint: "/bin/ratelimit",
        arguments: &[],
    },
];

/// The layers of an architecture.
pub struct ArchitectureLayers {
    architecture: Architecture,
    layers: [Layer; 2],
}

/// Adds the layers of all architectures to a layout. `licences` are those of the crates that are
/// linked in.
pub fn layers(
    parts: &Parts,
    licences: &str,
    layout: &mut ImageLayout,
) -> Result<Vec<ArchitectureLayers>> {
    // A layer of its own: the same for all architectures.
    let mut common = Tarball::default();
    common.file(roots::PATH, 0o644, roots::pem());
    common.file("licenses/LICENSE", 0o644, read(&paths::root().join("LICENSE"))?);
    common.file("licenses/THIRD-PARTY-LICENSES", 0o644, licences);
    let common = Layer::of(&common, parts.epoch, layout)?;
    let of = |built: &crate::Programs| {
        let mut command = Tarball::default();
        command.file("quotagate", 0o755, read(&built.command)?);
        command.link("bin/quotagate", "../quotagate");
        // Envoy Gateway starts this path.
        command.link("bin/ratelimit", "../quotagate");
        let command = Layer::of(&command, parts.epoch, layout)?;
        let layers = [common.clone(), command];
        Ok(ArchitectureLayers { architecture: built.architecture, layers })
    };
    parts.programs.iter().map(of).collect()
}

impl CommandImage {
    /// Adds the image to the layout of its layers, and returns the descriptor of its index.
    pub fn index(
        &self,
        parts: &Parts,
        built: &[ArchitectureLayers],
        layout: &mut ImageLayout,
    ) -> Result<Descriptor> {
        let manifests: Result<Vec<Descriptor>> =
            built.iter().map(|built| self.manifest(parts, built, layout)).collect();
        let index = ImageIndexBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageIndex)
            .manifests(manifests?)
            .annotations(self.labels(parts)?)
            .build()?;
        layout.document(MediaType::ImageIndex, &index)
    }

    fn manifest(
        &self,
        parts: &Parts,
        built: &ArchitectureLayers,
        layout: &mut ImageLayout,
    ) -> Result<Descriptor> {
        let words = |words: &[&str]| words.iter().copied().map(String::from).collect::<Vec<_>>();
        let config = ConfigBuilder::default()
            .user(USER)
            .exposed_ports(words(self.ports))
            .env(words(self.environment))
            .entrypoint([self.entrypoint.to_owned()])
            .cmd(words(self.arguments))
            .labels(self.labels(parts)?)
            .build()?;
        let architecture = match built.architecture {
            Architecture::X86_64 => Arch::Amd64,
            Architecture::Aarch64 => Arch::ARM64,
        };
        let image = Image { architecture, config, annotations: self.labels(parts)? };
        image.manifest(parts, &built.layers, layout)
    }

    fn labels(&self, parts: &Parts) -> Result<HashMap<String, String>> {
        labels(parts, &format!("quotagate-{}", self.name), self.description)
    }
}
