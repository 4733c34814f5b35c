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
use quotagate_support::upstream::Upstream;
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
