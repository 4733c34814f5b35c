//! The store is down, then up. `on_failure` follows the contract, and counting resumes by itself.
//!
//! | case | expected |
//! | --- | --- |
//! | `allow`, `deny` | 200 uncounted, 503; no quota is spent before the store is up |
//! | `local` | each worker admits its share of the quota, at least 1, then 429 |
//! | a policy's own `on_failure` | wins over the store's; `deny` wins over a local share |
//! | a Redis that is down, a store that hangs | a store failure; no request waits beyond the timeout |
//! | a Redis that answers slowly, but within the timeout | no store failure; every request is counted once |
//! | a store that shuts down | no request fails while it drains |
//! | `token` | a wrong or missing one is a store failure; no token is logged |

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use quotagate_support::envoy::{Envoy, EnvoyOptions};
use quotagate_support::http::{Client, Request};
use quotagate_support::redis::Redis;
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::upstream::Upstream;
use quotagate_support::{ports, wait};
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::{Rig, document, per_caller};

/// Counting resumes within 2 s of the store's return. The rest allows for a slow machine.
const HEALED: Duration = Duration::from_secs(5);

/// A pause of Redis, above the second that the store waits at least.
const SLOW: Duration = Duration::from_millis(2500);

/// Far above the [timeout](BRIEF), far below the time of a stuck request.
const HELD: Duration = Duration::from_secs(2);

/// A timeout for a store that hangs. A store that is gone fails calls without it, so all other
/// tests have the timeout of [`document`], which no load reaches: a late grant would be lost, and a
/// number of admitted requests with it.
const BRIEF: &str = "50ms";

/// A quota of 3, and a store that may fail.
fn failing(on_failure: &str) -> Value {
    let mut document = document(json!([per_caller(3)]));
    document["store"]["on_failure"] = json!(on_failure);
    document
}

