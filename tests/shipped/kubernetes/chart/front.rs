//! The Envoy that accepts proxies with a certificate in front of the store: it is the shipped one,
//! and takes up a renewed Secret.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use quotagate_support::{
    envoy::{Envoy, LOG_LEVELS},
    http::{Client, Request},
    paths,
    store::{StoreOptions, StoreProcess},
    tls::{Authority, Holder},
    wait, yaml,
};
use serde_json::{Value, json};

use super::{example, objects, render};

const PROXY: &str = "proxy.internal";

/// The objects of a store with `store.tls`.
fn rendered() -> Vec<Value> {
    let more = json!({
        "store": {"tls": {"enabled": true, "existingSecret": "tls", "callers": [PROXY]}},
        "policy": {"store": {"cluster": "quota_store"}},
    });
    objects(&render(&[example("envoy-gateway.yaml", more)]).remove(0).unwrap())
}

fn of<'a>(objects: &'a [Value], kind: &str, end: &str) -> &'a Value {
    let found = |object: &&Value| {
        object["kind"] == kind && object["metadata"]["name"].as_str().unwrap().ends_with(end)
    };
    objects.iter().find(found).unwrap()
}

#[test]
fn front_of_the_store_is_the_shipped_one() {
    let objects = rendered();
    let data = &of(&objects, "ConfigMap", "-front")["data"];
    let parsed = |name: &str| yaml::parse(data[name].as_str().unwrap()).unwrap();
    let (mut front, authorities) = (parsed("front.yaml"), parsed("authorities.yaml"));
    let file = paths::root().join("envoy/store_front.yaml");
    let mut shipped = yaml::read(&file).unwrap();
    front.as_object_mut().unwrap().remove("node");
    let context = "/static_resources/listeners/0/filter_chains/0/transport_socket/typed_config";
    let [_, shipped_tls] = [&mut front, &mut shipped]
        .map(|config| config.pointer_mut(context).unwrap()["common_tls_context"].take());
    // The certificates come by SDS here.
    assert_eq!(front, shipped);
    assert_eq!(
        authorities["resources"][0]["validation_context"]["match_typed_subject_alt_names"],
        shipped_tls["validation_context"]["match_typed_subject_alt_names"]
    );
    // Kubernetes ends this container after the store has drained.
    let pod = &of(&objects, "Deployment", "-store")["spec"]["template"]["spec"];
    let container = &pod["initContainers"][0];
    assert_eq!(container["restartPolicy"], "Always");
    assert_eq!(
        container["args"],
        json!(["--config-path", "/etc/front/front.yaml", "--concurrency", "2"])
    );
    assert_eq!(container["readinessProbe"]["tcpSocket"]["port"], "tls-store");
    // Older clusters find no endpoint by the name of a port in a native sidecar.
    let port = &of(&objects, "Service", "-store")["spec"]["ports"][0];
    assert_eq!((&port["port"], &port["targetPort"]), (&json!(9443), &json!(9443)));
}

/// A Secret as the kubelet mounts it: its files are links into a folder that a link `..data` names.
struct MountedSecret {
    folder: PathBuf,
}

impl MountedSecret {
    /// Replaces the files as the kubelet does: in one step, by renaming a link.
    fn write(&self, version: u32, authority: &Authority) -> Result<()> {
        let name = format!("..{version}");
        let data = self.folder.join(&name);
        fs::create_dir_all(&data)?;
        let certificate = authority.issue(&Holder::names(&["localhost"]))?;
        certificate.write(&data.join("tls.crt"), &data.join("tls.key"))?;
        fs::copy(authority.file(), data.join("ca.crt"))?;
        symlink(name, self.folder.join("..data_tmp"))?;
        fs::rename(self.folder.join("..data_tmp"), self.folder.join("..data"))?;
        for file in ["tls.crt", "tls.key", "ca.crt"] {
            let link = self.folder.join(file);
            if !link.is_symlink() {
                symlink(Path::new("..data").join(file), link)?;
            }
        }
        Ok(())
    }
}

#[test]
fn renewed_certificate_and_authorities_are_taken_up_without_a_restart() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    let secret = MountedSecret { folder: path("tls") };
    fs::create_dir_all(path("front"))?;
    let [old, new] = ["old", "new"].map(|name| Authority::new(directory.path(), name));
    let (old, new) = (old?, new?);
    secret.write(1, &old)?;
    let text = |text: &str| {
        [("/etc/envoy/tls", "tls"), ("/etc/front", "front"), ("/run/quotagate/", "")]
            .iter()
            .fold(text.to_owned(), |text, (from, to)| {
                text.replace(from, path(to).to_str().unwrap())
            })
    };
    let objects = rendered();
    let data = of(&objects, "ConfigMap", "-front")["data"].as_object().context("no data")?;
    for (name, content) in data {
        fs::write(path("front").join(name), text(content.as_str().context("no text")?))?;
    }
    let socket = format!("unix:{}", path("store.sock").display());
    let _store = StoreProcess::start_with(&StoreOptions::new("memory:").listen(&socket))?;
    let mut config = yaml::read(&path("front").join("front.yaml"))?;
    let loopback = json!({"socket_address": {"address": "127.0.0.1", "port_value": 0}});
    *yaml::at(&mut config, "/static_resources/listeners/0/address")? = loopback.clone();
    config["admin"] = json!({"address": loopback});
    let front = Envoy::start_config(&config, 1, LOG_LEVELS)?;
    // A client that trusts servers of one authority, and shows a certificate of one.
    let status = |trusted: &Authority, shown: &Authority| -> Result<u16> {
        let own = shown.issue(&Holder::names(&[PROXY]))?;
        let mut client = Client::connect_tls(front.port(), &trusted.client(Some(&own))?)?;
        Ok(client.send(&Request::get("/healthz"))?.status)
    };
    assert_eq!(status(&old, &old)?, 200);
    assert!(status(&old, &new).is_err(), "the new authority is not trusted yet");
    secret.write(2, &new)?;
    wait::until_true("the renewed certificate", Duration::from_secs(30), || {
        Ok(status(&new, &new).is_ok_and(|status| status == 200))
    })?;
    assert!(status(&new, &old).is_err(), "the old authority is trusted no longer");
    Ok(())
}
