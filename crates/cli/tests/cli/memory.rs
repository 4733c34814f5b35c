//! The memory of each listener under attacks that send a few megabytes.

use std::fs;
use std::net::TcpStream;
use std::process::Command;

use quotagate_support::grpc::{self, field, flag, frame, kind, prefixed};
use quotagate_support::http;
use quotagate_support::ports;
use quotagate_support::process::{Process, raise_file_limit};
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::wait;

use crate::ports::{PATIENCE, crowd_makes_room, raw};

/// The most that a process may grow above its size at rest, in KiB.
const GROWTH: u64 = 64 * 1024;
/// Connections that send at the same time.
const SENDERS: usize = 64;
/// An empty `accept`, which is one byte on the wire.
const ACCEPT: u8 = 0x93;

/// The size of a process now, or its largest one since [`begin`], in KiB.
fn kib(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Forgets the largest size of a process. Returns its size now, in KiB.
fn begin(pid: u32) -> u64 {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
    kib(pid, "VmRSS:")
}

/// The head of a request with so many one-byte fields, as HPACK.
fn head(method: u8, path: &str, fields: usize) -> Vec<u8> {
    let path = [&[0x04, u8::try_from(path.len()).unwrap()], path.as_bytes()].concat();
    let authority = [&[0x01, 9][..], b"localhost"].concat();
    let content = [&[0x0f, 0x10, 16][..], b"application/grpc"].concat();
    [&[method, 0x86][..], &path, &authority, &content, &vec![ACCEPT; fields]].concat()
}

/// Requests on one connection, all with this head.
fn requests(streams: u32, flags: u8, head: &[u8], body: &[u8]) -> Vec<u8> {
    requests_with(0, streams, flags, head, body)
}

/// Requests with this window, so that only so many bytes of each answer are fetched.
fn requests_with(window: u8, streams: u32, flags: u8, head: &[u8], body: &[u8]) -> Vec<u8> {
    let numbers = (1..2 * streams).step_by(2);
    let request = |number| {
        let open = frame(kind::HEADERS, flags | flag::END_HEADERS, number, head);
        let parts = body.chunks(16_384).map(|part| frame(kind::DATA, 0, number, part));
        [open].into_iter().chain(parts).flatten().collect::<Vec<u8>>()
    };
    // The rest of each answer stays where it is.
    let settings = frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, window]);
    let update = frame(kind::WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
    let all = numbers.map(request);
    [grpc::PREFACE.to_vec(), settings, update].into_iter().chain(all).flatten().collect()
}

/// Whether a connection to this port has bytes that the server has not read, on either side.
fn has_unread(port: u16) -> bool {
    let port = format!(":{port:04X}");
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/net/{name}")));
    // A machine may have no IPv6.
    tables.iter().flatten().flat_map(|table| table.lines()).any(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        // Number, own address, other address, state, bytes to send and bytes to read.
        let [_, own, other, "01", queues, ..] = fields.as_slice() else { return false };
        let (to_send, to_read) = queues.split_once(':').unwrap();
        let is_empty = |queue| queue == "00000000";
        own.ends_with(&port) && !is_empty(to_read) || other.ends_with(&port) && !is_empty(to_send)
    })
}

/// Counts how often the threads of a process have gone to sleep. `None` if one does not sleep now.
///
/// If two looks yield the same number, the process did nothing between them, however busy the
/// machine is.
fn wakeups(pid: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let threads = threads.map(|thread| {
        let status = fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
        let value = |name| status.lines().find_map(|line| line.strip_prefix(name));
        value("State:")?.trim().starts_with('S').then_some(())?;
        value("voluntary_ctxt_switches:")?.trim().parse::<u64>().ok()
    });
    threads.sum()
}

/// Requests of callers to an address, as bytes.
struct Attack {
    name: &'static str,
    connections: usize,
    bytes: Vec<u8>,
}

