//! The store's image, unpacked and started as a container engine does, without one.

use std::{
    fs::{self, File, Permissions},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::Command,
};

use anyhow::{Context, Result};
use quotagate_support::{
    ports,
    redis::Redis,
    tls::{Authority, Holder},
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    artifacts,
    programs::{needed, run, show},
    store::Store,
};

/// An unpacked image.
struct Unpacked {
    folder: TempDir,
    /// How an engine would run it: `process` of the runtime specification.
    process: Value,
}

impl Unpacked {
    /// The image of this machine's architecture.
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (layout, bundle) = (folder.path().join("layout"), folder.path().join("bundle"));
        let image = format!("{}:store", layout.display());
        let mut skopeo = needed("skopeo", "skopeo")?;
        skopeo.args(["--insecure-policy", "copy", "--quiet"]);
        skopeo.arg(format!("oci-archive:{}", artifacts::image("store")?.display()));
        run(skopeo.arg(format!("oci:{image}")))?;
        run(needed("umoci", "umoci")?.args(["unpack", "--image", &image]).arg(&bundle))?;
        // The folder of a test is closed to others. The root of a container is not.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        let config: Value = serde_json::from_slice(&fs::read(bundle.join("config.json"))?)?;
        Ok(Self { folder, process: config["process"].clone() })
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("bundle").join("rootfs")
    }

    fn words(&self, field: &str) -> Vec<String> {
        let words = self.process[field].as_array().into_iter().flatten();
        words.filter_map(Value::as_str).map(str::to_owned).collect()
    }

    fn id(&self, field: &str) -> Option<u64> {
        self.process["user"][field].as_u64()
    }

    /// Its command, with the user and the environment that the image names.
    fn command(&self) -> Result<Command> {
        let mut command = needed("chroot", "coreutils")?;
        let user = self.id("uid").zip(self.id("gid"));
        let (user, group) = user.context("no user")?;
        command.arg(format!("--userspec={user}:{group}")).arg(self.root());
        command.args(self.words("args")).env_clear();
        let environment = self.words("env");
        command.envs(environment.iter().filter_map(|entry| entry.split_once('=')));
        Ok(command)
    }
}

#[test]
fn store_starts_from_its_image_as_its_user_and_counts() {
    let image = Unpacked::new().unwrap();
    assert_eq!((image.id("uid"), image.id("gid")), (Some(65_532), Some(65_532)));
    assert_eq!(image.words("args"), ["/quotagate", "serve"]);
    let environment = image.words("env");
    assert!(environment.contains(&"QUOTAGATE_LISTEN=0.0.0.0:9180".to_owned()), "{environment:?}");
    let store = Store::start(image.command().unwrap(), "memory:").unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", store.pid())).unwrap();
    let user = status.lines().find(|line| line.starts_with("Uid:")).context("no user").unwrap();
    assert_eq!(user.split_whitespace().nth(1), Some("65532"));
    show("the store's image, unpacked by umoci", &store.counts_and_stops().unwrap()).unwrap();
}

#[test]
fn store_trusts_the_certificates_in_its_image() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let authority = Authority::new(directory.path(), "ca").unwrap();
    let certificate = authority.issue(&Holder::names(&["127.0.0.1"])).unwrap();
    certificate.write(&file("redis.pem"), &file("redis.key")).unwrap();
    let port = ports::free().unwrap().to_string();
    let [ca, pem, key] = ["ca.pem", "redis.pem", "redis.key"].map(file);
    let arguments = ["--tls-port", &port, "--tls-auth-clients", "no", "--tls-ca-cert-file"];
    let files = [&ca, &pem, &key].map(|file| file.to_str().unwrap());
    let mut arguments = arguments.to_vec();
    arguments.extend([files[0], "--tls-cert-file", files[1], "--tls-key-file", files[2]]);
    let _redis = Redis::start_with(&arguments).unwrap();

    let image = Unpacked::new().unwrap();
    let trusted = image.root().join("etc/ssl/certs/ca-certificates.crt");
    let mut trusted = File::options().append(true).open(trusted).unwrap();
    trusted.write_all(&fs::read(ca).unwrap()).unwrap();
    let url = format!("rediss://127.0.0.1:{port}");
    let store = Store::start(image.command().unwrap(), &url).unwrap();
    show("the store's image, with Redis over TLS", &store.counts_and_stops().unwrap()).unwrap();
}
