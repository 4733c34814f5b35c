//! Hostile callers: each gets an error or an answer, and the service lives, answers others, and
//! frees the memory that it takes.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use quotagate_support::grpc::{self, FrameHead, flag, frame, kind};
use quotagate_support::http::http2::{Answer, Http2Client};
use quotagate_support::http::{Client, Request};
use serde_json::json;

use super::Service;
use crate::memory::debug_port;
use crate::ports::{raw, resident_kib, rest};

const RULES: &str = "
- {key: k, rate_limit: {unit: year, requests_per_unit: 1000000}}
- {key: w, value: 'x*y*z', rate_limit: {unit: year, requests_per_unit: 1000000}}
";
/// More than this must not stay after an attack, in KiB.
const GROWTH: u64 = 48 * 1024;

fn start() -> Service {
    Service::start("memory:", RULES, &["--timeout", "20s"])
}

/// The status of an answer and its message.
fn status(answer: &Answer) -> (String, String) {
    let trailer = answer.trailers.iter().find(|(name, _)| name == "grpc-message");
    let trailer = trailer.map(|(_, value)| String::from_utf8_lossy(value).into_owned());
    let message = trailer.or_else(|| answer.response.header("grpc-message").map(str::to_owned));
    let message = message.unwrap_or_default().replace("%20", " ");
    (answer.grpc_status().unwrap_or_default().to_owned(), message)
}

fn limit(requests_per_unit: u64, unit: u64) -> Vec<u8> {
    let number = |number: u8, value: u64| [&[number << 3], &grpc::varint(value)[..]].concat();
    grpc::field(2, &[number(1, requests_per_unit), number(2, unit)].concat())
}

fn hits(hits: u64) -> Vec<u8> {
    grpc::field(3, &[&[1 << 3], &grpc::varint(hits)[..]].concat())
}

#[test]
fn every_message_has_an_answer_or_an_error_and_the_next_good_one_passes() {
    let mut service = start();
    let mut client = Http2Client::connect(service.process.port()).unwrap();
    let message = |descriptor: Vec<u8>| grpc::rate_limit_request(b"d", &[descriptor]);
    let entry = || grpc::entry(b"k", b"v");
    let large = vec![b'x'; 1 << 20];
    let many = grpc::rate_limit_request(b"d", &vec![entry(); 10_000]);
    let ok = "0";
    for (what, message, expected, says) in [
        ("10,000 entries", message(vec![entry(); 10_000].concat()), "2", "at most 64 entries"),
        ("depth 50", message(vec![entry(); 50].concat()), ok, ""),
        ("a value of 1 MB", message(grpc::entry(b"k", &large)), ok, ""),
        ("a key of 1 MB", message(grpc::entry(&large, b"v")), ok, ""),
        ("a wildcard over 1 MB", message(grpc::entry(b"w", &large)), ok, ""),
        ("NUL", message(grpc::entry(b"k", b"\0")), ok, ""),
        ("no entries", message(Vec::new()), ok, ""),
        ("10,000 descriptors", many, "2", "at most 256"),
        ("not UTF-8", message(grpc::entry(b"k", b"\xff")), ok, ""),
        ("no domain", grpc::rate_limit_request(b"", &[entry()]), "2", "domain must not be empty"),
        ("no descriptors", grpc::rate_limit_request(b"d", &[]), "2", "list must not be empty"),
        ("hits of 2^63", message([entry(), hits(1 << 63)].concat()), "2", "hits_addend must be"),
        ("hits of 2^64-1", message([entry(), hits(u64::MAX)].concat()), "2", "hits_addend must be"),
        ("unit UNKNOWN", message([entry(), limit(5, 0)].concat()), "2", "needs a unit"),
        ("an unknown unit", message([entry(), limit(5, 99)].concat()), "2", "needs a unit"),
        ("an empty message", Vec::new(), "2", "domain must not be empty"),
        ("rubbish", vec![0xff; 100], "13", ""),
        ("a length beyond the message", vec![0x12, 0xff, 0xff, 0x7f, 1], "13", ""),
        ("larger than 4 MB", vec![0; (4 << 20) + 1], "8", "at most 4194304"),
    ] {
        let answer = client.send(&grpc::call(&grpc::prefixed(&message))).unwrap();
        let (found, text) = status(&answer);
        assert!(found == expected && text.contains(says), "{what}: {found} {text:?}");
        assert!(text.len() < 2_000, "{what}: what was sent is not sent back");
        assert!(service.passes("k", "good"), "{what}");
    }
    service.process.check().unwrap();
}

