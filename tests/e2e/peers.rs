//! Clients identified by their certificate, over real mutual TLS.

use anyhow::Result;
use quotagate_support::http::{Client, Request};
use quotagate_support::tls::{Authority, Certificate, Holder};
use rcgen::DnType;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rig::{Rig, document, one_each};

const CART: &str = "spiffe://example.org/ns/shop/sa/cart";

struct Peers {
    rig: Rig,
    authority: Authority,
    _directory: TempDir,
}

impl Peers {
    fn start() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let authority = Authority::new(directory.path(), "clients")?;
        let listener = authority.listener()?;
        let rig = Rig::start_with(policies(), |options| options.edit(listener))?;
        Ok(Self { rig, authority, _directory: directory })
    }

    fn status(&self, path: &str, own: &Certificate) -> Result<u16> {
        let mut client =
            Client::connect_tls(self.rig.envoy.port(), &self.authority.client(Some(own))?)?;
        Ok(client.send(&Request::get(path))?.status)
    }
}

fn policies() -> Value {
    let names = ["uri", "dns", "subject", "first"];
    let mut document = document(names.iter().map(|name| one_each(name, &[name])).collect());
    document["identities"] = json!({
        "uri": [{"peer": {"san": "uri"}}],
        "dns": [{"peer": {"san": "dns"}}],
        "subject": [{"peer": {"subject": true}}],
        // As in mtls.yaml.
        "first": [{"peer": {"san": "uri"}}, {"peer": {"san": "dns"}}, {"peer": {"subject": true}}]
    });
    document
}

#[test]
fn certificate_identifies_its_holder() -> Result<()> {
    let peers = Peers::start()?;
    let named = |holder: Holder, name: &str| {
        let holder =
            holder.subject(DnType::OrganizationName, "Example").subject(DnType::CommonName, name);
        peers.authority.issue(&holder)
    };
    let cart = named(Holder::names(&["cart.example.org"]).uri(CART), "cart")?;
    // Another certificate of the same holder, for example after a renewal.
    let renewed = named(Holder::names(&["cart.example.org"]).uri(CART), "cart")?;
    let users = named(
        Holder::names(&["users.example.org"]).uri("spiffe://example.org/ns/shop/sa/users"),
        "users",
    )?;
    for path in ["/uri", "/dns", "/subject"] {
        let statuses = [
            peers.status(path, &cart)?,
            peers.status(path, &renewed)?,
            peers.status(path, &users)?,
        ];
        assert_eq!(statuses, [200, 429, 200], "{path}");
    }
    let partitions = |policy: &str| peers.rig.partitions(policy);
    assert_eq!(partitions("uri")?[0], format!("peer.uri={CART}"));
    assert_eq!(partitions("dns")?, ["peer.dns=cart.example.org", "peer.dns=users.example.org"]);
    let subjects = partitions("subject")?;
    assert!(
        subjects
            .iter()
            .all(|subject| subject.starts_with("peer.subject=") && subject.contains("CN%3D")),
        "{subjects:?}"
    );
    Ok(())
}

#[test]
fn first_name_of_a_certificate_identifies_the_holder() -> Result<()> {
    let peers = Peers::start()?;
    let authority = &peers.authority;
    let nobody = authority.issue(&Holder::default())?;
    assert_eq!(peers.status("/uri", &nobody)?, 401);
    assert_eq!(peers.status("/first", &nobody)?, 401);
    let by_dns = authority
        .issue(&Holder::names(&["cart.example.org"]).subject(DnType::CommonName, "cart"))?;
    assert_eq!(peers.status("/uri", &by_dns)?, 401);
    assert_eq!(peers.status("/first", &by_dns)?, 200);
    let by_subject = authority.issue(&Holder::default().subject(DnType::CommonName, "cart"))?;
    assert_eq!(peers.status("/first", &by_subject)?, 200);
    assert_eq!(
        peers.rig.partitions("first")?,
        ["peer.dns=cart.example.org", "peer.subject=CN%3Dcart"]
    );
    Ok(())
}

#[test]
fn plain_connections_have_no_peer_whatever_their_headers_claim() -> Result<()> {
    let rig = Rig::start(policies())?;
    let forged = Request::get("/uri").header("x-forwarded-client-cert", format!("URI={CART}"));
    assert_eq!(rig.statuses(&[Request::get("/uri"), forged])?, [401, 401]);
    Ok(())
}
