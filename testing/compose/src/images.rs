//! The images that the compose files need: ours out of `dist/release`, the others pulled, or from
//! Debian's packages.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{self, Command},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use quotagate_support::yaml;
use quotagate_workspace::{paths, task};

use crate::{
    engine::Engine,
    program,
    stand_in::{self, BASE},
};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// How long converting an image may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The images, and which of them were not there before.
pub struct Images<'e> {
    engine: &'e Engine,
    /// Our image of the store.
    pub store: String,
    /// Our image of the rate limit service.
    pub rate_limits: String,
    /// Our image of Envoy.
    pub envoy: String,
    made: Vec<String>,
}

impl<'e> Images<'e> {
    /// None so far. The names of ours are those of this run, so that an image of the user keeps its
    /// name.
    #[must_use]
    pub fn new(engine: &'e Engine) -> Self {
        let own = |name: &str| format!("quotagate-{name}:compose-{}", process::id());
        let (store, rate_limits, envoy) = (own("store"), own("ratelimit"), own("envoy"));
        Self { engine, store, rate_limits, envoy, made: Vec::new() }
    }

    /// Provides all of them.
    ///
    /// # Errors
    /// When `dist/release` lacks one, or one can neither be pulled nor stood in for.
    pub fn provide(&mut self) -> Result<()> {
        let [store, rate_limits, archive, recipe] = released()?;
        fs::create_dir_all(paths::compose())?;
        task::step("compose: images");
        for image in published(&recipe)? {
            program::go_on()?;
            self.pull_or_stand_in(&image)?;
        }
        self.load(&store, self.store.clone())?;
        self.load(&rate_limits, self.rate_limits.clone())?;
        self.build_envoy(&archive, &recipe)
    }

    fn pull_or_stand_in(&mut self, image: &str) -> Result<()> {
        if self.engine.docker(&["image", "inspect", image]).is_ok() {
            task::note(&format!("{image}: the engine has it"));
            return Ok(());
        }
        // It is ours to remove, even if Ctrl-C ends what makes it.
        self.made.push(image.to_owned());
        let Err(error) = self.engine.docker(&["pull", "--quiet", image]) else {
            task::note(&format!("{image}: pulled"));
            return Ok(());
        };
        program::go_on()?;
        let Some(stand_in) = stand_in::of(image) else {
            return Err(error.context(format!("{image} has no stand-in")));
        };
        let why = format!("{error:#}");
        let why = why.lines().last().unwrap_or_default().trim().to_owned();
        task::note(&format!("{image}: A STAND-IN from {} ({why})", stand_in.made_of));
        if !self.made.iter().any(|made| made == BASE) {
            self.made.insert(0, BASE.to_owned());
            stand_in::import_base(self.engine)?;
        }
        stand_in.build(self.engine, image)
    }

    /// The engine reads no OCI archives, so skopeo rewrites it for this machine's architecture.
    fn load(&mut self, archive: &Path, image: String) -> Result<()> {
        let folder = tempfile::tempdir_in(paths::compose())?;
        let docker = folder.path().join("image.tar").display().to_string();
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["copy", "--insecure-policy", "--quiet"]);
        skopeo.arg(format!("oci-archive:{}", archive.display()));
        skopeo.arg(format!("docker-archive:{docker}:{image}"));
        program::run(&mut skopeo, LIMIT)
            .context("skopeo reads the image (`apt-get install skopeo`)")?;
        self.made.push(image.clone());
        self.engine.docker(&["load", "--quiet", "--input", &docker])?;
        task::note(&format!("{image}: {}", archive.display()));
        Ok(())
    }

    fn build_envoy(&mut self, archive: &Path, recipe: &Path) -> Result<()> {
        let context = tempfile::tempdir_in(paths::compose())?;
        let name = archive.file_name().context("the archive has a name")?;
        fs::copy(archive, context.path().join(name))?;
        fs::copy(recipe, context.path().join("Dockerfile"))?;
        let architecture = format!("ARCHITECTURE={}", std::env::consts::ARCH);
        let context = context.path().display().to_string();
        let words = ["--tag", &self.envoy, "--build-arg", &architecture, &context];
        self.made.push(self.envoy.clone());
        self.engine.build(&words)?;
        task::note(&format!("{}: {} with {}", self.envoy, recipe.display(), archive.display()));
        Ok(())
    }

    /// Removes the images that were not there before.
    ///
    /// # Errors
    /// When one of them is still there.
    pub fn remove(&self) -> Result<()> {
        for image in self.made.iter().rev() {
            // It is not there if the program that makes it failed, or Ctrl-C ended that.
            let _ = self.engine.clean_up(&["image", "rm", "--force", image]);
        }
        let words = ["image", "ls", "--format", "{{.Repository}}:{{.Tag}}"];
        let left = self.engine.clean_up(&words)?;
        let left: Vec<&str> =
            left.lines().filter(|image| self.made.iter().any(|made| made == image)).collect();
        if !left.is_empty() {
            bail!("these images could not be removed: {}", left.join(", "));
        }
        Ok(())
    }
}

/// The images of the store and of the rate limit service, this machine's archive and the recipe of
/// the Envoy image in `dist/release`.
fn released() -> Result<[PathBuf; 4]> {
    let architecture = std::env::consts::ARCH;
    let names = [
        format!("quotagate-store-{VERSION}.oci.tar"),
        format!("quotagate-ratelimit-{VERSION}.oci.tar"),
        format!("quotagate-{VERSION}-linux-{architecture}.tar.gz"),
        "envoy.Dockerfile".to_owned(),
    ];
    let files = names.map(|name| paths::release().join(name));
    for file in &files {
        if !file.is_file() {
            bail!(
                "{} is not there: run `cargo xtask package --architecture {architecture}`",
                file.display()
            );
        }
    }
    Ok(files)
}

/// The images that others publish: those of the services that are always there, and the one that
/// ours of Envoy begins with.
fn published(recipe: &Path) -> Result<Vec<String>> {
    let file = yaml::read(&paths::root().join("docker-compose.yml"))?;
    let services = file.get("services").and_then(|services| services.as_object());
    let mut images: Vec<String> = Vec::new();
    for service in services.context("docker-compose.yml has no services")?.values() {
        // The YAML parser does not resolve merge keys.
        let merged = service.get("<<").and_then(|base| base.get("image"));
        let image = service.get("image").or(merged).and_then(|image| image.as_str());
        let always = service.get("profiles").is_none();
        if let Some(image) = image.filter(|image| always && !image.contains('$')) {
            images.push(image.to_owned());
        }
    }
    let recipe = fs::read_to_string(recipe)?;
    images.extend(recipe.lines().filter_map(|line| line.strip_prefix("FROM ")).map(str::to_owned));
    images.sort();
    images.dedup();
    Ok(images)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_image_has_a_stand_in() {
        let images = published(&paths::root().join("docker/envoy.Dockerfile")).unwrap();
        assert_eq!(images.len(), 3, "{images:?}");
        for image in images {
            assert!(stand_in::of(&image).is_some(), "{image}");
        }
    }
}
