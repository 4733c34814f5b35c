//! The store's image, unpacked and started.

use std::{
    fs::{self, File},
    io::Write,
};

use quotagate_support::{
    ports,
    redis::Redis,
    tls::{Authority, Holder},
};

use crate::{
    programs::show,
    store::Store,
    unpacked::{Unpacked, user},
};

#[test]
fn store_starts_from_its_image_as_its_user_and_counts() {
    let image = Unpacked::new("store").unwrap();
    assert_eq!((image.id("uid"), image.id("gid")), (Some(65_532), Some(65_532)));
    assert_eq!(image.words("args"), ["/quotagate", "serve"]);
    let environment = image.words("env");
    assert!(environment.contains(&"QUOTAGATE_LISTEN=0.0.0.0:9180".to_owned()), "{environment:?}");
    let store = Store::start(image.command().unwrap(), "memory:").unwrap();
    assert_eq!(user(store.pid()).unwrap(), "65532");
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

    let image = Unpacked::new("store").unwrap();
    let trusted = image.root().join("etc/ssl/certs/ca-certificates.crt");
    let mut trusted = File::options().append(true).open(trusted).unwrap();
    trusted.write_all(&fs::read(ca).unwrap()).unwrap();
    let url = format!("rediss://127.0.0.1:{port}");
    let store = Store::start(image.command().unwrap(), &url).unwrap();
    show("the store's image, with Redis over TLS", &store.counts_and_stops().unwrap()).unwrap();
}