/// Attacks of 0.2 to 41 MB on an address that answers at this path.
fn attacks(path: &str) -> Vec<Attack> {
    const POST: u8 = 0x83;
    const GET: u8 = 0x82;
    let attack = |name, connections, bytes| Attack { name, connections, bytes };
    let http2_without_requests = requests(0, 0, b"", b"");
    let begin = |flags, head: &[u8]| {
        [&*http2_without_requests, &frame(kind::HEADERS, flags, 1, head)].concat()
    };
    let mut begun_frame = begin(flag::END_HEADERS, &[ACCEPT; 16_384]);
    begun_frame.pop();
    let begun_head = [&b"GET / HTTP/1.1\r\n"[..], &b"a:\r\n".repeat(4000)].concat();
    vec![
        attack("heads", 64, requests(128, 0, &head(POST, path, 420), b"")),
        attack("begun bodies", 64, requests(128, 0, &head(POST, path, 0), &[b'{'; 1000])),
        attack("answers", 64, requests(128, flag::END_STREAM, &head(GET, path, 0), b"")),
        attack(
            "begun answers",
            64,
            requests_with(1, 128, flag::END_STREAM, &head(GET, path, 0), b""),
        ),
        attack("idle connections", 2000, requests(1, flag::END_STREAM, &head(GET, path, 0), b"")),
        attack("begun heads of HTTP/1.1", 2000, begun_head),
        attack("begun heads of HTTP/2", 2000, begin(0, &head(GET, path, 420))),
        attack("begun frames", 2000, begun_frame),
    ]
}

/// A request of HTTP/1.1 with this body.
fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// A gRPC call in frames as large as HTTP/2 allows at first.
fn call(message: &[u8]) -> Vec<u8> {
    requests(1, 0, &grpc::call_headers(), &prefixed(message))
}

/// Attacks a process. Returns what was wrong.
fn suffer(pid: u32, rest: u64, listener: &str, port: u16, attacks: Vec<Attack>) -> Vec<String> {
    let mut wrong = Vec::new();
    for Attack { name, connections, bytes } in attacks {
        let _ = begin(pid);
        let crowd: Vec<TcpStream> = std::thread::scope(|scope| {
            let share = |first| (first..connections).step_by(SENDERS).map(|_| raw(port, &bytes));
            let send = |first| scope.spawn(move || share(first).collect::<Vec<_>>());
            let sending: Vec<_> = (0..SENDERS).map(send).collect();
            sending.into_iter().flat_map(|one| one.join().unwrap()).collect()
        });
        wait::until_true("it has read everything, and rests", 10 * PATIENCE, || {
            let before = wakeups(pid);
            Ok(before.is_some() && !has_unread(port) && before == wakeups(pid))
        })
        .unwrap();
        assert!(http::get(port, "/healthz").is_ok(), "{listener}: {name}");
        drop(crowd);
        let (grown, sent) =
            (kib(pid, "VmHWM:").saturating_sub(rest) / 1024, connections * bytes.len() / 1024);
        let line = format!("{listener}: {name}: {sent} KiB sent, {grown} MiB more");
        println!("{line}");
        if grown * 1024 > GROWTH {
            wrong.push(line);
        }
    }
    wrong
}

