//! `quotagate serve` with a Redis that speaks TLS only: trusted and refused certificates, and the
//! log. Processes and certificates are real; each test makes its own authorities.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use quotagate_protocol::MAX_WINDOW_S;
use quotagate_support::http::{self, Client, Request};
use quotagate_support::process::Process;
use quotagate_support::redis::Redis;
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::tls::{Authority, Holder};
use quotagate_support::{ports, rights, tools, wait};
use serde_json::json;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(10);
/// Another process may take a free port before it is bound.
const ATTEMPTS: usize = 5;
const PASSWORD: &str = "s3cret-of-the-shop";
/// The rights of the only user that may log in.
const ALL: &str = "~* &* +@all";

/// The arguments of a Redis with a certificate of `authority` for these names.
fn arguments(authority: &Authority, directory: &Path, names: &[&str]) -> Vec<String> {
    let (certificate, key) = (directory.join("server.pem"), directory.join("server.key"));
    authority.issue(&Holder::names(names)).unwrap().write(&certificate, &key).unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    [
        ("--tls-cert-file", path(&certificate)),
        ("--tls-key-file", path(&key)),
        ("--tls-ca-cert-file", path(authority.file())),
        ("--tls-auth-clients", "no".to_owned()),
    ]
    .into_iter()
    .flat_map(|(option, value)| [option.to_owned(), value])
    .collect()
}

fn new_authority(directory: &TempDir, name: &str) -> Authority {
    Authority::new(directory.path(), name).unwrap()
}

/// A Redis that speaks TLS only.
struct TlsRedis {
    port: u16,
    _process: Process,
}

impl TlsRedis {
    fn start(directory: &Path, authority: &Authority, names: &[&str]) -> Self {
        Self::start_for(directory, authority, names, ALL)
    }

    /// A Redis whose only user has these rights.
    fn start_for(directory: &Path, authority: &Authority, names: &[&str], rights: &str) -> Self {
        Self::start_as(directory, arguments(authority, directory, names), rights)
    }

    /// A Redis with these arguments for TLS.
    fn start_as(directory: &Path, tls: Vec<String>, rights: &str) -> Self {
        let mut attempts = (0..ATTEMPTS).map(|attempt| {
            let port = ports::free().unwrap();
            let mut command = Command::new(tools::redis_server().unwrap());
            command.args([
                "--port",
                "0",
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
            ]);
            command.arg(directory).args(["--tls-port", &port.to_string()]).args(&tls);
            command.args([
                "--user",
                "default",
                "off",
                "--user",
                "shop",
                "on",
                &format!(">{PASSWORD}"),
            ]);
            command.args(rights.split_whitespace());
            let log = directory.join(format!("redis{attempt}.log"));
            let mut process = Process::spawn("Redis with TLS", &mut command, &log).unwrap();
            let up = process.wait_until("its ready line", LIMIT, |process| {
                Ok(process.log().contains("Ready to accept connections").then_some(()))
            });
            match up {
                Ok(()) => Some(Self { port, _process: process }),
                Err(error) if format!("{error:#}").contains("Address already in use") => None,
                Err(error) => panic!("{error:#}"),
            }
        });
        attempts.find_map(|started| started).unwrap()
    }

    fn url(&self, host: &str, password: &str) -> String {
        format!("rediss://shop:{password}@{host}:{}/0", self.port)
    }
}

/// A store that logs everything, and trusts `authority` alone.
fn store(url: &str, authority: &Authority) -> StoreProcess {
    let options = StoreOptions::new(url)
        .program(env!("CARGO_BIN_EXE_quotagate"))
        .arguments(&["--log", "trace"])
        .env("SSL_CERT_FILE", authority.file().to_str().unwrap())
        .env("SSL_CERT_DIR", "");
    StoreProcess::start_with(&options).unwrap()
}

/// Takes one of nine units of the counter `key`, and returns the granted and the used units.
fn reserve(store: &StoreProcess, key: &str) -> (u64, u64) {
    let reservation =
        json!({"key": key, "window_s": MAX_WINDOW_S, "quota": 9, "want": 1, "min": 1});
    let body = json!({"budget_ms": 5000, "reservations": [reservation]}).to_string();
    let request =
        Request::post("/v1/reserve", body.as_bytes()).header("content-type", "application/json");
    let reply = Client::connect(store.port()).unwrap().send(&request).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
    let reply = reply.json().unwrap();
    let number = |field: &str| reply["grants"][0][field].as_u64();
    number("granted").zip(number("used")).unwrap_or_else(|| panic!("{reply}"))
}

fn wait_until_ready(store: &StoreProcess) {
    let ready = wait::until_true("the store is ready", LIMIT, || {
        let reply = http::get(store.admin_port(), "/readyz")?;
        Ok(reply.status == 200 && !reply.text().contains("warnings"))
    });
    ready.unwrap_or_else(|error| panic!("{error:#}\n{}", store.log()));
}

