//! Which requests a policy counts, and how several policies act together.

use anyhow::Result;
use quotagate_support::envoy::edits;
use quotagate_support::http::Request;
use serde_json::json;

use crate::rig::{Rig, document, per_caller};

#[test]
fn policy_counts_only_the_requests_it_matches() -> Result<()> {
    let rig = Rig::start(document(json!([{
        "name": "writes", "partition_by": [], "quota": 1, "window": "366d",
        "match": {"methods": ["POST"], "path": {"prefix": "/api/"}, "hosts": ["api.example.com"]}
    }])))?;
    let post = |host: &str, path: &str| Request::post(path, b"").header("host", host);
    let statuses = rig.statuses(&[
        post("api.example.com", "/api/a"),
        post("API.example.com:8443", "/api/b?x=1"),
        post("api.example.com", "//api/./c"),
        post("other.example.com", "/api/a"),
        post("api.example.com", "/other"),
        Request::get("/api/a").header("host", "api.example.com"),
    ])?;
    assert_eq!(statuses, [200, 429, 429, 200, 200, 200]);
    Ok(())
}

#[test]
fn request_refused_by_one_policy_spends_nothing_of_another() -> Result<()> {
    let tight = json!({"name": "tight", "partition_by": ["tenant"], "quota": 1, "window": "366d"});
    let wide = json!({"name": "wide", "partition_by": [], "quota": 3, "window": "366d"});
    let rig = Rig::start(document(json!([tight, wide])))?;
    let tenant = |name: &str| Request::get("/").header("x-tenant", name);
    let statuses = rig.statuses(&[
        tenant("a"),
        tenant("a"),
        tenant("a"),
        tenant("b"),
        tenant("c"),
        tenant("d"),
    ])?;
    assert_eq!(statuses, [200, 429, 429, 200, 200, 429]);
    Ok(())
}

#[test]
fn headers_name_every_policy_and_the_tightest() -> Result<()> {
    let day = json!({"name": "total", "partition_by": [], "quota": 2, "window": "365d"});
    let rig = Rig::start(document(json!([per_caller(5), day])))?;
    let response = rig.client()?.send(&Request::get("/"))?;
    assert_eq!(
        response.header("ratelimit-policy"),
        Some("\"per-caller\";q=5;w=31622400, \"total\";q=2;w=31536000")
    );
    let limits = response.header("ratelimit").unwrap_or_default();
    assert!(
        limits.contains("\"per-caller\";r=4;t=") && limits.contains("\"total\";r=1;t="),
        "{limits}"
    );
    assert_eq!(response.header("x-ratelimit-limit"), Some("2"));
    Ok(())
}

#[test]
fn on_missing_decides_a_request_without_identity() -> Result<()> {
    for (on_missing, expected) in
        [("skip", [200, 200, 200]), ("deny", [401, 401, 401]), ("shared", [200, 429, 429])]
    {
        let rig = Rig::start(document(json!([{
            "name": "per-key", "partition_by": ["key"], "quota": 1, "window": "366d", "on_missing": on_missing
        }])))?;
        let statuses = rig.statuses(&[Request::get("/"), Request::get("/"), Request::get("/")])?;
        assert_eq!(statuses, expected, "{on_missing}");
    }
    Ok(())
}

#[test]
fn shadow_mode_counts_and_changes_nothing_for_clients() -> Result<()> {
    let rig = Rig::start(document(json!([
        {"name": "shadow", "partition_by": [], "quota": 2, "window": "366d", "mode": "shadow"},
        {"name": "unused", "partition_by": [], "quota": 0, "window": "366d", "mode": "off"}
    ])))?;
    let mut client = rig.client()?;
    for _ in 0..4 {
        let response = client.send(&Request::get("/"))?;
        assert_eq!(response.status, 200);
        assert!(
            !response.headers.iter().any(|(name, _)| name.to_lowercase().contains("ratelimit"))
        );
    }
    quotagate_support::wait::until_true(
        "the shadow policy counts",
        std::time::Duration::from_secs(10),
        || {
            let keys = rig.redis.cli(&["KEYS", "qg:shop:*"])?.lines();
            assert!(!keys.contains("unused"), "{keys}");
            Ok(keys.contains("qg:shop:shadow:{*}:")
                && rig.redis.cli(&["GET", &keys])?.lines() == "2")
        },
    )
}

#[test]
fn each_of_1024_policies_counts_its_own_requests() -> Result<()> {
    let policy = |i: usize| {
        let matching = if i.is_multiple_of(2) {
            json!({"path": {"prefix": format!("/{i}/")}, "not": {"path": {"suffix": "/free"}}})
        } else {
            json!({"hosts": [format!("h{i}.example.com")]})
        };
        json!({"name": format!("p{i}"), "match": matching, "partition_by": [], "quota": 1,
            "window": "366d"})
    };
    let rig = Rig::start(document((0..1024).map(policy).collect()))?;
    for i in [0_usize, 511, 512, 777, 1022, 1023] {
        let request = if i.is_multiple_of(2) {
            Request::get(&format!("/{i}/x"))
        } else {
            Request::get("/").header("host", format!("h{i}.example.com"))
        };
        assert_eq!(rig.statuses(&[request.clone(), request])?, [200, 429], "{i}");
    }
    let free = [Request::get("/0/free"), Request::get("/1/x"), Request::get("/0/free")];
    assert_eq!(rig.statuses(&free)?, [200; 3]);
    Ok(())
}

#[test]
fn networks_and_query_parameters_choose_the_policy() -> Result<()> {
    let rig = Rig::start_with(
        document(json!([
            {
                "name": "office", "partition_by": [], "quota": 2, "window": "366d",
                "match": {
                    "client_ip": ["10.0.0.0/8", "2001:db8::/32"],
                    "not": {"client_ip": ["10.9.0.0/16"]}
                }
            },
            {
                "name": "preview", "partition_by": [], "quota": 1, "window": "366d",
                "match": {"query": {"name": "preview", "exact": "on"}}
            }
        ])),
        |options| options.edit(edits::trusted_hops(1)),
    )?;
    let from = |address: &str| Request::get("/").from_address(address);
    let office = ["10.1.2.3", "2001:db8::7", "::ffff:10.4.5.6"].map(from);
    assert_eq!(rig.statuses(&office)?, [200, 200, 429], "one counter for all of them");
    let others = ["10.9.0.1", "11.0.0.1", "2001:db9::1"].map(from);
    assert_eq!(rig.statuses(&others)?, [200; 3]);
    let preview = ["/?preview=on", "/?a=1&pre%76iew=o%6e", "/?preview=off&preview=on"];
    let preview = preview.map(|path| Request::get(path).from_address("192.0.2.7"));
    assert_eq!(rig.statuses(&preview)?, [200, 429, 429]);
    let plain = ["/?preview=off", "/?Preview=on", "/preview=on", "/"];
    let plain = plain.map(|path| Request::get(path).from_address("192.0.2.7"));
    assert_eq!(rig.statuses(&plain)?, [200; 4]);
    Ok(())
}