#[test]
fn allow_admits_requests_uncounted_until_the_store_is_up() -> Result<()> {
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
fn deny_answers_503_until_the_store_is_up() -> Result<()> {
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
fn redis_outage_is_a_store_failure_that_ends_by_itself() -> Result<()> {
    let mut redis = Redis::start()?;
    let store = StoreProcess::start(&redis.url(), &[])?;
    let upstream = Upstream::start()?;
    let envoy =
        Envoy::start(&EnvoyOptions::new(upstream.port(), store.port()).document(failing("deny")))?;
    let mut client = Client::connect(envoy.port())?;
    assert_eq!(client.send(&Request::get("/"))?.status, 200);
    redis.stop()?;
    assert_eq!(client.send(&Request::get("/"))?.status, 503);
    redis.restart()?;
    wait::until_true("quotas resume", HEALED, || Ok(client.send(&Request::get("/"))?.status == 200))
}

/// Redis may take as long as requests wait for the store.
#[test]
fn redis_that_answers_within_the_timeout_is_no_store_failure() -> Result<()> {
    let mut rig = Rig::start(failing("deny"))?;
    let mut client = rig.client()?;
    assert_eq!(client.send(&Request::get("/"))?.status, 200);
    for status in [200, 200, 429] {
        rig.redis.freeze()?;
        client.start(&Request::get("/"))?;
        thread::sleep(SLOW);
        rig.redis.thaw()?;
        assert_eq!(client.finish()?.status, status);
    }
    inspect::settled(&rig.redis, "per-caller", 3)
}

#[test]
fn draining_store_fails_no_request() -> Result<()> {
    let options = StoreOptions::new("memory:").arguments(&["--drain", "20s"]);
    let mut store = StoreProcess::start_with(&options)?;
    let upstream = Upstream::start()?;
    let document = document(json!([per_caller(100)]));
    let envoy = Envoy::start(&EnvoyOptions::new(upstream.port(), store.port()).document(document))?;
    let mut client = Client::connect(envoy.port())?;
    assert_eq!(client.send(&Request::get("/"))?.status, 200);
    store.ask_to_stop()?;
    wait::until_true("the store is not ready", HEALED, || {
        Ok(quotagate_support::http::get(store.admin_port(), "/readyz")?.status == 503)
    })?;
    for left in (49..99).rev() {
        let response = client.send(&Request::get("/"))?;
        let remaining = response.header("x-ratelimit-remaining").map(str::to_owned);
        assert_eq!((response.status, remaining), (200, Some(left.to_string())));
    }
    store.check()
}

#[test]
fn hanging_store_delays_no_request_beyond_the_timeout() -> Result<()> {
    let mut store = StoreProcess::start("memory:", &[])?;
    let upstream = Upstream::start()?;
    // Large enough for calls that wait in the store's sockets: their answers and units may be lost.
    let mut document = failing("deny");
    document["policies"] = json!([per_caller(100)]);
    document["store"]["timeout"] = json!(BRIEF);
    let envoy = Envoy::start(&EnvoyOptions::new(upstream.port(), store.port()).document(document))?;
    let mut client = Client::connect(envoy.port())?;
    wait::until_true("an answer in time", HEALED, || {
        Ok(client.send(&Request::get("/"))?.status == 200)
    })?;
    store.freeze()?;
    for _ in 0..10 {
        let sent = Instant::now();
        assert_eq!(client.send(&Request::get("/"))?.status, 503);
        assert!(sent.elapsed() < HELD, "held for {:?}", sent.elapsed());
    }
    store.thaw()?;
    wait::until_true("quotas resume", HEALED, || Ok(client.send(&Request::get("/"))?.status == 200))
}

/// A quota with a local share: each worker may admit that share by itself.
fn shared_out(quota: u64, share: f64) -> Value {
    let mut document = failing("local");
    document["policies"] = json!([per_caller(quota)]);
    document["store"]["local_share"] = json!(share);
    document
}

/// Sends requests to an Envoy without a store, each over its own connection, and returns how many
/// are admitted. The others must be refused as over the quota.
fn admitted_without_store(document: Value, workers: u32, requests: usize) -> Result<usize> {
    let upstream = Upstream::start()?;
    let options =
        EnvoyOptions::new(upstream.port(), ports::free()?).concurrency(workers).document(document);
    let envoy = Envoy::start(&options)?;
    let mut admitted = 0;
    for _ in 0..requests {
        let response = Client::connect(envoy.port())?.send(&Request::get("/"))?;
        match response.status {
            200 => admitted += 1,
            // A quota of 0 never grants units.
            429 => assert_eq!(
                response.header("retry-after").is_none(),
                response.header("x-ratelimit-limit") == Some("0")
            ),
            other => anyhow::bail!("answered {other}"),
        }
    }
    assert_eq!(upstream.requests(), admitted as u64);
    Ok(admitted)
}

#[test]
fn local_admits_the_share_of_each_worker_and_at_least_one() -> Result<()> {
    // Connections reach workers at random. There are enough that each worker gets more than its
    // share.
    for (quota, share, workers, requests, admitted) in [
        (100, 0.05, 1, 12, 5),
        (100, 0.05, 2, 80, 10),
        (3, 0.1, 1, 4, 1),
        (10, 1.0, 1, 14, 10),
        (0, 1.0, 1, 3, 0),
    ] {
        let document = shared_out(quota, share);
        let what = format!("{share} of {quota}, {workers} workers");
        assert_eq!(admitted_without_store(document, workers, requests)?, admitted, "{what}");
    }
    Ok(())
}

#[test]
fn local_resumes_counting_when_the_store_is_up() -> Result<()> {
    let port = ports::free()?;
    let upstream = Upstream::start()?;
    let envoy =
        Envoy::start(&EnvoyOptions::new(upstream.port(), port).document(shared_out(100, 0.03)))?;
    let mut client = Client::connect(envoy.port())?;
    let mut status = || Ok::<_, anyhow::Error>(client.send(&Request::get("/"))?.status);
    assert_eq!([status()?, status()?, status()?, status()?], [200, 200, 200, 429]);
    let _store = StoreProcess::start_on(port, "memory:", &[])?;
    let first = wait::until("quotas to resume", HEALED, || {
        let response = client.send(&Request::get("/"))?;
        Ok((response.status == 200).then_some(response))
    })?;
    assert_eq!(first.header("x-ratelimit-limit"), Some("100"), "the whole quota, not the share");
    assert_eq!(
        first.header("x-ratelimit-used"),
        Some("1"),
        "requests admitted during the outage are not counted"
    );
    for _ in 0..99 {
        assert_eq!(client.send(&Request::get("/"))?.status, 200);
    }
    assert_eq!(client.send(&Request::get("/"))?.status, 429);
    Ok(())
}

#[test]
fn on_failure_of_a_policy_wins_over_the_stores() -> Result<()> {
    let policy = |name: &str, prefix: &str, on_failure: Value| {
        let mut policy = per_caller(3);
        policy["name"] = json!(name);
        policy["match"] = json!({"path": {"prefix": prefix}});
        if on_failure.is_string() {
            policy["on_failure"] = on_failure;
        }
        policy
    };
    for (of_the_store, expected) in [
        // `/`, `/pay`, `/open`, `/share`
        ("allow", [[200, 200], [503, 503], [200, 200], [200, 429]]),
        ("deny", [[503, 503], [503, 503], [503, 503], [503, 503]]),
    ] {
        let mut document = failing(of_the_store);
        document["store"]["local_share"] = json!(0.1);
        document["policies"] = json!([
            policy("all", "/", json!(null)),
            policy("guarded", "/pay", json!("deny")),
            policy("open", "/open", json!("allow")),
            policy("shared-out", "/share", json!("local")),
        ]);
        let upstream = Upstream::start()?;
        let envoy =
            Envoy::start(&EnvoyOptions::new(upstream.port(), ports::free()?).document(document))?;
        let mut client = Client::connect(envoy.port())?;
        let mut status =
            |path: &str| Ok::<_, anyhow::Error>(client.send(&Request::get(path))?.status);
        for (path, expected) in ["/", "/pay", "/open", "/share"].into_iter().zip(expected) {
            assert_eq!(
                [status(path)?, status(path)?],
                expected,
                "{path}, the store has {of_the_store}"
            );
        }
    }
    Ok(())
}

#[test]
fn policy_with_allow_stays_open_when_the_store_has_deny() -> Result<()> {
    let mut document = failing("deny");
    document["policies"][0]["on_failure"] = json!("allow");
    assert_eq!(admitted_without_store(document, 1, 8)?, 8);
    Ok(())
}

#[test]
fn store_with_a_token_counts_only_for_proxies_that_send_it() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("token");
    std::fs::write(&file, "s3cret-right-of-proxies\n")?;
    for (token, statuses, calls) in [
        (json!("s3cret-right-of-proxies"), [200, 200, 200, 429], 200),
        (json!("s3cret-wrong"), [503, 503, 503, 503], 401),
        (json!(null), [503, 503, 503, 503], 401),
    ] {
        let options =
            StoreOptions::new("memory:").arguments(&["--token-file", &file.display().to_string()]);
        let store = StoreProcess::start_with(&options)?;
        let upstream = Upstream::start()?;
        let mut document = failing("deny");
        if token.is_string() {
            document["store"]["token"] = token.clone();
        }
        let envoy =
            Envoy::start(&EnvoyOptions::new(upstream.port(), store.port()).document(document))?;
        let mut client = Client::connect(envoy.port())?;
        for expected in statuses {
            let response = client.send(&Request::get("/"))?;
            assert_eq!(response.status, expected, "{token}");
        }
        assert!(inspect::calls(&store, calls)? > 0, "{token}");
        assert_eq!(
            inspect::calls(&store, 601 - calls)?,
            0,
            "{token}: the store must give no other answers"
        );
        let logs = [envoy.log(), store.log()].concat();
        assert!(!logs.contains("s3cret"), "{logs}");
    }
    Ok(())
}

#[test]
fn allow_admits_requests_uncounted_with_a_wrong_token() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("token");
    std::fs::write(&file, "s3cret-right-of-proxies\n")?;
    let options =
        StoreOptions::new("memory:").arguments(&["--token-file", &file.display().to_string()]);
    let store = StoreProcess::start_with(&options)?;
    let upstream = Upstream::start()?;
    let mut document = failing("allow");
    document["store"]["token"] = json!("s3cret-wrong");
    let envoy = Envoy::start(&EnvoyOptions::new(upstream.port(), store.port()).document(document))?;
    let mut client = Client::connect(envoy.port())?;
    for _ in 0..8 {
        let response = client.send(&Request::get("/"))?;
        assert_eq!((response.status, response.header("ratelimit")), (200, None));
    }
    Ok(())
}