/// Asserts that the store is not ready, that `/readyz` and the log contain `why`, and that neither
/// shows a `password`.
fn assert_refuses(mut store: StoreProcess, why: &str, password: &str) {
    let what = format!("the store is not ready and says {why}");
    let answer = wait::until(&what, LIMIT, || {
        let reply = http::get(store.admin_port(), "/readyz")?;
        assert_eq!(reply.status, 503, "{}\n{}", reply.text(), store.log());
        Ok((reply.text().contains(why)).then(|| reply.text()))
    });
    let answer = answer.unwrap_or_else(|error| panic!("{error:#}\n{}", store.log()));
    store.stop().unwrap();
    let log = store.log();
    let complaint =
        log.lines().find(|line| line.contains("WARN") && line.contains("cannot connect to redis"));
    assert!(complaint.is_some_and(|line| line.contains(why)), "{log}");
    for text in [&answer, &log] {
        assert!(!text.contains(password), "{text}");
    }
}

#[test]
fn the_authority_in_ssl_cert_file_is_trusted() {
    let directory = TempDir::new().unwrap();
    let authority = new_authority(&directory, "authority");
    let redis = TlsRedis::start(directory.path(), &authority, &["localhost", "127.0.0.1"]);
    for (host, used) in [("localhost", 1), ("127.0.0.1", 2)] {
        let mut store = store(&redis.url(host, PASSWORD), &authority);
        wait_until_ready(&store);
        assert_eq!(reserve(&store, "shop:p:{alice}"), (1, used), "by {host}");
        store.stop().unwrap();
        assert!(!store.log().contains(PASSWORD), "{}", store.log());
    }
}

