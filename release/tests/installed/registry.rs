//! A registry on loopback, and skopeo, which copies images to it and from it.

use std::{fs, time::Duration};

use anyhow::{Result, ensure};
use oci_spec::image::Digest;
use quotagate_support::{
    http::{self, Client, Request, Response},
    ports,
    process::Process,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    artifacts,
    programs::{needed, run, show},
};

const START: Duration = Duration::from_secs(20);
/// All images of a release.
const IMAGES: [&str; 6] =
    ["store", "ratelimit", "filter", "filter-artifact", "filter-bodies", "filter-bodies-artifact"];

/// A running registry, ended when dropped.
pub struct Registry {
    port: u16,
    // Ended before its folder is removed.
    _process: Process,
    directory: TempDir,
}

impl Registry {
    /// Starts one on a free port, with an empty folder.
    pub fn start() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let port = ports::free()?;
        // A registry reads JSON, because that is YAML, too.
        let config = json!({
            "version": 0.1,
            "storage": {"filesystem": {"rootdirectory": directory.path().join("images")}},
            "http": {"addr": format!("127.0.0.1:{port}")},
        });
        let file = directory.path().join("config.yml");
        fs::write(&file, config.to_string())?;
        let mut command = needed("docker-registry", "docker-registry")?;
        command.arg("serve").arg(&file);
        let log = directory.path().join("log");
        let mut process = Process::spawn("docker-registry", &mut command, &log)?;
        process.wait_until("its answer", START, |_| {
            Ok((http::get(port, "/v2/")?.status == 200).then_some(()))
        })?;
        Ok(Self { port, directory, _process: process })
    }

    /// Pushes an OCI archive under the name and version of the release. `options` are those of
    /// `skopeo copy`.
    pub fn push(&self, name: &str, options: &[&str]) -> Result<()> {
        let mut skopeo = skopeo()?;
        skopeo.args(["--dest-tls-verify=false", "--all"]).args(options);
        skopeo.arg(format!("oci-archive:{}", artifacts::image(name)?.display()));
        run(skopeo.arg(self.url(name))).map(drop)
    }

    /// Pulls an image into an OCI archive, and returns its digest.
    fn pull(&self, name: &str) -> Result<Digest> {
        let file = self.directory.path().join(format!("{name}.oci.tar"));
        let mut skopeo = skopeo()?;
        skopeo.args(["--src-tls-verify=false", "--all", "--preserve-digests"]).arg(self.url(name));
        run(skopeo.arg(format!("oci-archive:{}", file.display())))?;
        artifacts::digest(&file)
    }

    fn url(&self, name: &str) -> String {
        format!("docker://127.0.0.1:{}/quotagate-{name}:{}", self.port, artifacts::VERSION)
    }

    /// A manifest, by its tag or digest.
    pub fn manifest(&self, name: &str, reference: &str, accept: &str) -> Result<Response> {
        let path = format!("/v2/quotagate-{name}/manifests/{reference}");
        self.send(&Request::get(&path).header("accept", accept))
    }

    /// A blob.
    pub fn blob(&self, name: &str, digest: &str) -> Result<Vec<u8>> {
        let path = format!("/v2/quotagate-{name}/blobs/{digest}");
        self.send(&Request::get(&path)).map(|response| response.body)
    }

    /// Puts a manifest of blobs that the registry has already.
    pub fn put(&self, name: &str, tag: &str, media_type: &str, manifest: &Value) -> Result<()> {
        let body = manifest.to_string();
        let path = format!("/v2/quotagate-{name}/manifests/{tag}");
        let request = Request::new("PUT", &path)
            .header("content-type", media_type)
            .header("content-length", body.len().to_string());
        self.send(&request.body(body.as_bytes())).map(drop)
    }

    fn send(&self, request: &Request) -> Result<Response> {
        let response = Client::connect(self.port)?.send(request)?;
        let status = response.status;
        ensure!(status / 100 == 2, "the registry answers {status}: {}", response.text());
        Ok(response)
    }
}

/// `skopeo copy`. Without a policy of its own it would refuse to run.
fn skopeo() -> Result<std::process::Command> {
    let mut skopeo = needed("skopeo", "skopeo")?;
    skopeo.args(["--insecure-policy", "copy", "--quiet"]);
    Ok(skopeo)
}

#[test]
fn every_image_is_pushed_and_pulled_unchanged() {
    let registry = Registry::start().unwrap();
    let mut printed = String::new();
    for name in IMAGES {
        let digest = artifacts::digest(&artifacts::image(name).unwrap()).unwrap();
        registry.push(name, &["--preserve-digests"]).unwrap();
        assert_eq!(registry.pull(name).unwrap(), digest, "{name}");
        printed.push_str(&format!("quotagate-{name} {digest}\n"));
    }
    show("images, pushed to docker-registry and pulled by skopeo", &printed).unwrap();
}
