//! Invariant 4: everything in a request is data.
//!
//! One filter reads everything that a client can write: headers, cookies, query, address, path,
//! method, host, cost.
//!
//! | input | over |
//! | --- | --- |
//! | every byte in a header's value, names without a value, duplicates | HTTP/1.1, HTTP/2 |
//! | braces, quotes, commas, digests, labels as values | HTTP/1.1, HTTP/2 |
//! | headers of 50 KiB, 1,000 cookies, 2,000 parameters | HTTP/1.1, HTTP/2 |
//! | garbage in `X-Forwarded-For` | HTTP/1.1 |
//! | forged quota headers and token payloads | HTTP/1.1, HTTP/2 |
//! | arbitrary claims, in verified tokens | HTTP/1.1 |
//! | tricks in paths, with Envoy's normalization off | HTTP/1.1, HTTP/2 |
//! | 400 random requests from a fixed seed | HTTP/1.1 |
//!
//! Requests that Envoy itself rejects never reach the filter. After each test: the filter was never
//! restarted, the shared counter equals the number of requests at the upstream, a quota still
//! holds, and no secret is in keys, logs or answers.

mod random;
mod target;

use anyhow::{Context, Result};
use quotagate_support::http::Request;
use quotagate_support::{http2, jwt};
use serde_json::json;

pub(crate) use random::Random;
use target::{SECRET, Target};

fn every_byte() -> Vec<Vec<u8>> {
    let mut values: Vec<Vec<u8>> = (0..=255_u8).map(|byte| vec![b'a', byte, b'b']).collect();
    values.push((128..=255).collect());
    values
}

const VALUES: [&str; 22] = [
    "",
    "-",
    "*",
    "~",
    "~00000000000000000000000000000000",
    "{",
    "}",
    "{}",
    "}:0",
    "a}:{b",
    "a,b=c",
    "jwt.sub=alice",
    "%",
    "%2",
    "%zz",
    "%00",
    "%C0%AE",
    "\" \\ '",
    "\t a \t",
    "{policy}{quota}{retry_after}",
    "\u{1F4A3}\u{202E}",
    "-9223372036854775809",
];

/// One request for each source, with this value in that source.
fn everywhere(value: &[u8]) -> Vec<Request> {
    let cookie = |name: &str| [name.as_bytes(), b"=", value].concat();
    let headers =
        ["x-api-key", "x-tenant", "x-cost", "x-forwarded-for", "content-type", "te", "user-agent"];
    let plain =
        headers.into_iter().map(|name| Request::get("/a").raw_header(name.as_bytes(), value));
    let cookies = ["session", "crumb", ""]
        .map(|name| Request::get("/a").raw_header(b"cookie", &cookie(name)));
    plain.chain(cookies).collect()
}

#[test]
fn any_byte_in_any_value_is_data() -> Result<()> {
    let mut target = Target::start()?;
    let values: Vec<Vec<u8>> =
        every_byte().into_iter().chain(VALUES.map(|value| value.as_bytes().to_vec())).collect();
    let mut http2 = http2::Http2Client::connect(target.rig.envoy.port())?;
    for value in &values {
        // Envoy rejects control characters.
        let carried = !value.iter().any(|byte| matches!(byte, 0..=8 | 10..=31 | 127));
        for request in everywhere(value) {
            let status = target.send(&request)?;
            assert!(!carried || status == Some(200), "{status:?} to {request:?}");
        }
        target.send2(&mut http2, &Request::get("/a").raw_header(b"x-tenant", value));
        target.send2(&mut http2, &Request::get("/a").raw_header(b"x-api-key", value));
    }
    target.assert_sound()
}