#[test]
fn few_bytes_take_little_memory_of_a_store() {
    raise_file_limit().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens");
    fs::write(&tokens, "a-token-that-no-caller-shows\n").unwrap();
    let mut wrong = Vec::new();
    for (listener, path) in [("calls", "/v1/reserve"), ("admin", "/metrics")] {
        let options = StoreOptions::new("memory:")
            .arguments(&["--token-file", tokens.to_str().unwrap()])
            .program(env!("CARGO_BIN_EXE_quotagate"));
        let mut store = StoreProcess::start_with(&options).unwrap();
        let port = if listener == "calls" { store.port() } else { store.admin_port() };
        let rest = begin(store.pid());
        let listener = format!("{listener} {path}");
        wrong.extend(suffer(store.pid(), rest, &listener, port, attacks(path)));
        store.check().unwrap();
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn few_bytes_take_little_memory_of_a_rate_limit_service() {
    raise_file_limit().unwrap();
    let rules = tempfile::tempdir().unwrap();
    fs::write(rules.path().join("rules.yaml"), "domain: d\ndescriptors: [{key: k}]\n").unwrap();
    let mut wrong = Vec::new();
    for (listener, path) in [
        ("gRPC", grpc::SHOULD_RATE_LIMIT),
        ("health by gRPC", "/grpc.health.v1.Health/Watch"),
        ("HTTP", "/json"),
        ("debug", "/rlconfig"),
        ("metrics", "/metrics"),
    ] {
        let metrics = ports::free().unwrap();
        let options = StoreOptions::rate_limits("memory:", rules.path())
            .env("USE_PROMETHEUS", "true")
            .env("PROMETHEUS_ADDR", &format!("127.0.0.1:{metrics}"))
            .program(env!("CARGO_BIN_EXE_quotagate"));
        let mut service = StoreProcess::start_with(&options).unwrap();
        let port = match listener {
            "HTTP" => service.http_port().unwrap(),
            "debug" => debug_port(&service.log()),
            "metrics" => metrics,
            _ => service.port(),
        };
        let rest = begin(service.pid());
        let mut attacks = attacks(path);
        let message = |name, bytes| Attack { name, connections: 4, bytes };
        let descriptors = field(2, &[]).repeat(2 << 20);
        let entries = field(2, &field(1, &[]).repeat((2 << 20) - 8));
        match path {
            grpc::SHOULD_RATE_LIMIT => {
                let heads = requests(4096, 0, &head(0x83, path, 420), b"");
                attacks.push(Attack { name: "heads", connections: 1, bytes: heads });
                attacks.push(message("descriptors", call(&descriptors[..(4 << 20) - 8])));
                attacks.push(message("entries", call(&entries)));
            }
            "/json" => {
                let list = |before: &str, one: &str, after: &str| {
                    let list = vec![one; (256 << 10) / (one.len() + 1) - 100].join(",");
                    post("/json", format!("{before}[{list}]{after}").as_bytes())
                };
                let crowd = |name, bytes| Attack { name, connections: 64, bytes };
                let (before, end) = (r#"{"descriptors":[{"entries":"#, "}]}");
                attacks.push(crowd("descriptors", list(r#"{"descriptors":"#, "{}", "}")));
                attacks.push(crowd("entries", list(before, "{}", end)));
                attacks.push(crowd("a list as a number", list(r#"{"hits_addend":"#, "0", "}")));
            }
            _ => {}
        }
        let listener = format!("{listener} {path}");
        wrong.extend(suffer(service.pid(), rest, &listener, port, attacks));
        service.check().unwrap();
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn few_bytes_take_little_memory_of_a_controller() {
    raise_file_limit().unwrap();
    let directory = tempfile::tempdir().unwrap();
    // An API server that is away.
    let config = "{apiVersion: v1, kind: Config, current-context: c, \
                  clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], \
                  users: [{name: u, user: {}}], \
                  contexts: [{name: c, context: {cluster: c, user: u}}]}";
    let (kubeconfig, log) = (directory.path().join("config"), directory.path().join("log"));
    fs::write(&kubeconfig, config).unwrap();
    let port = ports::free().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quotagate"));
    command.args(["controller", "--metrics", &format!("127.0.0.1:{port}")]);
    command.env("KUBECONFIG", &kubeconfig).env("QUOTAGATE_TOKEN", "a-token-of-the-controller");
    let mut controller = Process::spawn("the controller", &mut command, &log).unwrap();
    wait::until_true("it serves", PATIENCE, || Ok(http::get(port, "/healthz").is_ok())).unwrap();
    let rest = begin(controller.pid());
    let wrong = suffer(controller.pid(), rest, "controller", port, attacks("/metrics"));
    let _crowd: Vec<TcpStream> = (0..600).map(|_| raw(port, b"")).collect();
    crowd_makes_room(port, "/healthz");
    let open = fs::read_dir(format!("/proc/{}/fd", controller.pid())).unwrap().count();
    assert!(open < 400, "{open} descriptors");
    assert!(controller.is_running().unwrap());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The port of the debug address, from the line that says where the service listens.
pub(crate) fn debug_port(log: &str) -> u16 {
    let (before, _) = log.split_once(" (debug)").unwrap();
    before.rsplit_once(':').unwrap().1.parse().unwrap()
}