#[test]
fn every_wrong_call_has_an_error() {
    let service = start();
    let good = grpc::prefixed(&grpc::rate_limit_request(b"d", &[grpc::entry(b"k", b"v")]));
    let compressed = |bytes: &[u8]| [&[1], &bytes[1..]].concat();
    let post = |path: &str, content: &str, body: &[u8]| {
        let request = Request::new("POST", path).header("te", "trailers");
        request.header("content-type", content).body(body)
    };
    let path = grpc::SHOULD_RATE_LIMIT;
    for (what, request, expected) in [
        ("an unknown method", post("/a.B/C", "application/grpc", &good), "12"),
        ("a compressed message", grpc::call(&compressed(&good)), "13"),
        ("gzip", grpc::call(&compressed(&good)).header("grpc-encoding", "gzip"), "12"),
        ("an unknown encoding", grpc::call(&good).header("grpc-encoding", "x"), "12"),
        ("half a frame", grpc::call(&good[..good.len() - 3]), "13"),
        ("half a prefix", grpc::call(&good[..3]), "13"),
        ("no message", grpc::call(&[]), "13"),
        ("two messages", grpc::call(&[good.clone(), good.clone()].concat()), "13"),
        ("another content type", post(path, "application/json", b"{}"), ""),
        ("GET", Request::get(path), ""),
    ] {
        let mut client = Http2Client::connect(service.process.port()).unwrap();
        let answer = client.send(&request).unwrap();
        let (found, text) = status(&answer);
        let is_http_error = expected.is_empty() && answer.response.status >= 400;
        assert!(
            found == expected || is_http_error,
            "{what}: {found} {text:?} {:?}",
            answer.response
        );
        assert!(service.passes("k", "good"), "{what}");
    }
}

#[test]
fn json_has_the_same_errors() {
    let mut service = start();
    let with = |descriptor: serde_json::Value| {
        json!({"domain": "d", "descriptors": [descriptor]}).to_string().into_bytes()
    };
    let entries = json!([{"key": "k", "value": "v"}]);
    let entry = |value: &str| with(json!({"entries": [{"key": "k", "value": value}]}));
    let long = "\u{7f}".repeat(100_000);
    let deep = [&b"[".repeat(100_000)[..], &b"]".repeat(100_000)].concat();
    for (what, text, expected) in [
        ("10,000 entries", with(json!({"entries": vec![entries[0].clone(); 10_000]})), 400),
        ("a value of 200 KiB", entry(&"x".repeat(200 << 10)), 200),
        ("a text for a list", json!({"descriptors": &long}).to_string().into_bytes(), 400),
        ("a long unit", with(json!({"entries": entries, "limit": {"unit": &long}})), 400),
        ("NUL", entry("\0"), 200),
        ("not UTF-8", entry("\0").iter().map(|byte| byte | 0x80).collect(), 400),
        (
            "hits of 2^63",
            with(json!({"entries": entries, "hitsAddend": "9223372036854775808"})),
            400,
        ),
        ("a negative number", with(json!({"entries": entries, "hitsAddend": -1})), 400),
        ("unit UNKNOWN", with(json!({"entries": entries, "limit": {"unit": "UNKNOWN"}})), 400),
        ("depth", deep, 400),
        ("nothing", Vec::new(), 400),
        ("no domain", b"{\"descriptors\":[{}]}".to_vec(), 400),
    ] {
        let answer = service.post(&text);
        assert_eq!(answer.status, expected, "{what}: {}", answer.text());
        assert!(expected == 200 || answer.text().len() < 2_000, "{what}");
        assert!(service.passes("k", "good"), "{what}");
    }
    let head = "POST /json HTTP/1.1\r\nhost: s\r\ncontent-type: application/json\r\ncontent-length: 262145\r\n\r\n{";
    let said = rest(raw(service.process.http_port().unwrap(), head.as_bytes()));
    assert!(said.starts_with("HTTP/1.1 413") && said.contains("at most 262144 bytes"), "{said}");
    service.process.check().unwrap();
}

