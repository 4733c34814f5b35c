//! The store's image, unpacked and started as a container engine does, without one.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{
    artifacts,
    programs::{needed, run, show},
    store::Store,
};

/// Unpacks the image of this machine's architecture: the root, and how to run it.
fn unpack(folder: &Path) -> Result<Value> {
    let (layout, bundle) = (folder.join("layout"), folder.join("bundle"));
    let image = format!("{}:store", layout.display());
    let mut skopeo = needed("skopeo", "skopeo")?;
    skopeo.args(["--insecure-policy", "copy", "--quiet"]);
    skopeo.arg(format!("oci-archive:{}", artifacts::image("store")?.display()));
    run(skopeo.arg(format!("oci:{image}")))?;
    run(needed("umoci", "umoci")?.args(["unpack", "--image", &image]).arg(&bundle))?;
    Ok(serde_json::from_slice(&fs::read(bundle.join("config.json"))?)?)
}

fn words(process: &Value, field: &str) -> Vec<String> {
    let words = process[field].as_array().into_iter().flatten();
    words.filter_map(Value::as_str).map(str::to_owned).collect()
}

#[test]
fn store_starts_from_its_image_as_its_user_and_counts() {
    let folder = tempfile::tempdir().unwrap();
    let config = unpack(folder.path()).unwrap();
    let process = &config["process"];
    let root = folder.path().join("bundle").join("rootfs");
    // The folder of a test is closed to others; a container's root is not.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), open).unwrap();

    let id = |field: &str| process["user"][field].as_u64().unwrap();
    assert_eq!((id("uid"), id("gid")), (65_532, 65_532));
    let arguments = words(process, "args");
    assert_eq!(arguments, ["/quotagate", "serve"]);
    let environment = words(process, "env");
    assert!(environment.contains(&"QUOTAGATE_LISTEN=0.0.0.0:9180".to_owned()), "{environment:?}");

    let mut command = needed("chroot", "coreutils").unwrap();
    command.env_clear().envs(environment.iter().filter_map(|entry| entry.split_once('=')));
    command.arg(format!("--userspec={}:{}", id("uid"), id("gid"))).arg(&root).args(&arguments);
    let store = Store::start(command).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", store.pid())).unwrap();
    let user = status.lines().find(|line| line.starts_with("Uid:")).context("no user").unwrap();
    assert_eq!(user.split_whitespace().nth(1), Some("65532"));
    show("the store's image, unpacked by umoci", &store.counts_and_stops().unwrap()).unwrap();
}
