//! Images from Debian's packages, in the place of those that cannot be pulled.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result};
use quotagate_workspace::{debian, paths, task, tools};

use crate::{engine::Engine, program};

/// The image that all of them begin with.
pub const BASE: &str = "quotagate-stand-in:base";
/// The release of Debian. It has all packages, Redis 7.0 among them.
const SUITE: &str = "bookworm";
const PACKAGES: &str = "redis-server,nginx-light,wget";
/// A mirror may be slow.
const LIMIT: Duration = Duration::from_secs(900);

/// An image that stands in for a published one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandIn {
    /// What it stands in for, without the tag.
    repository: &'static str,
    /// What it is made of, for the log.
    pub made_of: &'static str,
    recipe: &'static str,
}

const ALL: [StandIn; 3] = [
    StandIn {
        repository: "redis",
        made_of: "Debian's redis-server",
        recipe: include_str!("../stand-ins/redis.Dockerfile"),
    },
    StandIn {
        repository: "nginx",
        made_of: "Debian's nginx-light",
        recipe: include_str!("../stand-ins/nginx.Dockerfile"),
    },
    StandIn {
        repository: "envoyproxy/envoy",
        made_of: "the Envoy that `cargo xtask setup` found or fetched",
        recipe: include_str!("../stand-ins/envoy.Dockerfile"),
    },
];

/// The stand-in for this image, if there is one.
#[must_use]
pub fn of(image: &str) -> Option<StandIn> {
    let (repository, _tag) = image.rsplit_once(':')?;
    ALL.into_iter().find(|stand_in| stand_in.repository == repository)
}

impl StandIn {
    /// Builds it with this tag, on [`BASE`].
    ///
    /// # Errors
    /// When the engine refuses.
    pub fn build(&self, engine: &Engine, image: &str) -> Result<()> {
        let context = tempfile::tempdir_in(paths::compose())?;
        let at = |name: &str| context.path().join(name);
        fs::write(at("Dockerfile"), self.recipe)?;
        fs::write(at("redis.sh"), include_str!("../stand-ins/redis.sh"))?;
        if self.recipe.contains("COPY envoy ") {
            let envoy = tools::envoy()?;
            fs::copy(&envoy, at("envoy"))
                .with_context(|| format!("cannot copy {}", envoy.display()))?;
        }
        let context = context.path().display().to_string();
        engine.build(&["--tag", image, &context])
    }
}

/// Imports [`BASE`] into the engine: a small Debian with all packages. It is made once for each
/// source tree.
///
/// # Errors
/// When debootstrap is missing or fails.
pub fn import_base(engine: &Engine) -> Result<()> {
    let tar = paths::compose().join(format!("{SUITE}-1.tar"));
    if !tar.is_file() {
        make_base(&tar)?;
    }
    engine.docker(&["import", &tar.display().to_string(), BASE]).map(drop)
}

fn make_base(tar: &Path) -> Result<()> {
    let mirror = debian::mirror()?;
    task::note(&format!("debootstrap makes a Debian {SUITE} with {PACKAGES}, once"));
    fs::create_dir_all(paths::compose())?;
    // A folder of its own, so that two runs do not disturb each other and none is half done.
    let folder = tempfile::tempdir_in(paths::compose())?;
    let root = folder.path().join("root");
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", &format!("--include={PACKAGES}"), SUITE]);
    program::run(debootstrap.arg(&root).arg(&mirror), LIMIT)
        .context("debootstrap makes the stand-ins, as root (`apt-get install debootstrap`)")?;
    let made = folder.path().join("base.tar");
    let mut pack = Command::new("tar");
    pack.arg("--create").arg("--file").arg(&made).arg("--directory").arg(&root);
    let useless = ["./var/cache/apt/archives/*.deb", "./var/lib/apt/lists/*", "./usr/share/doc/*"];
    pack.args(useless.map(|pattern| format!("--exclude={pattern}"))).arg(".");
    program::run(&mut pack, LIMIT)?;
    fs::rename(&made, tar).with_context(|| format!("cannot write {}", tar.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_images_have_stand_ins_and_ours_have_none() {
        for image in ["redis:7.4.2-bookworm", "nginx:1.27.4-alpine", "envoyproxy/envoy:v1.40.0"] {
            assert!(of(image).is_some(), "{image}");
        }
        for image in ["quotagate-store:compose-1", "grafana/grafana:12.1.0", "redis"] {
            assert_eq!(of(image), None, "{image}");
        }
    }

    #[test]
    fn stand_ins_begin_with_the_base() {
        for stand_in in ALL {
            assert!(stand_in.recipe.contains(&format!("\nFROM {BASE}\n")), "{stand_in:?}");
        }
    }
}
