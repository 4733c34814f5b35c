//! The store's ports under attack: a hostile client can only make it refuse calls.
//!
//! The tests start the real process, to measure its descriptors and its memory.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use quotagate_protocol::MAX_WINDOW_S;
use quotagate_support::grpc::frame;
use quotagate_support::http::{self, Client, Request, Response};
use quotagate_support::process::raise_file_limit;
use quotagate_support::redis::Redis;
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::wait;
use serde_json::{Value, json};

/// The store ends a slow request after 10 s. A slow machine may take longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

fn start() -> StoreProcess {
    StoreProcess::start_with(&StoreOptions::new("memory:").program(env!("CARGO_BIN_EXE_quotagate")))
        .unwrap()
}

fn body(key: &str) -> String {
    let reservation =
        json!({"key": key, "window_s": MAX_WINDOW_S, "quota": 1_000_000, "want": 1, "min": 1});
    json!({"budget_ms": 20000, "reservations": [reservation]}).to_string()
}

fn call(body: &str) -> Request {
    Request::post("/v1/reserve", body.as_bytes()).header("content-type", "application/json")
}

fn used(response: &Response) -> u64 {
    assert_eq!(response.status, 200, "{}", response.text());
    response.json().unwrap()["grants"][0]["used"].as_u64().unwrap()
}

/// The used units in the answer to a new client.
fn used_by_one_more(store: &StoreProcess) -> u64 {
    used(&Client::connect(store.port()).unwrap().send(&call(&body("shop:p:{*}"))).unwrap())
}

pub(crate) fn raw(port: u16, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The store may have refused the part that it has read.
    let _ = stream.write_all(bytes);
    stream
}

/// All bytes until the store closes the connection.
pub(crate) fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        // The store closed it before it had read everything.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the connection stays open: {error}"),
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn descriptors(store: &StoreProcess) -> usize {
    fs::read_dir(format!("/proc/{}/fd", store.pid())).unwrap().count()
}