#[test]
fn web_pages_of_others_reach_no_address_of_the_service() {
    let service = start();
    let entries = json!([{"key": "k", "value": "v"}]);
    let body = json!({"domain": "d", "descriptors": [{"entries": entries}]}).to_string();
    let json = ("content-type", "application/json");
    for (headers, expected) in [
        (&[json][..], 200),
        (&[("content-type", "application/json; charset=utf-8")], 200),
        (&[], 415),
        (&[("content-type", "text/plain")], 415),
        (&[json, ("origin", "http://evil.example")], 403),
        (&[json, ("origin", "http://localhost")], 403),
        (&[json, ("sec-fetch-site", "cross-site")], 403),
    ] {
        let request = Request::post("/json", body.as_bytes());
        let request = headers.iter().fold(request, |all, (name, value)| all.header(name, value));
        let mut client = Client::connect(service.process.http_port().unwrap()).unwrap();
        let answer = client.send(&request).unwrap();
        assert_eq!(answer.status, expected, "{headers:?}: {}", answer.text());
    }
    let debug = debug_port(&service.process.log());
    for (host, expected) in [("localhost", 200), ("127.0.0.1", 200), ("evil.example", 421)] {
        for path in ["/rlconfig", "/"] {
            let request = Request::get(path).header("host", host);
            let answer = Client::connect(debug).unwrap().send(&request).unwrap();
            assert_eq!(answer.status, expected, "{host} {path}");
        }
    }
}

/// Reads until the service answers a call, or ends the connection.
fn wait_until_answered(mut stream: TcpStream) {
    let answers = [kind::HEADERS, kind::RESET, kind::GOAWAY];
    loop {
        let mut head = [0; grpc::FRAME_HEAD];
        match stream.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) => return assert_ne!(error.kind(), ErrorKind::WouldBlock, "no answer"),
        }
        let head = FrameHead::parse(&head).unwrap();
        if answers.contains(&head.kind) {
            return;
        }
        stream.read_exact(&mut vec![0; head.length]).unwrap();
    }
}

/// The beginning of a connection, and many frames after it.
fn flood(frames: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    [grpc::hello()].into_iter().chain(frames).flatten().collect()
}

#[test]
fn floods_of_frames_end_their_connection_or_are_answered_and_leave_no_memory() {
    let mut service = start();
    assert!(service.passes("k", "good"));
    let before = resident_kib(&service.process);
    let head = grpc::call_headers();
    let streams = || (1..20_001_u32).step_by(2);
    let open = |stream| frame(kind::HEADERS, flag::END_HEADERS, stream, &head);
    let header = |stream: u32| {
        // A literal of 4 KB that is not ended.
        let text = [&[0, 1, b'x', 0x7f, 0xa1, 0x1e][..], &[b'y'; 4000]].concat();
        let kind = if stream == 1 { kind::HEADERS } else { kind::CONTINUATION };
        frame(kind, 0, 1, &text)
    };
    let attacks: [(&str, Vec<u8>); 7] = [
        (
            "resets",
            flood(streams().map(|stream| {
                [open(stream), frame(kind::RESET, 0, stream, &8_u32.to_be_bytes())].concat()
            })),
        ),
        ("pings", flood((0..50_000).map(|_| frame(kind::PING, 0, 0, &[0; 8])))),
        ("settings", flood((0..50_000).map(|_| frame(kind::SETTINGS, 0, 0, &[])))),
        ("more streams than allowed", flood(streams().map(open))),
        ("endless headers", flood(streams().map(header))),
        (
            "empty data",
            flood([open(1)].into_iter().chain((0..100_000).map(|_| frame(kind::DATA, 0, 1, &[])))),
        ),
        (
            "window updates",
            flood((0..100_000).map(|_| frame(kind::WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()))),
        ),
    ];
    for (what, bytes) in attacks {
        for _ in 0..3 {
            let mut stream = raw(service.process.port(), &bytes);
            assert!(service.passes("k", "good"), "{what}");
            // What the service has not ended by itself, the caller ends.
            let _ = stream.flush();
            drop(stream);
        }
        service.process.check().unwrap();
    }
    assert!(service.passes("k", "good"));
    let grown = resident_kib(&service.process).saturating_sub(before);
    assert!(grown < GROWTH, "{grown} KiB more");
}

