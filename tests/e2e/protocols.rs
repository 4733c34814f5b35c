//! HTTP/2, gRPC and WebSocket.

use std::time::Duration;

use anyhow::Result;
use quotagate_support::envoy::StoreAddress;
use quotagate_support::http::Request;
use quotagate_support::http2::{Answer, Http2Client};
use quotagate_support::{edits, ports, wait};
use serde_json::{Value, json};

use crate::rig::{Rig, document, one_each, per_caller};

pub fn call(client: &mut Http2Client, path: &str) -> Result<Answer> {
    client.send(&Request::post(path, b"").header("content-type", "application/grpc"))
}

/// Asserts that a gRPC client reads this one status from an answer that has only headers.
pub fn assert_grpc(answer: &Answer, status: &str, message: &str) {
    assert_eq!((answer.response.status, answer.grpc_status()), (200, Some(status)));
    assert!(answer.headers_only && answer.response.body.is_empty(), "{answer:?}");
    let said = answer.response.header("grpc-message").unwrap_or_default();
    assert!(said.contains(message), "{said}");
}

#[test]
fn grpc_clients_get_a_grpc_status_and_retry_time() -> Result<()> {
    let mut unavailable = one_each("unavailable", &["caller"]);
    unavailable["on_failure"] = json!("deny");
    let mut soon = one_each("soon", &["caller"]);
    soon["window"] = json!("3s");
    let document = document(json!([
        one_each("exhausted", &["caller"]),
        soon,
        one_each("unauthenticated", &["key"]),
        unavailable
    ]));
    let mut rig = Rig::start(document)?;
    let mut client = Http2Client::connect(rig.envoy.port())?;
    assert_eq!(call(&mut client, "/exhausted")?.response.text(), "hello from the upstream\n");
    let exhausted = call(&mut client, "/exhausted")?;
    assert_grpc(&exhausted, "8", "exhausted");
    assert!(
        exhausted.response.header("retry-after").is_some()
            && exhausted.response.header("ratelimit").is_some()
    );
    let pushback = |answer: &Answer| -> Result<i32> {
        Ok(answer.response.header("grpc-retry-pushback-ms").unwrap_or_default().parse()?)
    };
    assert_eq!(pushback(&exhausted)?, -1, "units come much later than in 5 s");
    // The first refusal of a window that ends soon. A slow machine may see windows end in between.
    let refused = wait::until("a refusal", Duration::from_secs(60), || {
        Ok(Some(call(&mut client, "/soon")?).filter(|answer| answer.grpc_status() == Some("8")))
    })?;
    assert!((1..=3000).contains(&pushback(&refused)?), "{refused:?}");
    assert_grpc(&call(&mut client, "/unauthenticated")?, "16", "");
    rig.kill_counting()?;
    assert_grpc(&call(&mut client, "/unavailable")?, "14", "");
    Ok(())
}

#[test]
fn custom_status_is_resource_exhausted_to_grpc() -> Result<()> {
    let mut document = document(json!([per_caller(0)]));
    document["response"] = json!({"denied": {"status": 403, "body": "no"}});
    let rig = Rig::start(document)?;
    let mut client = Http2Client::connect(rig.envoy.port())?;
    let answer = call(&mut client, "/a.B/C")?;
    assert_eq!((answer.response.status, answer.grpc_status()), (200, Some("8")));
    assert_eq!(
        answer.response.header("grpc-retry-pushback-ms"),
        Some("-1"),
        "units are never granted again"
    );
    let plain = client.send(&Request::get("/"))?;
    assert_eq!((plain.response.status, plain.response.text().as_str()), (403, "no"));
    assert_eq!(plain.response.header("grpc-retry-pushback-ms"), None);
    Ok(())
}

#[test]
fn http2_clients_get_the_same_headers() -> Result<()> {
    let rig = Rig::start(document(json!([per_caller(1)])))?;
    let mut client = Http2Client::connect(rig.envoy.port())?;
    let admitted = client.send(&Request::get("/"))?.response;
    assert_eq!((admitted.status, admitted.header("x-ratelimit-remaining")), (200, Some("0")));
    let refused = client.send(&Request::get("/"))?.response;
    assert_eq!(
        (refused.status, refused.header("content-type")),
        (429, Some("application/problem+json"))
    );
    assert_eq!(refused.json()?["violated-policies"], json!(["per-caller"]));
    Ok(())
}

#[test]
fn surrounding_spaces_in_http2_give_no_fresh_quota() -> Result<()> {
    let rig = Rig::start(document(json!([one_each("one", &["tenant"])])))?;
    let mut client = Http2Client::connect(rig.envoy.port())?;
    let mut status = |tenant: &str| -> Result<u16> {
        Ok(client.send(&Request::get("/one").header("x-tenant", tenant))?.response.status)
    };
    assert_eq!((status("a")?, status("a ")?, status("\ta")?, status("b")?), (200, 429, 429, 200));
    Ok(())
}

fn websockets(document: Value) -> Result<Rig> {
    Rig::start_with(document, |options| options.edit(edits::websocket))
}

#[test]
fn websocket_counts_as_one_request() -> Result<()> {
    let rig = websockets(document(json!([per_caller(2)])))?;
    let mut first = rig.client()?;
    let switched = first.send(&Request::websocket("/chat"))?;
    assert_eq!((switched.status, switched.header("x-ratelimit-remaining")), (101, Some("1")));
    for message in [&b"hello"[..], b"again", &[0xff; 4096]] {
        assert_eq!(first.exchange(message)?, message);
    }
    assert_eq!(rig.statuses(&[Request::get("/")])?, [200], "frames count nothing");
    let refused = rig.client()?.send(&Request::websocket("/chat"))?;
    assert_eq!(
        (refused.status, refused.header("content-type")),
        (429, Some("application/problem+json"))
    );
    assert_eq!(first.exchange(b"still here")?, b"still here", "an open WebSocket stays open");
    Ok(())
}

#[test]
fn websocket_waits_for_the_store_like_any_request() -> Result<()> {
    let document = document(json!([per_caller(1)]));
    let dead = ports::free()?;
    let rig = Rig::start_with(document, |options| {
        options.edit(edits::websocket).store(StoreAddress::Port(dead)).through_store()
    })?;
    assert_eq!(rig.client()?.send(&Request::websocket("/chat"))?.status, 503);
    Ok(())
}