#[test]
fn slow_requests_delay_no_others_and_are_ended() {
    let mut store = start();
    let before = descriptors(&store);
    let head = format!(
        "POST /v1/reserve HTTP/1.1\r\nhost: s\r\ncontent-length: {}\r\n\r\n{{",
        body("k").len()
    );
    let starts: [&[u8]; 5] = [
        b"",
        b"P",
        b"POST /v1/reserve HTTP/1.1\r\nhost",
        head.as_bytes(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    let ports = [store.port(), store.admin_port()];
    let slow = ports
        .map(|port| (0..100).map(move |i| raw(port, starts[i % starts.len()])).collect::<Vec<_>>());
    for expected in 1..=50 {
        assert_eq!(used_by_one_more(&store), expected);
    }
    assert_eq!(http::get(store.admin_port(), "/readyz").unwrap().status, 200);
    for stream in slow.into_iter().flatten() {
        let said = rest(stream);
        assert!(!said.starts_with("HTTP/1.1 200"), "{said}");
    }
    wait::until_true("their descriptors are free", PATIENCE, || Ok(descriptors(&store) <= before))
        .unwrap();
    assert_eq!(used_by_one_more(&store), 51, "nothing of theirs was counted");
    store.check().unwrap();
}

#[test]
fn pipelined_calls_are_answered_in_order() {
    let store = start();
    let mut client = Client::connect(store.port()).unwrap();
    let request = call(&body("shop:p:{*}"));
    for _ in 0..500 {
        client.start(&request).unwrap();
    }
    for expected in 1..=500 {
        assert_eq!(used(&client.finish().unwrap()), expected);
    }
}

#[test]
fn invalid_calls_count_nothing() {
    let mut store = start();
    let good = body("shop:p:{*}");
    let with = |head: &str| format!("POST /v1/reserve HTTP/1.1\r\nhost: s\r\n{head}\r\n\r\n{good}");
    let length = good.len();
    for (bytes, statuses) in [
        // Two lengths of one body are a request smuggling attack.
        (with(&format!("content-length: {length}\r\ncontent-length: 3")), &["400"][..]),
        (with(&format!("content-length: {length}, 3")), &["400"]),
        (with("content-length: -1"), &["400"]),
        (with("content-length: 99999999999999999999"), &["400"]),
        (with("content-length: 2000000"), &["413"]),
        (with("transfer-encoding: chunked\r\nconnection: close"), &["400"]),
        (with("transfer-encoding: gzip, identity"), &["400"]),
        (
            with(&format!(
                "content-length: {length}\r\norigin: https://page.example\r\nconnection: close"
            )),
            &["403"],
        ),
        (
            format!("GET /v1/reserve HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n{good}"),
            &["405"],
        ),
        (
            "POST /v1/reserve/../../etc/passwd HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n"
                .to_owned(),
            &["421"],
        ),
        (
            "CONNECT other:80 HTTP/1.1\r\nhost: other\r\nconnection: close\r\n\r\n".to_owned(),
            &["404"],
        ),
        ("*1\r\n$8\r\nFLUSHALL\r\n".to_owned(), &["400"]),
        (format!("POST /v1/reserve HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(40 << 10)), &["431", ""]),
        (format!("POST /v1/reserve HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(1 << 20)), &["431", ""]),
        (format!("POST /v1/reserve HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(2_000)), &["431", ""]),
        (format!("POST /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20)), &["414", "431", ""]),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\u{0}\u{0}nonsense".to_owned(), &[""]),
        ("\u{0}".repeat(100_000), &["400", ""]),
    ] {
        let said = rest(raw(store.port(), bytes.as_bytes()));
        let status = said.strip_prefix("HTTP/1.1 ").map_or("", |rest| &rest[..3]);
        let shown: String = bytes.chars().take(90).collect();
        assert!(statuses.contains(&status), "{shown}: {said}");
    }
    assert_eq!(used_by_one_more(&store), 1);
    // The host header does not matter.
    for host in ["metadata.internal", "", "{}", "a, b"] {
        let response =
            Client::connect(store.port()).unwrap().send(&call(&good).header("host", host)).unwrap();
        assert!([200, 400].contains(&response.status), "{host}: {}", response.status);
    }
    store.check().unwrap();
}

#[test]
fn deep_and_large_bodies_are_refused() {
    let mut store = start();
    let mut client = Client::connect(store.port()).unwrap();
    let good: Value = serde_json::from_str(&body("shop:p:{*}")).unwrap();
    let mut send = |text: &str| client.send(&call(text)).unwrap();
    let around = |item: &str| {
        let one = good["reservations"][0].to_string();
        format!(r#"{{"budget_ms":20000,"reservations":[{one},{item}]}}"#)
    };
    let deep = |open: &str, close: &str| [open.repeat(50_000), close.repeat(50_000)].concat();
    for text in [
        "[".repeat(1_000_000),
        deep("[", "]"),
        deep(r#"{"budget_ms":"#, "}"),
        around(&deep("[", "]")),
        around(&format!(r#"{{"key":{}}}"#, deep("[", "]"))),
        around(&format!(r#"{{"key":"k","window_s":{}}}"#, "9".repeat(100_000))),
        around(&format!(r#"{{"key":"k","window_s":1e{}}}"#, "9".repeat(1_000))),
        around(r#"{"key":"\ud800","window_s":1,"quota":1,"want":1,"min":1}"#),
    ] {
        let response = send(&text);
        assert_eq!(response.status, 400, "{}: {}", &text[..60], response.text());
        assert!(
            response.text().len() < 2_000,
            "what was sent is not sent back: {}",
            response.text().len()
        );
    }
    // One bad item of a valid body fails alone.
    let long = json!({"key": format!("shop:p:{{{}}}", "k".repeat(500_000)), "window_s": 60, "quota": 1, "want": 1, "min": 1});
    let response = send(&around(&long.to_string()));
    assert_eq!(used(&response), 1);
    let error = response.json().unwrap()["grants"][1]["error"].as_str().unwrap().to_owned();
    assert!(error.starts_with("key: ") && error.len() < 300, "{error}");
    store.check().unwrap();
}

pub(crate) fn resident_kib(store: &StoreProcess) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", store.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// HPACK of a request head: POST, http, /v1/reserve, authority s.
fn reserve_head() -> Vec<u8> {
    [&[0x83, 0x86, 0x44, 11][..], b"/v1/reserve", &[0x41, 1, b's']].concat()
}

/// Makes calls on an HTTP/2 connection with a flow control window of 0 for their answers.
fn calls_with_closed_windows(body: &str, calls: u32) -> Vec<u8> {
    let (data, headers, settings, window_update) = (0, 1, 4, 8);
    let initial_window_size = [0, 4, 0, 0, 0, 0];
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(settings, 0, 0, &initial_window_size));
    bytes.extend(frame(window_update, 0, 0, &(1_u32 << 30).to_be_bytes()));
    for stream in (1..2 * calls).step_by(2) {
        bytes.extend(frame(headers, 4, stream, &reserve_head()));
        bytes.extend(frame(data, 1, stream, body.as_bytes()));
    }
    bytes
}

/// A client that only answers pings.
fn answer_pings_until_closed(mut stream: TcpStream) {
    const PING: u8 = 6;
    let begun = Instant::now();
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).is_err() {
            break;
        }
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        if stream.read_exact(&mut payload).is_err() {
            break;
        }
        let is_answer = head[4] & 1 == 1;
        if head[3] == PING && !is_answer && stream.write_all(&frame(PING, 1, 0, &payload)).is_err()
        {
            break;
        }
    }
    assert!(begun.elapsed() < PATIENCE, "the connection stays open");
}

#[test]
fn unread_answers_are_bounded_and_their_grants_are_refunded() {
    let mut store = start();
    let one: Value = serde_json::from_str(&body("shop:p:{*}")).unwrap();
    let many = vec![one["reservations"][0].clone(); 4];
    let many = json!({"budget_ms": 20000, "reservations": many}).to_string();
    // More calls than the store carries out at once. Each connection sends no more bytes than
    // HTTP/2 allows at first.
    let crowd: Vec<_> =
        (0..12).map(|_| raw(store.port(), &calls_with_closed_windows(&many, 120))).collect();
    let mut client = Client::connect(store.port()).unwrap();
    assert_eq!(client.send(&call(&one.to_string())).unwrap().status, 200, "others are served");
    crowd.into_iter().for_each(answer_pings_until_closed);
    wait::until_true("their grants have returned", PATIENCE, || {
        let response = Client::connect(store.port())?.send(&call(&body("shop:p:{*}")))?;
        Ok(response.status == 200 && used(&response) < 1_000)
    })
    .unwrap();
    store.check().unwrap();
}

#[test]
fn bodies_that_are_only_begun_keep_no_call_out() {
    let mut store = start();
    // More than the calls that the store carries out at once.
    let streams = (1..258).step_by(2);
    let begin = |stream| [frame(1, 4, stream, &reserve_head()), frame(0, 0, stream, b"{")].concat();
    let bytes: Vec<u8> = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])]
        .into_iter()
        .chain(streams.map(begin))
        .flatten()
        .collect();
    let crowd: Vec<_> = (0..12).map(|_| raw(store.port(), &bytes)).collect();
    for expected in 1..=20 {
        assert_eq!(used_by_one_more(&store), expected);
    }
    drop(crowd);
    store.check().unwrap();
}

#[test]
fn invalid_refunds_write_one_line_of_the_log_a_second() {
    let store = start();
    let refund = json!({"key": "shop:p:{*}", "window_s": 0, "window": 1, "units": 1});
    let body = json!({"budget_ms": 20000, "reservations": [], "refunds": vec![refund; 1000]});
    let (begun, mut client) = (Instant::now(), Client::connect(store.port()).unwrap());
    for _ in 0..20 {
        assert_eq!(client.send(&call(&body.to_string())).unwrap().status, 200);
    }
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    let lines = store.log().matches("left out an invalid refund").count();
    assert!((1..=seconds + 2).contains(&lines), "{lines} lines in {seconds} s");
}

#[test]
fn crowd_of_connections_makes_room_for_probes() {
    raise_file_limit().unwrap();
    let mut store = start();
    let rules = tempfile::tempdir().unwrap();
    let options = StoreOptions::rate_limits("memory:", rules.path());
    let mut service =
        StoreProcess::start_with(&options.program(env!("CARGO_BIN_EXE_quotagate"))).unwrap();
    for (port, path) in [
        (store.admin_port(), "/healthz"),
        (service.admin_port(), "/healthz"),
        (service.http_port().unwrap(), "/healthcheck"),
    ] {
        crowd_makes_room(port, path);
    }
    store.check().unwrap();
    service.check().unwrap();
}

/// Opens more connections than an address for operators holds. They stay open for a minute if they
/// have made a request.
pub(crate) fn crowd_makes_room(port: u16, path: &str) {
    let ask = |client: &mut Client| assert!(client.send(&Request::get(path)).is_ok());
    let probe = || {
        let mut client = Client::connect(port).unwrap();
        client.set_timeout(PATIENCE).unwrap();
        ask(&mut client);
        client
    };
    let mut idle: Vec<Client> = (0..300).map(|_| probe()).collect();
    ask(idle.last_mut().unwrap());
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{{");
    for start in ["", "GET", &head] {
        let _crowd: Vec<_> = (0..300).map(|_| raw(port, start.as_bytes())).collect();
        probe();
    }
}

#[test]
fn opening_and_resetting_streams_ends_the_connection() {
    let (headers, rst_stream, settings) = (1, 3, 4);
    let mut store = start();
    used_by_one_more(&store);
    let before = resident_kib(&store);
    let head = reserve_head();
    for _ in 0..20 {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(settings, 0, 0, &[]));
        for stream in (1..10_001).step_by(2) {
            bytes.extend(frame(headers, 4, stream, &head));
            bytes.extend(frame(rst_stream, 0, stream, &8_u32.to_be_bytes()));
        }
        // The store refuses all of it sooner or later.
        drop(rest(raw(store.port(), &bytes)));
    }
    assert_eq!(used_by_one_more(&store), 2);
    let grown = resident_kib(&store).saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} KiB more");
    store.check().unwrap();
}

#[test]
fn a_crowd_leaves_descriptors_for_redis_and_operators() {
    raise_file_limit().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("quotagate-with-few-files");
    let text =
        format!("#!/bin/sh\nulimit -n 640\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_quotagate"));
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut redis = Redis::start().unwrap();
    let store =
        StoreProcess::start_with(&StoreOptions::new(&redis.url()).program(&program)).unwrap();
    let ready = || Ok(http::get(store.admin_port(), "/readyz")?.status == 200);
    wait::until_true("the store is ready", PATIENCE, ready).unwrap();
    // Connections beyond the bound wait in the backlog, until that is full.
    let address = (Ipv4Addr::LOCALHOST, store.port()).into();
    let connect = |_| {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
        stream.write_all(b"POST /v1/reserve HTTP/1.1\r\n").ok()?;
        Some(stream)
    };
    let crowd: Vec<_> = (0..1000).map_while(connect).collect();
    // Half of the descriptors are for callers. The system limits the backlog.
    let waiting: usize =
        fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap();
    assert!(crowd.len() >= 640.min(320 + waiting), "{}", crowd.len());
    // The new connection to Redis needs a free descriptor.
    redis.restart().unwrap();
    wait::until_true("the store is ready again", PATIENCE, ready).unwrap();
    assert!(descriptors(&store) < 480, "{}", descriptors(&store));
    drop(crowd);
    wait::until_true("callers are served again", PATIENCE, || {
        let mut client = Client::connect(store.port())?;
        client.set_timeout(Duration::from_secs(1))?;
        Ok(client.send(&call(&body("shop:p:{*}"))).is_ok_and(|response| response.status == 200))
    })
    .unwrap();
    assert!(!store.log().contains("cannot accept"), "{}", store.log());
}
