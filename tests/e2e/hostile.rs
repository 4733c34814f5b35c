//! Invariant 4: whatever a request holds is data.
//!
//! One filter reads everything that a client can write: headers, cookies, query, address, path, method, host, cost.
//!
//! | what is sent | over |
//! | --- | --- |
//! | every byte in a header's value, names without a value, duplicates | HTTP/1.1, HTTP/2 |
//! | braces, quotes, commas, digests, labels as values | HTTP/1.1, HTTP/2 |
//! | headers of 50 KiB, 1,000 cookies, 2,000 parameters | HTTP/1.1, HTTP/2 |
//! | rubbish in `X-Forwarded-For` | HTTP/1.1 |
//! | forged quota headers and token payloads | HTTP/1.1, HTTP/2 |
//! | claims of any text, in tokens that are verified | HTTP/1.1 |
//! | tricks in paths, with Envoy's normalization off | HTTP/1.1, HTTP/2 |
//! | 400 random requests from a fixed seed | HTTP/1.1 |
//!
//! What Envoy itself refuses never reaches the filter. After each: the filter was never started anew, the counter
//! for all says exactly what the upstream got, a quota still holds, and no secret is in keys, logs or answers.

use anyhow::{Context, Result};
use quotagate_support::http::{Client, Request, Response};
use quotagate_support::{edits, http2, jwt};
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::{Rig, document};

const PLENTY: u64 = 1_000_000;
/// What the filter or the upstream may say; besides, what Envoy says of a request that it refuses.
const ANSWERS: [u16; 9] = [200, 400, 401, 403, 404, 405, 413, 414, 431];
/// Whatever is sent as a secret holds this.
const SECRET: &str = "s3cret";

/// Policies that read all that a client writes, and never refuse it; and one that does, for `/probe`.
fn all_sources() -> Value {
    let policy = |name: &str, partition_by: Value| {
        json!({
            "name": name, "partition_by": partition_by, "quota": PLENTY, "window": "366d", "on_missing": "shared"
        })
    };
    let mut by_cost = policy("by-cost", json!(["tenant"]));
    by_cost["cost"] = json!({"header": {"name": "x-cost", "max": 5}});
    by_cost["quota_from"] = json!({"jwt": {"claim": "quota"}, "max": PLENTY});
    by_cost["tiers"] = json!({"source": {"jwt": {"claim": "plan"}}, "quotas": {"gold": PLENTY}});
    let mut matched = policy("matched", json!(["path"]));
    matched["match"] = json!({
        "methods": ["GET", "POST"], "path": {"regex": "/(a|b|[^/]*)+/?.*"}, "hosts": ["localhost", "*.example.org"],
        "headers": [{"name": "x-tenant", "present": true}, {"name": "x-cost", "regex": ".*"}]
    });
    let mut logins = policy("logins", json!(["address"]));
    logins["count"] = json!({"status": [401, 404]});
    let mut document = document(json!([
        policy("total", json!([])),
        policy("by-secrets", json!(["key", "session", "ticket"])),
        policy("by-plain", json!(["tenant", "crumb", "page"])),
        policy("by-address", json!(["address"])),
        policy("by-request", json!(["method", "host", "path", "route"])),
        by_cost,
        matched,
        logins,
        {
            "name": "probe", "match": {"path": {"exact": "/probe"}}, "partition_by": ["probe"],
            "quota": 2, "window": "366d"
        }
    ]));
    document["identities"] = json!({
        "key": [{"header": {"name": "x-api-key", "secret": true}}],
        "session": [{"cookie": {"name": "session", "secret": true}}],
        "ticket": [{"query": {"name": "ticket", "secret": true}}],
        "tenant": [{"jwt": {"claim": "tenant.name"}}, {"header": {"name": "x-tenant"}}],
        "crumb": [{"cookie": {"name": "crumb"}}],
        "page": [{"query": {"name": "page"}}],
        "address": [{"client_ip": {}}],
        "probe": [{"header": {"name": "x-probe"}}]
    });
    document
}

struct Target {
    rig: Rig,
    /// All that clients saw.
    seen: String,
    /// Kept for the next request.
    client: Option<Client>,
}

impl Target {
    fn start() -> Result<Self> {
        let change = |options: quotagate_support::envoy::EnvoyOptions| {
            options.edit(edits::trusted_hops(1)).edit(edits::raw_paths)
        };
        Ok(Self { rig: Rig::start_with(all_sources(), change)?, seen: String::new(), client: None })
    }

