//! The systemd unit of the store.

use std::fs;

use quotagate_support::{
    http::{Client, Request},
    store::{StoreOptions, StoreProcess},
};

use super::text;

/// Covers all settings except those that only systemd itself can apply.
#[test]
fn store_runs_as_the_systemd_unit_starts_it() {
    let unit = text("systemd/quotagate.service");
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/quotagate serve "))
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    for credential in unit.lines().filter_map(|line| line.strip_prefix("LoadCredential=")) {
        let name = credential.split(':').next().unwrap();
        fs::write(directory.path().join(name), format!("s3cret-{name}-of-a-test\n")).unwrap();
    }
    let here = directory.path().display().to_string();
    let line = line.replace("${CREDENTIALS_DIRECTORY}", &here).replace("/run/quotagate", &here);
    let mut words = line.split_whitespace();
    let (Some("--listen"), Some(listen)) = (words.next(), words.next()) else { panic!("{line}") };
    let arguments: Vec<&str> = words.collect();
    let options =
        StoreOptions::new("redis://quotagate@127.0.0.1:1/0").listen(listen).arguments(&arguments);
    let mut store = StoreProcess::start_with(&options).unwrap();
    let socket = directory.path().join("store.sock");
    let reply =
        Client::connect_unix(&socket).unwrap().send(&Request::post("/v1/reserve", b"{}")).unwrap();
    assert_eq!(reply.status, 401, "the token is required");
    for (name, call, look) in [("token", 200, 401), ("admin-token", 401, 200)] {
        let token = format!("s3cret-{name}-of-a-test");
        let body = br#"{"budget_ms": 5000, "reservations": []}"#;
        let mut client = Client::connect_unix(&socket).unwrap();
        let called =
            client.send(&Request::post("/v1/reserve", body).bearer(&token)).unwrap().status;
        let mut client = Client::connect(store.admin_port()).unwrap();
        let looked = client.send(&Request::get("/v1/top").bearer(&token)).unwrap().status;
        assert_eq!((called, looked), (call, look), "{name}");
    }
    store.stop().unwrap();
    assert!(!socket.exists());
}

#[test]
fn systemd_files_create_the_group_of_the_unit() {
    let read = |name: &str| text(&format!("systemd/{name}"));
    let unit = read("quotagate.service");
    let group = unit.lines().find_map(|line| line.strip_prefix("Group=")).unwrap();
    let created = read("quotagate-callers.conf");
    assert!(created.lines().any(|line| line == format!("g {group} - -")), "{group}: {created}");
}