#[test]
fn the_store_counts_with_few_rights_and_shows_no_secret() {
    let directory = TempDir::new().unwrap();
    let authority = new_authority(&directory, "authority");
    let rights = rights::documented().unwrap().one.join(" ");
    let redis = TlsRedis::start_for(directory.path(), &authority, &["localhost"], &rights);
    let [password, token] =
        [("password", PASSWORD), ("token", "t0ken-of-all-the-shop")].map(|(name, secret)| {
            let file = directory.path().join(name);
            fs::write(&file, format!("{secret}\n")).unwrap();
            file.to_str().unwrap().to_owned()
        });
    let options = StoreOptions::new(&format!("rediss://shop@localhost:{}", redis.port))
        .program(env!("CARGO_BIN_EXE_quotagate"))
        .arguments(&["--log", "trace", "--password-file", &password, "--token-file", &token])
        .env("SSL_CERT_FILE", authority.file().to_str().unwrap());
    let mut store = StoreProcess::start_with(&options).unwrap();
    wait_until_ready(&store);
    let reservation =
        json!({"key": "shop:p:{a}", "window_s": MAX_WINDOW_S, "quota": 9, "want": 1, "min": 1});
    let body = json!({"budget_ms": 5000, "reservations": [reservation]}).to_string();
    let mut client = Client::connect(store.port()).unwrap();
    let mut shown = String::new();
    for (token, status) in [("t0ken-of-all-the-shop", 200), ("t0ken-of-all-the-shoq", 401)] {
        let reply =
            client.send(&Request::post("/v1/reserve", body.as_bytes()).bearer(token)).unwrap();
        assert_eq!(reply.status, status, "{}", reply.text());
        shown += &reply.text();
    }
    for path in ["/metrics", "/readyz", "/healthz"] {
        shown += &http::get(store.admin_port(), path).unwrap().text();
    }
    for file in ["cmdline", "environ"] {
        shown +=
            &String::from_utf8_lossy(&fs::read(format!("/proc/{}/{file}", store.pid())).unwrap());
    }
    store.stop().unwrap();
    shown += &store.log();
    assert!(
        shown.contains("connected to redis at localhost") && shown.contains("redis_commands"),
        "{shown}"
    );
    for secret in [PASSWORD, "t0ken-of-the-sho"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn cluster_nodes_are_trusted_in_the_same_way() {
    let directory = TempDir::new().unwrap();
    let authority = new_authority(&directory, "authority");
    let [port, bus] = [(); 2].map(|()| ports::free().unwrap().to_string());
    // The port without TLS is needed to assign slots. Clients with TLS get the other port from the
    // slot map.
    let mut arguments = arguments(&authority, directory.path(), &["localhost", "127.0.0.1"]);
    let cluster = ["--tls-port", &port, "--cluster-enabled", "yes", "--tls-cluster", "yes"];
    arguments.extend(cluster.map(str::to_owned));
    arguments
        .extend(["--cluster-port", &bus, "--cluster-announce-ip", "127.0.0.1"].map(str::to_owned));
    let redis =
        Redis::start_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    let user = ["ACL", "SETUSER", "shop", "on", ">s3cret-of-the-shop", "~*", "&*", "+@all"];
    redis.cli(&user).unwrap();
    redis.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).unwrap();
    let url = format!("rediss-cluster://shop:{PASSWORD}@localhost:{port}");
    let mut store = store(&url, &authority);
    wait_until_ready(&store);
    assert_eq!(reserve(&store, "shop:p:{alice}"), (1, 1));
    store.stop().unwrap();
    let log = store.log();
    assert!(log.contains(&format!("connected to redis at 127.0.0.1:{port}")), "over TLS: {log}");
    assert!(!log.contains(PASSWORD), "{log}");
}

#[test]
fn a_certificate_of_an_unknown_authority_is_refused() {
    let directory = TempDir::new().unwrap();
    let authority = new_authority(&directory, "authority");
    let stranger = new_authority(&directory, "stranger");
    let redis = TlsRedis::start(directory.path(), &stranger, &["localhost"]);
    let url = redis.url("localhost", PASSWORD);
    assert_refuses(store(&url, &authority), "UnknownIssuer", PASSWORD);
    // Only the authority was the reason.
    wait_until_ready(&store(&url, &stranger));
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    let directory = TempDir::new().unwrap();
    let authority = new_authority(&directory, "authority");
    let redis = TlsRedis::start(directory.path(), &authority, &["redis.example"]);
    let store = store(&redis.url("localhost", PASSWORD), &authority);
    assert_refuses(store, "certificate not valid for name", PASSWORD);
}

#[test]
fn server_name_replaces_the_host_in_the_check() {
    let directory = TempDir::new().unwrap();
    let authority = new_authority(&directory, "authority");
    let redis = TlsRedis::start(directory.path(), &authority, &["redis.example"]);
    let url = format!("{}?server_name=redis.example", redis.url("127.0.0.1", PASSWORD));
    let named = store(&url, &authority);
    wait_until_ready(&named);
    assert_eq!(reserve(&named, "shop:p:{alice}"), (1, 1));
    let other = format!("{}?server_name=other.example", redis.url("127.0.0.1", PASSWORD));
    assert_refuses(store(&other, &authority), "certificate not valid for name", PASSWORD);
}

#[test]
fn authorities_that_the_url_names_are_trusted_instead_of_the_systems() {
    let directory = TempDir::new().unwrap();
    let [authority, other] = ["authority", "other"].map(|name| new_authority(&directory, name));
    let redis = TlsRedis::start(directory.path(), &authority, &["localhost"]);
    let url = |authority: &Authority| {
        format!("{}?ca_cert={}", redis.url("localhost", PASSWORD), authority.file().display())
    };
    wait_until_ready(&store(&url(&authority), &other));
    let refused = store(&url(&other), &authority);
    let refused = wait::until_true("it is refused", LIMIT, || {
        Ok(refused.log().contains("cannot connect to redis"))
    });
    refused.unwrap();
}

#[test]
fn a_client_certificate_is_shown_on_request() {
    let directory = TempDir::new().unwrap();
    let authority = new_authority(&directory, "authority");
    let mut tls = arguments(&authority, directory.path(), &["localhost"]);
    *tls.last_mut().unwrap() = "yes".to_owned();
    let redis = TlsRedis::start_as(directory.path(), tls, ALL);
    let [chain, key] = ["store.pem", "store.key"].map(|name| directory.path().join(name));
    authority.issue(&Holder::names(&["store"])).unwrap().write(&chain, &key).unwrap();
    let url = redis.url("localhost", PASSWORD);
    let shown = format!("{url}?client_cert={}&client_key={}", chain.display(), key.display());
    let with = store(&shown, &authority);
    wait_until_ready(&with);
    assert_eq!(reserve(&with, "shop:p:{alice}"), (1, 1));
    // The server ends the connection of a client without one. The error depends on its TLS library.
    let without = store(&url, &authority);
    let refused = wait::until_true("it is refused", LIMIT, || {
        Ok(without.log().contains("cannot connect to redis"))
    });
    refused.unwrap();
    assert_eq!(http::get(without.admin_port(), "/readyz").unwrap().status, 503);
}

#[test]
fn a_wrong_password_is_reported_and_not_shown() {
    let directory = TempDir::new().unwrap();
    let authority = new_authority(&directory, "authority");
    let redis = TlsRedis::start(directory.path(), &authority, &["localhost"]);
    let store = store(&redis.url("localhost", "gu3ssed-wrong"), &authority);
    assert_refuses(store, "Password authentication failed", "gu3ssed-wrong");
}