    /// Sends over HTTP/1.1; `None` where Envoy closes the connection without an answer.
    fn send(&mut self, request: &Request) -> Result<Option<u16>> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => self.rig.client()?,
        };
        // It may close before it has read all.
        match client.send(request) {
            Ok(response) => {
                let status = self.saw(request, &response);
                // Envoy closes those on which it has refused something.
                self.client = (status == 200).then_some(client);
                Ok(Some(status))
            }
            Err(error) => {
                let text = format!("{error:#}");
                assert!(!text.contains("in time"), "it hangs: {request:?}");
                Ok(None)
            }
        }
    }

    /// The same over HTTP/2; `None` for what HTTP/2 or its client cannot carry.
    fn send2(&mut self, client: &mut http2::Client, request: &Request) -> Option<u16> {
        let answer = client.send(request).ok()?;
        Some(self.saw(request, &answer.response))
    }

    fn saw(&mut self, request: &Request, response: &Response) -> u16 {
        assert!(ANSWERS.contains(&response.status), "{} to {request:?}", response.status);
        self.seen += &format!("{:?}{}", response.headers, response.text());
        response.status
    }

    /// Sends what must reach the upstream.
    fn pass(&mut self, request: &Request) -> Result<()> {
        let before = self.rig.upstream.requests();
        assert_eq!(self.send(request)?, Some(200), "{request:?}");
        assert_eq!(self.rig.upstream.requests(), before + 1, "{request:?}");
        Ok(())
    }

    /// What must hold after all of it.
    fn assert_sound(mut self) -> Result<()> {
        for (probe, expected) in [("a", 200), ("a", 200), ("a", 429), ("b", 200)] {
            let request = Request::get("/probe").header("x-probe", probe);
            let mut client = self.rig.client()?;
            assert_eq!(client.send(&request)?.status, expected, "it counts no more");
        }
        // What went on: the upstream's own count leaves out what its HTTP refuses, and what has no route.
        let sent =
            inspect::stat(&self.rig.envoy, "^(cluster.upstream.upstream_rq_total|http.ingress.no_route)$")?;
        inspect::settled(&self.rig.redis, "total", sent)?;
        assert_eq!(restarts(&self.rig)?, 0, "the filter was started anew:\n{}", self.rig.envoy.log());
        self.rig.envoy.check()?;
        self.rig.store.check()?;
        let keys = self.rig.redis.cli(&["KEYS", "*"])?.lines();
        for key in keys.lines() {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"._~@:/-%{},=*".contains(&b);
            assert!(key.bytes().all(plain), "{key}");
            assert!(key.matches(['{', '}']).count() == 2, "{key}");
        }
        let all = [self.seen, keys, self.rig.envoy.log(), self.rig.store.log()].concat();
        assert!(!all.contains(SECRET), "a secret has left the filter");
        assert!(!all.contains("panicked"), "{all}");
        Ok(())
    }
}

/// How often Envoy has found the filter dead, and has started it anew or was about to.
fn restarts(rig: &Rig) -> Result<u64> {
    inspect::stat(&rig.envoy, "^wasm.quotagate.vm_reload")
}

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

/// Each source in turn holds this value.
fn everywhere(value: &[u8]) -> Vec<Request> {
    let cookie = |name: &str| [name.as_bytes(), b"=", value].concat();
    let headers = ["x-api-key", "x-tenant", "x-cost", "x-forwarded-for", "content-type", "te", "user-agent"];
    let plain = headers.into_iter().map(|name| Request::get("/a").raw_header(name.as_bytes(), value));
    let cookies =
        ["session", "crumb", ""].map(|name| Request::get("/a").raw_header(b"cookie", &cookie(name)));
    plain.chain(cookies).collect()
}

