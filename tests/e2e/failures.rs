//! The store is down, then up: `allow` and `deny` behave as the contract says, and counting resumes by itself.

use std::time::{Duration, Instant};

use anyhow::Result;
use quotagate_support::envoy::{Envoy, EnvoyOptions};
use quotagate_support::http::{Client, Request};
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::{ports, wait};
use serde_json::{Value, json};

use crate::rig::{document, per_caller};

/// Counting resumes within 2 s of the store's return; the rest is a slow machine's.
const HEALED: Duration = Duration::from_secs(5);

/// Far above the timeout of 50 ms, far below a request that is stuck.
const HELD: Duration = Duration::from_secs(2);

/// A quota of 3, and a store that may fail.
fn failing(on_failure: &str) -> Value {
    let mut document = document(json!([per_caller(3)]));
    document["store"] = json!({"cluster": "quota_store", "timeout": "50ms", "on_failure": on_failure});
    document
}

#[test]
fn with_allow_requests_pass_uncounted_until_the_store_is_up() -> Result<()> {
    let port = ports::free()?;
    let upstream = Upstream::start()?;
    let envoy = Envoy::start(&EnvoyOptions::new(upstream.port(), port).document(failing("allow")))?;
    let mut client = Client::connect(envoy.port())?;
    for _ in 0..10 {
        let response = client.send(&Request::get("/"))?;
        assert_eq!((response.status, response.header("ratelimit")), (200, None));
    }
    let _store = StoreProcess::start_on(port, "memory:", &[])?;
    let mut counted = 0;
    wait::until_true("quotas resume", HEALED, || {
        let response = client.send(&Request::get("/"))?;
        counted += u32::from(response.header("ratelimit").is_some() && response.status == 200);
        Ok(response.status == 429)
    })?;
    assert_eq!(counted, 3);
    Ok(())
}

#[test]
fn with_deny_requests_get_503_until_the_store_is_up() -> Result<()> {
    let port = ports::free()?;
    let upstream = Upstream::start()?;
    let envoy = Envoy::start(&EnvoyOptions::new(upstream.port(), port).document(failing("deny")))?;
    let mut client = Client::connect(envoy.port())?;
    for _ in 0..10 {
        let response = client.send(&Request::get("/"))?;
        assert_eq!(response.status, 503);
        assert_eq!(response.header("retry-after"), Some("1"));
        assert_eq!(response.header("content-type"), Some("application/problem+json"));
    }
    assert_eq!(upstream.requests(), 0);
    let _store = StoreProcess::start_on(port, "memory:", &[])?;
    wait::until_true("quotas resume", HEALED, || {
        let status = client.send(&Request::get("/"))?.status;
        assert!([200, 429, 503].contains(&status), "{status}");
        Ok(status == 429)
    })?;
    assert_eq!(upstream.requests(), 3);
    Ok(())
}

#[test]
fn a_redis_that_is_down_is_a_store_that_fails_and_heals() -> Result<()> {
    let mut redis = Redis::start()?;
    let store = StoreProcess::start(&redis.url(), &[])?;
    let upstream = Upstream::start()?;
    let envoy = Envoy::start(&EnvoyOptions::new(upstream.port(), store.port()).document(failing("deny")))?;
    let mut client = Client::connect(envoy.port())?;
    assert_eq!(client.send(&Request::get("/"))?.status, 200);
    redis.stop()?;
    assert_eq!(client.send(&Request::get("/"))?.status, 503);
    redis.restart()?;
    wait::until_true("quotas resume", HEALED, || Ok(client.send(&Request::get("/"))?.status == 200))
}

#[test]
fn a_store_that_hangs_holds_no_request_beyond_the_timeout() -> Result<()> {
    let mut store = StoreProcess::start("memory:", &[])?;
    let upstream = Upstream::start()?;
    // Enough for calls that wait in the store's sockets meanwhile: their answers may be lost, and their units.
    let mut document = failing("deny");
    document["policies"] = json!([per_caller(100)]);
    let envoy = Envoy::start(&EnvoyOptions::new(upstream.port(), store.port()).document(document))?;
    let mut client = Client::connect(envoy.port())?;
    assert_eq!(client.send(&Request::get("/"))?.status, 200);
    store.freeze()?;
    for _ in 0..10 {
        let sent = Instant::now();
        assert_eq!(client.send(&Request::get("/"))?.status, 503);
        assert!(sent.elapsed() < HELD, "held for {:?}", sent.elapsed());
    }
    store.thaw()?;
    wait::until_true("quotas resume", HEALED, || Ok(client.send(&Request::get("/"))?.status == 200))
}
