//! Invariant 1 with real programs: many proxies and workers over one Redis Cluster, or of both
//! forms over one Redis, admit exactly the quota.

use std::time::Duration;

use anyhow::Result;
use quotagate_support::cluster::Cluster;
use quotagate_support::envoy::{Envoy, EnvoyOptions, Form};
use quotagate_support::http::{self, Client, Request};
use quotagate_support::process;
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::{DELAY_HEADER, Upstream};
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::{document, per_caller};

const QUOTA: usize = 500;
/// Each has its own connection, and all wait at once.
const CLIENTS: usize = 2000;
/// A store connects to a cluster within a second. The rest allows for a slow machine.
const CONNECTED: Duration = Duration::from_secs(30);

#[test]
fn invariant_1_two_envoys_with_two_workers_over_a_redis_cluster_admit_exactly_the_quota()
-> Result<()> {
    process::raise_file_limit()?;
    let cluster = Cluster::start()?;
    let mut stores =
        [StoreProcess::start(&cluster.url(), &[])?, StoreProcess::start(&cluster.url(), &[])?];
    let upstream = Upstream::start()?;
    let on = |path: &str, mut policy: Value| {
        policy["match"] = json!({"path": {"exact": path}});
        policy
    };
    // The counters of both policies have the same primary. A call to a cluster does not wait for
    // connections that are being made, so that no request is sent before the store has them.
    let mut warm = on("/warm", per_caller(1_000_000));
    warm["name"] = json!("warm");
    let document = document(json!([on("/", per_caller(QUOTA as u64)), warm]));
    let start = |store: &StoreProcess| {
        let options = EnvoyOptions::new(upstream.port(), store.port()).redis(&cluster.url());
        let envoy = Envoy::start(&options.concurrency(2).document(document.clone()))?;
        wait::until_true("requests to be counted", CONNECTED, || {
            Ok(http::get(envoy.port(), "/warm")?.status == 200)
        })?;
        Ok::<_, anyhow::Error>(envoy)
    };
    let envoys = [start(&stores[0])?, start(&stores[1])?];
    let before = upstream.requests();
    let ports = [envoys[0].port(), envoys[1].port()];
    let mut clients =
        (0..CLIENTS).map(|i| Client::connect(ports[i % 2])).collect::<Result<Vec<_>>>()?;
    // The stores are paused until every request is under way, so that all 2,000 are decided
    // together. (Native modules do not wait for them.)
    stores.iter_mut().try_for_each(StoreProcess::freeze)?;
    for client in &mut clients {
        client.start(&Request::get("/"))?;
    }
    stores.iter_mut().try_for_each(StoreProcess::thaw)?;
    let (mut admitted, mut refused) = (0, 0);
    for client in &mut clients {
        let answer = client.finish()?;
        match answer.status {
            200 => admitted += 1,
            429 => refused += 1,
            other => anyhow::bail!("answered {other}: {}", answer.text()),
        }
    }
    assert_eq!((admitted, refused), (QUOTA, CLIENTS - QUOTA));
    assert_eq!(upstream.requests() - before, QUOTA as u64);
    Ok(())
}

#[test]
fn quota_holds_across_a_fleet_of_both_forms() -> Result<()> {
    let redis = Redis::start()?;
    let store = StoreProcess::start(&redis.url(), &[])?;
    let upstream = Upstream::start()?;
    let document = document(json!([per_caller(30)]));
    let start = |form| {
        let options = EnvoyOptions::new(upstream.port(), store.port()).redis(&redis.url());
        Envoy::start(&options.form(form).document(document.clone()))
    };
    let envoys = [start(Form::Wasm)?, start(Form::Native)?];
    let mut clients =
        envoys.iter().map(|envoy| Client::connect(envoy.port())).collect::<Result<Vec<_>>>()?;
    let mut admitted = [0, 0];
    for _ in 0..25 {
        for (client, admitted) in clients.iter_mut().zip(&mut admitted) {
            *admitted += u64::from(client.send(&Request::get("/"))?.status == 200);
        }
    }
    assert_eq!(admitted, [15, 15], "they take turns");
    inspect::settled(&redis, "per-caller", 30)
}

/// A store that serves operators alone: no proxy calls it.
#[test]
fn store_of_operators_has_the_metrics_of_native_modules() -> Result<()> {
    if !Form::Native.is_under_test("a store reads what native modules publish")? {
        return Ok(());
    }
    let redis = Redis::start()?;
    let (store, upstream) = (StoreProcess::start(&redis.url(), &[])?, Upstream::start()?);
    let metrics = || Ok::<_, anyhow::Error>(http::get(store.admin_port(), "/metrics")?.text());
    wait::until_true("the first reading", CONNECTED, || {
        Ok(metrics()?.contains(r#"quotagate_native_proxies{state="silent"} 0"#))
    })?;
    let options = EnvoyOptions::new(upstream.port(), store.port()).redis(&redis.url());
    let at_once = json!({"name": "at-once", "partition_by": ["caller"], "in_flight": 4});
    let envoy = Envoy::start(&options.document(document(json!([per_caller(2), at_once]))))?;
    let mut running = Client::connect(envoy.port())?;
    running.start(&Request::get("/").header(DELAY_HEADER, "60000"))?;
    wait::until_true("a request to run", CONNECTED, || Ok(upstream.requests() == 1))?;
    let mut client = Client::connect(envoy.port())?;
    for status in [200, 429] {
        assert_eq!(client.send(&Request::get("/"))?.status, status);
    }
    let labels = |outcome| format!(r#"domain="shop",policy="per-caller",outcome="{outcome}""#);
    let expected = [
        format!("quotagate_native_requests_total{{{}}} 2", labels("admitted")),
        format!("quotagate_native_requests_total{{{}}} 1", labels("refused")),
        r#"quotagate_native_slots{domain="shop",policy="at-once",state="held"} 1"#.to_owned(),
        r#"quotagate_native_slots{domain="shop",policy="at-once",state="waiting"} 0"#.to_owned(),
        r#"quotagate_native_slots_expired_total{domain="shop",policy="at-once"} 0"#.to_owned(),
        r#"quotagate_native_proxies{state="ready"} 1"#.to_owned(),
        r#"quotagate_partitions_refused{domain="shop",policy="per-caller"} 1"#.to_owned(),
        r#"mode="enforce",counts="partitions"} 1"#.to_owned(),
    ];
    wait::until_true("the metrics", CONNECTED, || {
        let text = metrics()?;
        Ok(expected.iter().all(|line| text.contains(line)))
    })?;
    let text = metrics()?;
    assert!(text.contains(r#"quotagate_native_calls_total{outcome="ok"}"#), "{text}");
    assert!(text.contains("quotagate_native_last_seen_seconds{host="), "{text}");
    assert!(!text.contains("quotagate_store_requests_total{"), "no proxy reports to it: {text}");
    Ok(())
}
