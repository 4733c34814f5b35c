//! `quotagate health` against a real store and against servers that are none.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};

use quotagate_support::cluster::Cluster;
use quotagate_support::ports;
use quotagate_support::store::{StoreOptions, StoreProcess};

fn start(options: &StoreOptions) -> StoreProcess {
    StoreProcess::start_with(&options.clone().program(env!("CARGO_BIN_EXE_quotagate"))).unwrap()
}

/// The exit status and both outputs of `quotagate health ARGUMENTS`.
fn health(admin: Option<&str>, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quotagate"));
    command.arg("health").args(arguments).env_clear();
    let Output { status, stdout, stderr } =
        command.envs(admin.map(|admin| ("QUOTAGATE_ADMIN", admin))).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Answers one request.
fn answer(mut stream: impl Read + Write, status: &str) {
    let _ = stream.read(&mut [0; 4096]).unwrap();
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").unwrap();
}

/// The address of a server that answers one request with this status.
fn server(status: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || answer(listener.accept().unwrap().0, status));
    address
}

#[test]
fn a_store_that_counts_is_healthy_and_ready() {
    let store = start(&StoreOptions::new("memory:").admin("0.0.0.0:0"));
    // The variable of `quotagate serve` in the same container works unchanged.
    let address = format!("0.0.0.0:{}", store.admin_port());
    for arguments in [&[][..], &["--ready"], &[&address]] {
        let done = health(Some(&address), arguments);
        assert_eq!(done, (0, "ok\n".to_owned(), String::new()), "{arguments:?}");
    }
    let url = format!("http://127.0.0.1:{}/readyz?partial", store.admin_port());
    assert_eq!(health(None, &[&url]).0, 0);
}

#[test]
fn a_unix_socket_is_asked_too() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || answer(listener.accept().unwrap().0, "200 OK"));
    let address = format!("unix:{}", socket.display());
    assert_eq!(health(Some(&address), &["--ready"]).0, 0);
}

#[test]
fn a_store_that_cannot_count_is_healthy_and_not_ready() {
    let cluster = Cluster::unformed(&[]).unwrap();
    let store = start(&StoreOptions::new(&format!("redis://127.0.0.1:{}", cluster.ports()[0])));
    let address = format!("127.0.0.1:{}", store.admin_port());
    assert_eq!(health(Some(&address), &[]).0, 0);
    let (status, out, error) = health(Some(&address), &["--ready"]);
    assert_eq!((status, out.as_str()), (1, ""), "{error}");
    assert!(error.starts_with(&format!("quotagate: {address}: not ready: ")), "{error}");
}

#[test]
fn only_an_answer_of_200_is_healthy() {
    let free = format!("127.0.0.1:{}", ports::free().unwrap());
    for (url, status, says) in [
        (format!("http://{}/ready", server("200 OK")), 0, ""),
        (format!("http://{}/ready", server("204 No Content")), 1, "answered 204"),
        (format!("http://{}/ready", server("503 Service Unavailable")), 1, "answered 503"),
        (server("404 Not Found"), 1, "answered 404"),
        (free, 1, "cannot be reached"),
        ("unix:/no/such.sock".to_owned(), 1, "cannot be reached"),
    ] {
        let (done, _, error) = health(None, &[&url]);
        assert!(done == status && error.contains(says), "{url}: {done} {error}");
    }
}

#[test]
fn a_wrong_url_is_wrong_usage() {
    for arguments in
        [&["store"][..], &["https://127.0.0.1:1"], &["--ready", "http://127.0.0.1:1/x"]]
    {
        assert_eq!(health(None, arguments).0, 2, "{arguments:?}");
    }
}
