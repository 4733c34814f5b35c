//! Invariant 1 on the real parts: many proxies and workers, one Redis Cluster, exactly the quota.

use std::thread;

use anyhow::Result;
use quotagate_support::cluster::Cluster;
use quotagate_support::envoy::{Envoy, EnvoyOptions};
use quotagate_support::http::{Client, Request};
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use serde_json::json;

use crate::rig::{document, per_caller};

const QUOTA: usize = 500;
const CLIENTS: usize = 40;
const REQUESTS: usize = 50;

#[test]
fn invariant_1_two_envoys_with_two_workers_over_a_redis_cluster_admit_exactly_the_quota() -> Result<()> {
    let cluster = Cluster::start()?;
    let stores = [StoreProcess::start(&cluster.url(), &[])?, StoreProcess::start(&cluster.url(), &[])?];
    let upstream = Upstream::start()?;
    let start = |store: &StoreProcess| {
        let options = EnvoyOptions::new(upstream.port(), store.port());
        Envoy::start(&options.concurrency(2).document(document(json!([per_caller(QUOTA as u64)]))))
    };
    let envoys = [start(&stores[0])?, start(&stores[1])?];
    let ports = [envoys[0].port(), envoys[1].port()];
    let client = |i: usize| -> Result<(usize, usize)> {
        let mut client = Client::connect(ports[i % 2])?;
        let (mut admitted, mut refused) = (0, 0);
        for _ in 0..REQUESTS {
            match client.send(&Request::get("/"))?.status {
                200 => admitted += 1,
                429 => refused += 1,
                other => anyhow::bail!("answered {other}"),
            }
        }
        Ok((admitted, refused))
    };
    let results = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|i| scope.spawn(move || client(i))).collect();
        clients.into_iter().map(|c| c.join().expect("a client")).collect::<Result<Vec<_>>>()
    })?;
    let admitted: usize = results.iter().map(|(admitted, _)| admitted).sum();
    let refused: usize = results.iter().map(|(_, refused)| refused).sum();
    assert_eq!((admitted, refused), (QUOTA, CLIENTS * REQUESTS - QUOTA));
    assert_eq!(upstream.requests(), QUOTA as u64);
    Ok(())
}