#[test]
fn messages_that_never_end_take_bounded_memory_and_time() {
    let mut service = start();
    assert!(service.passes("k", "good"));
    let before = resident_kib(&service.process);
    // Each stream announces 4 MB, and sends 1 MB of them.
    let begin = [&[0], &(4_u32 << 20).to_be_bytes()[..], &[0x0a]].concat();
    let part = vec![0; 16 * 1024];
    let stream = |stream: u32| {
        let open = frame(kind::HEADERS, flag::END_HEADERS, stream, &grpc::call_headers());
        let parts = (0..64).map(|_| frame(kind::DATA, 0, stream, &part));
        let begin = frame(kind::DATA, 0, stream, &begin);
        [open, begin].into_iter().chain(parts).flatten().collect::<Vec<u8>>()
    };
    let bytes = flood((1..401).step_by(2).map(stream));
    let port = service.process.port();
    let slow: Vec<TcpStream> = std::thread::scope(|scope| {
        let send = || scope.spawn(|| raw(port, &bytes));
        let sending: Vec<_> = (0..2).map(|_| send()).collect();
        sending.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(service.passes("k", "good"), "others are served");
    let grown = resident_kib(&service.process).saturating_sub(before);
    assert!(grown < 4 * GROWTH, "{grown} KiB more");
    // The service ends what takes too long.
    slow.into_iter().for_each(wait_until_answered);
    service.process.check().unwrap();
}

#[test]
fn slow_callers_and_a_crowd_of_connections_delay_no_others() {
    let mut service = start();
    let head = frame(kind::HEADERS, flag::END_HEADERS, 1, &grpc::call_headers());
    let half = frame(kind::DATA, 0, 1, &[0, 0, 0, 0, 50, 0x0a]);
    let hello = grpc::hello();
    let begun_json = b"POST /json HTTP/1.1\r\nhost: s\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{".to_vec();
    let call = [hello.clone(), head, half].concat();
    let starts = [Vec::new(), hello[..10].to_vec(), hello];
    let ports = [service.process.port(), service.process.http_port().unwrap()];
    let crowd =
        |port: u16, start: &[u8]| -> Vec<TcpStream> { (0..40).map(|_| raw(port, start)).collect() };
    let mut slow = crowd(ports[1], &begun_json);
    for port in ports {
        starts.iter().for_each(|start| slow.extend(crowd(port, start)));
    }
    let calls = crowd(ports[0], &call);
    for _ in 0..50 {
        assert!(service.passes("k", "good"));
        assert_eq!(service.json(&[("k", "v")]).status, 200);
    }
    for stream in slow {
        let said = rest(stream);
        assert!(!said.starts_with("HTTP/1.1 200"), "{said}");
    }
    calls.into_iter().for_each(wait_until_answered);
    assert_eq!(
        Client::connect(ports[1]).unwrap().send(&Request::get("/healthcheck")).unwrap().status,
        200
    );
    service.process.check().unwrap();
}
