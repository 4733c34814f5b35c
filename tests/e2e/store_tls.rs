//! Mutual TLS between proxies and the store, through an Envoy in front of the store: the shipped
//! files with certificates that the test makes.

use std::path::Path;

use anyhow::Result;
use quotagate_support::envoy::{Envoy, EnvoyOptions, LOG_LEVELS};
use quotagate_support::http::{Client, Request};
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::tls::{Authority, Certificate, Holder};
use quotagate_support::upstream::Upstream;
use quotagate_support::{paths, yaml};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rig::{document, per_caller};

const STORE: &str = "quota-store.internal";
const PROXY: &str = "proxy.internal";

/// A shipped file, with its certificates and socket in `directory`.
fn shipped(name: &str, directory: &Path) -> Result<Value> {
    let text = yaml::read(&paths::root().join("envoy").join(name))?.to_string();
    let directory = directory.display().to_string();
    let text = text.replace("/etc/envoy/tls", &directory).replace("/run/quotagate", &directory);
    Ok(serde_json::from_str(&text)?)
}

fn loopback(port: u16) -> Value {
    json!({"socket_address": {"address": "127.0.0.1", "port_value": port}})
}

/// A store behind an Envoy that admits only proxies with a certificate of one authority.
struct Front {
    front: Envoy,
    _store: StoreProcess,
    authority: Authority,
    stranger: Authority,
    directory: TempDir,
}

impl Front {
    /// Starts with a store certificate for these names. If `trusted`, the authority that proxies
    /// trust signs it, else another.
    fn start(names: &[&str], trusted: bool) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = |name: &str| directory.path().join(name);
        let authority = Authority::new(directory.path(), "authority")?;
        let stranger = Authority::new(directory.path(), "stranger")?;
        for trusted in ["proxy-authorities.pem", "store-authorities.pem"] {
            std::fs::copy(authority.file(), path(trusted))?;
        }
        let issuer = if trusted { &authority } else { &stranger };
        issuer.issue(&Holder::names(names))?.write(&path("store.pem"), &path("store.key"))?;
        let socket = format!("unix:{}", path("store.sock").display());
        let store = StoreProcess::start_with(&StoreOptions::new("memory:").listen(&socket))?;
        let mut config = shipped("store_front.yaml", directory.path())?;
        *yaml::at(&mut config, "/static_resources/listeners/0/address")? = loopback(0);
        config["admin"] = json!({"address": loopback(0)});
        let front = Envoy::start_config(&config, 1, LOG_LEVELS)?;
        Ok(Self { front, _store: store, authority, stranger, directory })
    }

    /// The statuses of four requests under a quota of three, through a proxy with this certificate.
    fn through_a_proxy_with(&self, own: &Certificate) -> Result<[u16; 4]> {
        let path = |name: &str| self.directory.path().join(name);
        own.write(&path("proxy.pem"), &path("proxy.key"))?;
        let mut cluster = shipped("quota_store_tls.yaml", self.directory.path())?[0].take();
        let endpoint = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address";
        *yaml::at(&mut cluster, endpoint)? = loopback(self.front.port());
        cluster["type"] = json!("STATIC");
        let upstream = Upstream::start()?;
        let mut document = document(json!([per_caller(3)]));
        document["store"]["on_failure"] = json!("deny");
        let options =
            EnvoyOptions::new(upstream.port(), 1).document(document).edit(move |config| {
                let clusters = yaml::at(config, "/static_resources/clusters")?;
                *yaml::named(clusters, "quota_store")? = cluster.clone();
                Ok(())
            });
        let envoy = Envoy::start(&options)?;
        let mut client = Client::connect(envoy.port())?;
        let mut status = || Ok::<_, anyhow::Error>(client.send(&Request::get("/"))?.status);
        Ok([status()?, status()?, status()?, status()?])
    }
}

#[test]
fn only_proxies_with_a_certificate_count() -> Result<()> {
    let front = Front::start(&[STORE, "localhost"], true)?;
    let proxy = Holder::names(&[PROXY]);
    let other = front.authority.issue(&Holder::names(&["other.internal"]))?;
    let strange = front.stranger.issue(&proxy)?;
    for (own, whose) in [(&other, "another holder's"), (&strange, "another authority's")] {
        assert_eq!(front.through_a_proxy_with(own)?, [503; 4], "{whose}");
    }
    let own = front.authority.issue(&proxy)?;
    assert_eq!(front.through_a_proxy_with(&own)?, [200, 200, 200, 429]);

    let connect = |own| Client::connect_tls(front.front.port(), &front.authority.client(own)?);
    let asked = ["/v1/reserve", "/v1/telemetry", "/healthz", "/v1/reserve/", "/metrics", "/"];
    let statuses = asked.map(|path| {
        Ok::<_, anyhow::Error>(connect(Some(&own))?.send(&Request::post(path, b"{}"))?.status)
    });
    let statuses = statuses.into_iter().collect::<Result<Vec<_>>>()?;
    assert_eq!(
        statuses,
        [400, 400, 405, 404, 404, 404],
        "only calls, reports and health checks pass"
    );
    assert!(
        connect(None)?.send(&Request::post("/v1/reserve", b"{}")).is_err(),
        "without a certificate"
    );
    Ok(())
}

#[test]
fn proxy_rejects_a_store_with_another_certificate() -> Result<()> {
    for (name, trusted) in [("other.internal", true), (STORE, false)] {
        let front = Front::start(&[name], trusted)?;
        let own = front.authority.issue(&Holder::names(&[PROXY]))?;
        assert_eq!(front.through_a_proxy_with(&own)?, [503; 4], "{name}");
    }
    Ok(())
}
