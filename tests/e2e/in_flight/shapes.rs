//! Requests of all shapes hold one slot: gRPC streams, tunnels, retries, mirrors.

use std::time::Duration;

use anyhow::Result;
use quotagate_support::envoy::{self, edits};
use quotagate_support::http::Request;
use quotagate_support::http2::Http2Client;
use quotagate_support::upstream::HOLD_HEADER;
use quotagate_support::{wait, yaml};
use serde_json::{Value, json};

use super::{admitted_soon, at_once, slow, until_held};
use crate::around_the_filter::{failing, retries, routed};
use crate::protocols::{assert_grpc, call};
use crate::rig::Rig;

#[test]
fn grpc_stream_holds_its_slot_and_the_next_one_is_exhausted() -> Result<()> {
    let rig = Rig::start_with(at_once(1), |options| {
        options.edit(edits::http2_upstream).edit(edits::route_timeout("0s"))
    })?;
    let mut client = Http2Client::connect(rig.envoy.port())?;
    let stream = Request::post("/a.B/Watch", b"").header("content-type", "application/grpc");
    let open = client.open(1, &stream.header(HOLD_HEADER, ""))?;
    assert_eq!(open[0].head().status, 200);
    let refused = call(&mut client, "/a.B/C")?;
    assert_grpc(&refused, "8", "running");
    let pushback = refused.response.header("grpc-retry-pushback-ms");
    assert_eq!(pushback, None, "nobody knows when a stream ends");
    client.close(open);
    wait::until_true("the slot of the stream", Duration::from_secs(5), || {
        Ok(call(&mut client, "/a.B/C")?.grpc_status().is_none())
    })
}

/// Envoy opens tunnels to the upstream.
fn tunnels(config: &mut Value) -> Result<()> {
    let manager = envoy::manager(config)?;
    let upgrade = json!([{"upgrade_type": "CONNECT"}]);
    manager["upgrade_configs"] = upgrade;
    let host = yaml::at(manager, "/route_config/virtual_hosts/0")?;
    let route = json!({"match": {"connect_matcher": {}}, "route": {
        "cluster": "upstream",
        "upgrade_configs": [{"upgrade_type": "CONNECT", "connect_config": {}}]
    }});
    yaml::list(host, "routes")?.insert(0, route);
    Ok(())
}

#[test]
fn tunnel_holds_its_slot() -> Result<()> {
    let rig = Rig::start_with(at_once(1), |options| options.edit(tunnels))?;
    let mut tunnel = rig.client()?;
    tunnel.start(&Request::new("CONNECT", "localhost:80").header("host", "localhost:80"))?;
    assert_eq!(tunnel.finish_without_body()?.status, 200);
    for _ in 0..2 {
        assert_eq!(tunnel.send(&Request::get("/"))?.status, 200, "to the upstream itself");
        assert_eq!(rig.client()?.send(&Request::get("/"))?.status, 429);
    }
    drop(tunnel);
    admitted_soon(&rig)
}

#[test]
fn retried_request_holds_one_slot_until_its_last_attempt() -> Result<()> {
    let rig = Rig::start_with(at_once(1), |options| options.edit(retries()))?;
    let mut client = rig.client()?;
    client.start(&failing().header("x-answer-delay-ms", "300"))?;
    wait::until_true("the second attempt", Duration::from_secs(20), || {
        Ok(rig.upstream.requests() == 2)
    })?;
    assert_eq!(rig.client()?.send(&Request::get("/"))?.status, 429);
    assert_eq!((client.finish()?.status, rig.upstream.requests()), (503, 4));
    admitted_soon(&rig)
}

#[test]
fn mirrored_request_holds_one_slot() -> Result<()> {
    let mirror = routed("request_mirror_policies", json!([{"cluster": "upstream"}]));
    let rig = Rig::start_with(at_once(2), |options| options.edit(mirror))?;
    let mut client = rig.client()?;
    client.start(&slow(2_000))?;
    wait::until_true("the copy to arrive", Duration::from_secs(20), || {
        Ok(rig.upstream.requests() == 2)
    })?;
    until_held(&rig.store, &[1])?;
    assert_eq!(client.finish()?.status, 200);
    until_held(&rig.store, &[])
}
