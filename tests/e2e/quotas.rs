//! A quota of five: five requests pass, the sixth is refused, and the headers show it.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use quotagate_support::envoy::StoreAddress;
use quotagate_support::http::Request;
use quotagate_support::jwt;
use quotagate_support::store::StoreProcess;
use serde_json::json;

use crate::rig::{Rig, document, per_caller, reset_of};

const WINDOW_S: u64 = 366 * 24 * 3600;

#[test]
fn sixth_request_of_a_quota_of_five_is_refused_with_exact_headers() -> Result<()> {
    let rig = Rig::start(document(json!([per_caller(5)])))?;
    let mut client = rig.client()?;
    for remaining in (0..5).rev() {
        let response = client.send(&Request::get("/"))?;
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        assert_eq!(response.status, 200);
        assert_eq!(
            response.header_all("ratelimit-policy"),
            [format!("\"per-caller\";q=5;w={WINDOW_S}")]
        );
        let reset = reset_of(&response);
        assert_eq!(
            response.header_all("ratelimit"),
            [format!("\"per-caller\";r={remaining};t={reset}")]
        );
        assert_eq!(response.header_all("x-ratelimit-limit"), ["5"]);
        assert_eq!(response.header_all("x-ratelimit-used"), [(5 - remaining).to_string()]);
        assert_eq!(response.header_all("x-ratelimit-remaining"), [remaining.to_string()]);
        let epoch_reset: u64 = response.header("x-ratelimit-reset").unwrap_or_default().parse()?;
        assert!(epoch_reset.abs_diff(epoch + reset) <= 1, "{epoch_reset} is not {epoch} + {reset}");
        let end = (epoch / WINDOW_S + 1) * WINDOW_S;
        assert!(
            epoch_reset.abs_diff(end) <= 2,
            "{epoch_reset} is not the end of the window, {end}"
        );
        assert_eq!(response.header("retry-after"), None);
    }
    for _ in 0..3 {
        let response = client.send(&Request::get("/"))?;
        assert_eq!(response.status, 429);
        let reset = reset_of(&response);
        assert_eq!(response.header_all("ratelimit"), [format!("\"per-caller\";r=0;t={reset}")]);
        assert_eq!(response.header_all("x-ratelimit-used"), ["5"]);
        assert_eq!(response.header_all("retry-after"), [reset.to_string()]);
        assert_eq!(response.header_all("content-type"), ["application/problem+json"]);
        assert_eq!(
            response.json()?,
            json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Too Many Requests",
                "status": 429,
                "detail": format!("The quota of per-caller is used up; more is granted in {reset} s."),
                "violated-policies": ["per-caller"],
            })
        );
    }
    assert_eq!(rig.upstream.requests(), 5);
    Ok(())
}

#[test]
fn redis_counter_has_the_key_value_and_ttl_of_the_contract() -> Result<()> {
    let rig = Rig::start(document(json!([per_caller(5)])))?;
    rig.statuses(&[Request::get("/").bearer(&jwt::token("alice {1}")?), Request::get("/")])?;
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let number = epoch / WINDOW_S;
    for party in ["jwt.sub=alice%20%7B1%7D", "ip=127.0.0.1"] {
        let key = format!("qg:shop:per-caller:{{{party}}}:{number}");
        assert_eq!(rig.redis.cli(&["GET", &key])?.lines(), "1", "{key}");
        let ttl: u64 = rig.redis.cli(&["TTL", &key])?.lines().parse()?;
        assert!(ttl.abs_diff((number + 1) * WINDOW_S + 10 - epoch) <= 2, "{ttl}");
    }
    Ok(())
}

#[test]
fn quota_headers_of_the_upstream_are_joined() -> Result<()> {
    let rig = Rig::start(document(json!([per_caller(5)])))?;
    let request = Request::get("/")
        .header("x-answer-header-ratelimit", "\"theirs\";r=9;t=9")
        .header("x-answer-header-x-ratelimit-limit", "9");
    let response = rig.client()?.send(&request)?;
    assert_eq!(response.header_all("x-ratelimit-limit"), ["5"]);
    let listed = format!("\"theirs\";r=9;t=9, \"per-caller\";r=4;t={}", reset_of(&response));
    assert_eq!(response.header_all("ratelimit"), [listed]);
    Ok(())
}

#[test]
fn configuration_selects_the_header_families() -> Result<()> {
    let mut document = document(json!([per_caller(5)]));
    document["response"] = json!({"headers": ["ietf"]});
    let response = Rig::start(document)?.client()?.send(&Request::get("/"))?;
    assert!(
        response.header("ratelimit-policy").is_some()
            && response.header("x-ratelimit-limit").is_none()
    );
    Ok(())
}

#[test]
fn refused_grpc_client_gets_resource_exhausted() -> Result<()> {
    let rig = Rig::start(document(json!([per_caller(0)])))?;
    let response = rig
        .client()?
        .send(&Request::post("/a.B/C", b"").header("content-type", "application/grpc"))?;
    assert_eq!((response.status, response.header("grpc-status")), (200, Some("8")));
    Ok(())
}

#[test]
fn store_behind_a_unix_socket_counts() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("store.sock");
    let options = quotagate_support::store::StoreOptions::new("memory:")
        .listen(&format!("unix:{}", socket.display()));
    let _store = StoreProcess::start_with(&options)?;
    let upstream = quotagate_support::upstream::Upstream::start()?;
    let options = quotagate_support::envoy::EnvoyOptions::new(upstream.port(), 0)
        .store(StoreAddress::Unix(socket))
        .document(document(json!([per_caller(1)])));
    let envoy = quotagate_support::envoy::Envoy::start(&options)?;
    assert_eq!(quotagate_support::http::get(envoy.port(), "/")?.status, 200);
    assert_eq!(quotagate_support::http::get(envoy.port(), "/")?.status, 429);
    Ok(())
}