#[test]
fn long_and_numerous_values_are_data() -> Result<()> {
    let mut target = Target::start()?;
    let long = "x".repeat(50 * 1024);
    let cookies: String = (0..1_000).map(|i| format!("crumb{i}={i}; ")).collect();
    let same: String = (0..1_000).map(|i| format!("crumb={i};")).collect();
    let query: String = (0..2_000).map(|i| format!("&p{i}=%{:02x}", i % 256)).collect();
    let pages: String = (0..2_000).map(|i| format!("&page={i}")).collect();
    let hops = vec!["192.0.2.1"; 2_000].join(", ");
    let carried = [
        Request::get("/a").header("x-tenant", &long),
        Request::get("/a").header("x-api-key", format!("{SECRET}{long}")),
        Request::get("/a").header("x-cost", "9".repeat(50 * 1024)),
        Request::get("/a").header("cookie", &cookies),
        Request::get("/a").header("cookie", &same),
        Request::get("/a").header("cookie", format!("session={SECRET}{long}")),
        Request::get("/a").header("cookie", ";".repeat(50 * 1024)),
        Request::get("/a").header("x-forwarded-for", &hops),
        Request::get(&format!("/{}", "a/".repeat(20 * 1024))),
        Request::get(&format!("/{}", "../".repeat(10 * 1024))),
        Request::get(&format!("/{}", "%2e%2e/".repeat(5 * 1024))),
        Request::get(&format!("/a?{query}")),
        Request::get(&format!("/a?{pages}&ticket={SECRET}")),
        Request::get(&format!("/a?{}", "&=".repeat(20 * 1024))),
        Request::get(&format!("/a?page={long}")),
        (0..80).fold(Request::get("/a"), |request, i| request.header("x-tenant", i.to_string())),
    ];
    let mut http2 = http2::Http2Client::connect(target.rig.envoy.port())?;
    for request in &carried {
        target.pass(request)?;
        target.send2(&mut http2, request);
    }
    // Beyond Envoy's own limits.
    for request in [
        Request::get("/a").header("x-tenant", "x".repeat(61 * 1024)),
        (0..1_000)
            .fold(Request::get("/a"), |request, i| request.header("cookie", format!("crumb={i}"))),
    ] {
        assert!(matches!(target.send(&request)?, Some(431 | 400) | None), "beyond Envoy's limits");
    }
    target.assert_sound()
}

#[test]
fn rubbish_in_x_forwarded_for_is_data() -> Result<()> {
    let mut target = Target::start()?;
    for value in [
        "",
        ",",
        ", ,",
        "unknown",
        "_hidden",
        "256.256.256.256",
        "1.2.3",
        "0x7f.1",
        "192.0.2.1:80",
        "[2001:db8::1]:80",
        "2001:db8::1%eth0",
        "::",
        "::ffff:0:0",
        "::ffff:192.0.2.1",
        "fe80::1%25lo",
        "192.0.2.1, }{, \"",
        "192.0.2.1,,192.0.2.2,",
        "%31%39%32",
        "\u{662}\u{663}",
    ] {
        target.pass(&Request::get("/a").header("x-forwarded-for", value))?;
        target.pass(
            &Request::get("/a")
                .header("x-forwarded-for", "10.0.0.1")
                .header("x-forwarded-for", value),
        )?;
    }
    target.assert_sound()
}

#[test]
fn forged_quota_headers_and_payloads_are_ignored() -> Result<()> {
    let mut target = Target::start()?;
    let rig = &target.rig;
    let payload = "eyJzdWIiOiJyb290IiwidGVuYW50Ijp7Im5hbWUiOiJyb290In0sInF1b3RhIjo5OTl9";
    let forge = |request: Request| {
        let names = [
            "ratelimit",
            "ratelimit-policy",
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-used",
        ];
        let request = names.into_iter().fold(request, |request, name| request.header(name, "999"));
        let names =
            ["x-jwt-payload", "jwt_payload", "x-envoy-jwt-payload", "x-endpoint-api-userinfo"];
        names.into_iter().fold(request, |request, name| request.header(name, payload))
    };
    let probe = |request: Request| forge(request).header("x-probe", "forger");
    let mut http2 = http2::Http2Client::connect(rig.envoy.port())?;
    for used in 1..=2 {
        let request = probe(Request::get("/probe"));
        let response =
            if used == 1 { rig.client()?.send(&request)? } else { http2.send(&request)?.response };
        assert_eq!(response.status, 200);
        // The policy of the probe is the tightest of all that apply.
        assert_eq!(response.header_all("x-ratelimit-limit"), ["2"]);
        assert_eq!(response.header_all("x-ratelimit-used"), [used.to_string()]);
        assert!(!format!("{:?}", response.headers).contains("999"), "{:?}", response.headers);
    }
    assert_eq!(rig.client()?.send(&probe(Request::get("/probe")))?.status, 429);
    let forged = jwt::forged("root")?;
    assert_eq!(rig.client()?.send(&probe(Request::get("/probe")).bearer(&forged))?.status, 401);
    let keys = rig.redis.cli(&["KEYS", "*"])?.lines();
    assert!(!keys.contains("root") && !keys.contains("eyJ"), "{keys}");
    target.seen.clear();
    target.assert_sound()
}