#[test]
fn any_byte_in_any_value_is_data() -> Result<()> {
    let mut target = Target::start()?;
    let values: Vec<Vec<u8>> =
        every_byte().into_iter().chain(VALUES.map(|value| value.as_bytes().to_vec())).collect();
    let mut http2 = http2::Client::connect(target.rig.envoy.port())?;
    for value in &values {
        // Control characters are Envoy's to refuse.
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
fn what_is_long_or_many_is_data() -> Result<()> {
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
    let mut http2 = http2::Client::connect(target.rig.envoy.port())?;
    for request in &carried {
        target.pass(request)?;
        target.send2(&mut http2, request);
    }
    // Envoy's own bounds.
    for request in [
        Request::get("/a").header("x-tenant", "x".repeat(61 * 1024)),
        (0..1_000).fold(Request::get("/a"), |request, i| request.header("cookie", format!("crumb={i}"))),
    ] {
        assert!(matches!(target.send(&request)?, Some(431 | 400) | None), "over Envoy's bounds");
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
            &Request::get("/a").header("x-forwarded-for", "10.0.0.1").header("x-forwarded-for", value),
        )?;
    }
    target.assert_sound()
}

#[test]
fn forged_quota_headers_and_payloads_are_believed_by_nobody() -> Result<()> {
    let mut target = Target::start()?;
    let rig = &target.rig;
    let payload = "eyJzdWIiOiJyb290IiwidGVuYW50Ijp7Im5hbWUiOiJyb290In0sInF1b3RhIjo5OTl9";
    let forge = |request: Request| {
        let names =
            ["ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratimit-used"];
        let request = names.into_iter().fold(request, |request, name| request.header(name, "999"));
        let names = ["x-jwt-payload", "jwt_payload", "x-envoy-jwt-payload", "x-endpoint-api-userinfo"];
        names.into_iter().fold(request, |request, name| request.header(name, payload))
    };
    let probe = |request: Request| forge(request).header("x-probe", "forger");
    let mut http2 = http2::Client::connect(rig.envoy.port())?;
    for used in 1..=2 {
        let request = probe(Request::get("/probe"));
        let response = if used == 1 { rig.client()?.send(&request)? } else { http2.send(&request)?.response };
        assert_eq!(response.status, 200);
        // Of all policies that apply, the probe's is the tightest.
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
            // A subject that is no text is Envoy's to refuse.
            let status = target.send(&request)?;
            assert!(matches!(status, Some(200 | 401)), "{status:?} for {claims}");
        }
    }
    target.assert_sound()
}

#[test]
fn tricks_in_paths_are_data() -> Result<()> {
    let mut target = Target::start()?;
    let mut http2 = http2::Client::connect(target.rig.envoy.port())?;
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
    for host in ["", "-", "[", "[::1", "a:b", "a:99999", "a..", ".", "EXAMPLE.org.", "{}", "a b", "\u{e9}"] {
        target.send(&Request::get("/a").header("host", host).header("x-tenant", "t"))?;
    }
    target.assert_sound()
}

/// A small generator of numbers that look random: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn one_of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }

    /// Mostly what means something to somebody, and some of anything; seldom what Envoy refuses.
    fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..self.below(8) {
            match self.below(20) {
                0 => bytes.push(self.below(256) as u8),
                1..=6 => bytes.push(128 + self.below(128) as u8),
                7..=12 => bytes.push(32 + self.below(95) as u8),
                _ => bytes.extend_from_slice(self.one_of(&VALUES).as_bytes()),
            }
        }
        bytes
    }

    /// The same within a path: no bytes that end it, and none that the sample upstream refuses.
    fn text(&mut self) -> String {
        let plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'#';
        self.bytes().iter().filter(|byte| plain(byte)).map(|byte| char::from(*byte)).collect()
    }

    fn request(&mut self) -> Request {
        let method =
            self.one_of(&["GET", "GET", "GET", "GET", "POST", "PATCH", "OPTIONS", "get", "X-Y", "\u{1F4A3}"]);
        let (path, query) = (self.text(), self.text());
        let mut request = Request::new(method, &format!("/{path}?ticket={SECRET}&page={query}"));
        let names =
            ["x-api-key", "x-tenant", "x-cost", "cookie", "cookie", "x-forwarded-for", "x-probe", "x-tenant"];
        for _ in 0..self.below(8) {
            let (name, mut value) = (self.one_of(&names), self.bytes());
            match name {
                "x-api-key" => value.splice(0..0, *b"s3cret").for_each(drop),
                "cookie" => value.splice(0..0, *b"session=s3cret; crumb=").for_each(drop),
                _ => {}
            }
            request = request.raw_header(name.as_bytes(), &value);
        }
        request
    }
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
    assert!(passed >= 100, "only {passed} of 400 have reached the upstream");
    target.assert_sound().context("after 400 random requests")
}
