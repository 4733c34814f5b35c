//! Invariant 4: whatever a client sends is data. After each of these the worker is still the same one, and alive.

use anyhow::Result;
use quotagate_support::edits;
use quotagate_support::http::Request;
use quotagate_support::jwt;
use serde_json::json;

use crate::rig::{Rig, document, one_each};

/// Every kind of source and condition that reads what clients write, on every request.
fn start() -> Result<Rig> {
    let mut document = document(json!([
        {
            "name": "all", "partition_by": ["who", "method", "host", "path", "route"], "quota": 1_000_000, "window": "366d",
            "on_missing": "shared", "cost": {"header": {"name": "x-cost", "max": 5}},
            "overrides": [{"network": "10.0.0.0/8", "quota": 7}]
        },
        {
            "name": "some", "quota": 1_000_000, "window": "366d",
            "match": {
                "path": {"regex": ".*a.*"}, "hosts": ["*.example.org"], "methods": ["GET"],
                "headers": [{"name": "x-a", "regex": "(a+)+"}]
            }
        },
        one_each("alive", &["tenant"])
    ]));
    document["identities"]["who"] = json!([
        {"jwt": {"claim": "sub"}}, {"header": {"name": "x-a"}}, {"cookie": {"name": "a"}}, {"query": {"name": "a"}},
        {"client_ip": {}}
    ]);
    Rig::start_with(document, |options| options.edit(edits::trusted_hops(1)).edit(edits::raw_paths))
}

/// The same counter, in the same worker's memory and in Redis: each takes one unit of a party of its own.
fn assert_alive(rig: &Rig, tenant: usize) -> Result<()> {
    let request = || Request::get("/alive").header("x-tenant", format!("t{tenant}"));
    assert_eq!(rig.statuses(&[request(), request()])?, [200, 429], "after case {tenant}");
    Ok(())
}

fn cases() -> Vec<Request> {
    let get = || Request::get("/a");
    let many = |count: usize| (0..count).map(|i| format!("c{i}=v{i}")).collect::<Vec<_>>().join("; ");
    let mut cases = vec![
        get().raw_header(b"x-a", b"\xff\xfe\x80"),
        get().raw_header(b"x-a", "ü}{,=%".as_bytes()),
        get().raw_header(b"x-a", b"a\x01b\x7f"),
        get().header("x-a", "a".repeat(40_000)),
        get().header("x-a", "1").header("x-a", "2"),
        get().header("cookie", many(1_000)),
        get().header("cookie", "a=1; ".repeat(1_000)),
        get().header("cookie", ";;;===;a;=b;a==;\"a=\""),
        Request::get(&format!("/a?{}", "a=1&".repeat(1_000))),
        Request::get("/a?a=%ff%00%zz%&a%=&=&&a"),
        Request::get("/%00%ff%2e%2e%2f..%c0%af?a"),
        Request::get(&format!("/{}", "../".repeat(5_000))),
        Request::get(&format!("/{}", "%2e%2e%2f".repeat(3_000))),
        Request::new("BREW", "/a"),
        get().header("host", "[::1]:99999"),
        get().header("host", "..example.org.."),
        get().header("x-forwarded-for", "rubbish, 1.2.3.4:99, , [::1, \u{fffd}, 999.1.1.1"),
        get().header("x-forwarded-for", ",".repeat(10_000)),
        get().header("x-cost", "-1"),
        get().header("x-cost", "99999999999999999999999999999999"),
        get().header("x-cost", "1e9").header("x-cost", "NaN"),
        get().header("x-ratelimit-limit", "1").header("ratelimit", "\"all\";r=0;t=9"),
        get().header("x-jwt-payload", "eyJzdWIiOiJib3NzIn0").header("authorization", "Bearer a.b.c"),
        get().header("authorization", "Bearer ").header("authorization", "Basic Og=="),
        Request::get("/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!")
            .header("host", "a.example.org")
            .header("x-a", "a".repeat(30_000)),
    ];
    for claim in ["a\u{0}b", "a\nb", "}{", "%", "\u{202e}", &"x".repeat(5_000), "", "~"] {
        cases.push(get().bearer(&jwt::token(claim).unwrap()));
    }
    // Envoy itself refuses these.
    cases.push(get().raw_header(b"x-a", b"a\0b"));
    cases.push(get().raw_header(b"x-a\0", b"b"));
    cases.push(get().header("x-a", "a".repeat(64 * 1024)));
    cases
}

#[test]
fn invariant_4_a_worker_survives_whatever_clients_send() -> Result<()> {
    let rig = start()?;
    for (i, request) in cases().into_iter().enumerate() {
        // Envoy may close the connection on what it refuses.
        if let Ok(response) = rig.client()?.send(&request) {
            assert!([200, 400, 401, 404, 431].contains(&response.status), "{}: {request:?}", response.status);
        }
        assert_alive(&rig, i)?;
    }
    let log = rig.envoy.log();
    assert!(!log.contains("panicked") && !log.contains("VM failed"), "{log}");
    let keys = rig.redis.cli(&["KEYS", "*"])?.lines();
    for key in keys.lines() {
        assert!(key.bytes().all(|byte| byte.is_ascii_graphic()) && key.len() < 4_200, "{key}");
        assert_eq!((key.matches('{').count(), key.matches('}').count()), (1, 1), "{key}");
    }
    Ok(())
}

#[test]
fn a_payload_that_a_client_writes_is_nobodys() -> Result<()> {
    let mut document = document(json!([one_each("one", &["subject"])]));
    document["identities"]["subject"] = json!([{"jwt": {"claim": "sub"}}]);
    let rig = Rig::start(document)?;
    // {"sub":"alice"}
    let payload = "eyJzdWIiOiJhbGljZSJ9";
    let forged = [
        Request::get("/one").header("x-jwt-payload", payload).header("jwt_payload", payload),
        Request::get("/one").header("x-envoy-metadata", payload).header("sub", "alice"),
        Request::get("/one?jwt_payload.sub=alice&sub=alice").header("cookie", "jwt.sub=alice; sub=alice"),
    ];
    assert_eq!(rig.statuses(&forged)?, [401, 401, 401]);
    assert!(rig.partitions("one")?.is_empty());
    Ok(())
}