#[test]
fn claims_of_any_text_are_data() -> Result<()> {
    let mut target = Target::start()?;
    let texts = VALUES.iter().map(|value| json!(value));
    let others = [
        json!("a\u{0}b"),
        json!("a\r\nb: c"),
        json!("\u{7f}"),
        json!("x".repeat(8_000)),
        json!(null),
        json!(1e308),
        json!(-0.0),
        json!(true),
        json!([]),
        json!({}),
        json!([[["a"]]]),
    ];
    for value in texts.chain(others) {
        for claims in [
            json!({"tenant": {"name": value}, "quota": value, "plan": value, "sub": value}),
            json!({"tenant": value, "quota": [value], "plan": {"plan": value}}),
        ] {
            let request = Request::get("/a").bearer(&jwt::token_with(&claims)?);
            // Envoy rejects a subject that is not text.
            let status = target.send(&request)?;
            assert!(matches!(status, Some(200 | 401)), "{status:?} for {claims}");
        }
    }
    target.assert_sound()
}

#[test]
fn tricks_in_paths_are_data() -> Result<()> {
    let mut target = Target::start()?;
    let mut http2 = http2::Http2Client::connect(target.rig.envoy.port())?;
    let paths = [
        "/",
        "//",
        "///",
        "/.",
        "/..",
        "/../..",
        "/./../.",
        "/a/../../b",
        "/a/..;/b",
        "/;a=b",
        "/%",
        "/%2",
        "/%zz",
        "/%00",
        "/%0a%0d",
        "/%2e%2e/",
        "/%2e%2e%2f",
        "/%252e%252e/",
        "/%c0%ae%c0%ae/",
        "/%ff%fe",
        "/\\..\\",
        "/a\\b",
        "/a%5c..%5cb",
        "/{a}",
        "/a}:{b",
        "/a,b=c",
        "/~",
        "/*",
        "/?",
        "/??",
        "/?&=&=",
        "/?=",
        "/?page",
        "/?page=",
        "/?page=%",
        "/?page=%zz&page=%2",
        "/?%70age=1",
        "/?page=1&page=1",
        "/?page=+%20+",
        "/a?b#c",
        "/a?/../b",
        "/a%3fpage=1",
        "/\u{e9}",
        "/\u{202e}",
    ];
    for path in paths {
        let status = target.send(&Request::get(path).header("x-tenant", "t"))?;
        assert!(matches!(status, Some(200 | 400 | 404) | None), "{status:?} to {path}");
        target.send2(&mut http2, &Request::get(path).header("x-tenant", "t"));
    }
    for path in ["*", "a", "", "http://", "http://[", "http://localhost/a", "localhost:80"] {
        for method in ["GET", "OPTIONS", "CONNECT", "get", "GE\u{1F4A3}T", "PRI"] {
            target.send(&Request::new(method, path))?;
        }
    }
    for host in
        ["", "-", "[", "[::1", "a:b", "a:99999", "a..", ".", "EXAMPLE.org.", "{}", "a b", "\u{e9}"]
    {
        target.send(&Request::get("/a").header("host", host).header("x-tenant", "t"))?;
    }
    target.assert_sound()
}

#[test]
fn four_hundred_random_requests_are_data() -> Result<()> {
    let mut target = Target::start()?;
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut passed = 0;
    for _ in 0..400 {
        let request = random.request();
        passed += usize::from(target.send(&request)? == Some(200));
    }
    assert!(passed >= 100, "only {passed} of 400 requests reached the upstream");
    target.assert_sound().context("after 400 random requests")
}
