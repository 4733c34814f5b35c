//! TLS of the gRPC address.

use std::path::Path;

use quotagate_store::tls::{ServerTls, TlsFiles};
use quotagate_support::tls::{Authority, Holder};

use crate::running::{Start, until};

const RULES: &str =
    "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: year, requests_per_unit: 5}}\n";

fn files(folder: &Path) -> TlsFiles {
    let own = Some((folder.join("tls.crt"), folder.join("tls.key")));
    TlsFiles { own, ..TlsFiles::default() }
}

fn issue(authority: &Authority, folder: &Path, name: &str) {
    let own = authority.issue(&Holder::names(&[name])).unwrap();
    own.write(&folder.join("tls.crt"), &folder.join("tls.key")).unwrap();
}

#[tokio::test]
async fn renewed_certificate_is_served_without_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let authority = Authority::new(root.path(), "authority").unwrap();
    // As Kubernetes mounts a Secret.
    for version in ["..v1", "..v2"] {
        std::fs::create_dir(at(version)).unwrap();
        issue(&authority, &at(version), "service.example");
    }
    std::os::unix::fs::symlink("..v1", at("..data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        std::os::unix::fs::symlink(format!("..data/{name}"), at(name)).unwrap();
    }
    let (mut start, _rules) = Start::with_file(RULES);
    start.tls = Some(files(root.path()));
    let service = start.run().await;
    let trusts = authority.client(None).unwrap();
    let connect = async || service.connect_tls(&trusts, "service.example").await.unwrap();
    let (mut old, first) = connect().await;
    until("the rules", async || old.limit().await == Some(5)).await;

    // A key that does not belong to the certificate is not taken.
    issue(&authority, &at("..v2"), "service.example");
    std::fs::copy(at("..v1/tls.key"), at("..v2/wrong.key")).unwrap();
    std::fs::rename(at("..v2/tls.key"), at("..v2/right.key")).unwrap();
    std::fs::rename(at("..v2/wrong.key"), at("..v2/tls.key")).unwrap();
    std::os::unix::fs::symlink("..v2", at("..new")).unwrap();
    std::fs::rename(at("..new"), at("..data")).unwrap();
    let tls = ServerTls::open(files(root.path())).unwrap_err().to_string();
    assert!(tls.contains("tls.crt cannot be used: "), "{tls}");
    assert_eq!(connect().await.1, first);

    std::fs::rename(at("..v2/right.key"), at("..v2/tls.key")).unwrap();
    until("the renewed certificate", async || connect().await.1 != first).await;
    assert_eq!(old.limit().await, Some(5), "the old connection is still open");
    let plain = service.connect().await;
    let mut plain = plain;
    assert!(!plain.is_open().await, "nothing is answered without TLS");
}

#[tokio::test]
async fn only_clients_with_the_right_authority_and_name_are_answered() {
    let root = tempfile::tempdir().unwrap();
    let [authority, stranger] =
        ["authority", "stranger"].map(|name| Authority::new(root.path(), name).unwrap());
    issue(&authority, root.path(), "service.example");
    let (mut start, _rules) = Start::with_file(RULES);
    start.tls = Some(TlsFiles {
        authority: Some(authority.file().to_owned()),
        peer: Some("envoy.shop.example".to_owned()),
        ..files(root.path())
    });
    let service = start.run().await;
    let connect = async |issuer: Option<&Authority>, names: &[&str]| {
        let own = issuer.map(|issuer| issuer.issue(&Holder::names(names)).unwrap());
        let client = authority.client(own.as_ref()).unwrap();
        let connected = service.connect_tls(&client, "service.example").await;
        connected.map(|(client, _)| client)
    };
    let mut client =
        connect(Some(&authority), &["other.example", "envoy.shop.example"]).await.unwrap();
    until("the rules", async || client.limit().await == Some(5)).await;
    assert!(connect(Some(&authority), &["*.shop.example"]).await.is_ok(), "a wildcard");
    assert!(connect(Some(&authority), &["other.example"]).await.is_err(), "a wrong name");
    assert!(connect(Some(&stranger), &["envoy.shop.example"]).await.is_err(), "a wrong authority");
    assert!(connect(None, &[]).await.is_err(), "no certificate");
}

#[test]
fn wrong_files_are_named() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let authority = Authority::new(root.path(), "authority").unwrap();
    issue(&authority, root.path(), "service.example");
    std::fs::write(at("empty"), "").unwrap();
    let [chain, key, empty, absent] = ["tls.crt", "tls.key", "empty", "absent"].map(at);
    let own = |chain: &Path, key: &Path| Some((chain.to_owned(), key.to_owned()));
    let files = |own, authority: Option<&Path>, peer: Option<&str>| TlsFiles {
        own,
        authority: authority.map(Path::to_owned),
        peer: peer.map(str::to_owned),
    };
    for (files, says) in [
        (files(own(&absent, &key), None, None), "absent cannot be read: "),
        (files(own(&empty, &key), None, None), "empty holds no certificate"),
        (files(own(&chain, &empty), None, None), "empty must hold a private key in PEM"),
        (files(own(&chain, &key), Some(&empty), None), "empty holds no certificate"),
        (files(own(&chain, &key), None, Some("a b")), "\"a b\" must be a DNS name"),
    ] {
        let listener = ServerTls::open(files.clone()).unwrap_err().to_string();
        let client = files.check_client().unwrap_err().to_string();
        assert!(listener.contains(says) && client.contains(says), "{listener}, {client}: {says}");
    }
    let none = ServerTls::open(TlsFiles::default()).unwrap_err().to_string();
    assert_eq!(none, "TLS needs a certificate and its private key");
}
