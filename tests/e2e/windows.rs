//! Two windows of one party (a short one and a long one): a request that one refuses spends nothing of the other.
//! Ten thousand requests over two Envoys with two workers each and two stores; the counters in Redis must say what
//! was admitted.

use std::time::Duration;

use anyhow::Result;
use quotagate_support::envoy::{Envoy, EnvoyOptions};
use quotagate_support::http::{Client, Request};
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::rig::document;

const REQUESTS: usize = 10_000;
/// Under way at once.
const CLIENTS: usize = 100;

/// Two proxies that share everything.
struct Fleet {
    envoys: [Envoy; 2],
    upstream: Upstream,
    _stores: [StoreProcess; 2],
    redis: Redis,
}

fn windows(short: (u64, &str), long: (u64, &str)) -> Value {
    let policy = |name: &str, (quota, window): (u64, &str)| json!({"name": name, "partition_by": ["caller"], "quota": quota, "window": window});
    document(json!([policy("short", short), policy("long", long)]))
}

impl Fleet {
    fn start(document: &Value) -> Result<Self> {
        let redis = Redis::start()?;
        let stores = [StoreProcess::start(&redis.url(), &[])?, StoreProcess::start(&redis.url(), &[])?];
        let upstream = Upstream::start()?;
        let start = |store: &StoreProcess| {
            let options = EnvoyOptions::new(upstream.port(), store.port());
            Envoy::start(&options.concurrency(2).document(document.clone()))
        };
        let envoys = [start(&stores[0])?, start(&stores[1])?];
        Ok(Self { envoys, upstream, _stores: stores, redis })
    }

    /// Sends all requests, [`CLIENTS`] at a time, and tells how many were admitted.
    fn storm(&self) -> Result<u64> {
        let ports = [self.envoys[0].port(), self.envoys[1].port()];
        let mut clients = (0..CLIENTS).map(|i| Client::connect(ports[i % 2])).collect::<Result<Vec<_>>>()?;
        let mut admitted = 0;
        for _ in 0..REQUESTS / CLIENTS {
            for client in &mut clients {
                client.start(&Request::get("/"))?;
            }
            for client in &mut clients {
                match client.finish()?.status {
                    200 => admitted += 1,
                    429 => {}
                    other => anyhow::bail!("answered {other}"),
                }
            }
        }
        assert_eq!(self.upstream.requests(), admitted);
        Ok(admitted)
    }

    /// What the counters of a policy hold, one a window.
    fn counters(&self, policy: &str) -> Result<Vec<u64>> {
        let keys = self.redis.cli(&["KEYS", &format!("qg:shop:{policy}:*")])?.lines();
        let of = |key: &str| Ok(self.redis.cli(&["GET", key])?.lines().parse::<u64>()?);
        keys.lines().filter(|key| !key.is_empty()).map(of).collect()
    }

    /// Units that requests did not take are on their way back for a moment.
    fn settled(&self, policy: &str, admitted: u64) -> Result<()> {
        wait::until_true(&format!("{policy} to count {admitted}"), Duration::from_secs(10), || {
            Ok(self.counters(policy)?.iter().sum::<u64>() == admitted)
        })
    }
}

#[test]
fn of_two_windows_the_short_one_refuses_and_the_long_one_keeps_its_units() -> Result<()> {
    let fleet = Fleet::start(&windows((33, "365d"), (2_000, "366d")))?;
    assert_eq!(fleet.storm()?, 33);
    fleet.settled("short", 33)?;
    fleet.settled("long", 33)
}

#[test]
fn of_two_windows_the_long_one_refuses_and_the_short_one_keeps_its_units() -> Result<()> {
    let fleet = Fleet::start(&windows((3_300, "365d"), (2_000, "366d")))?;
    assert_eq!(fleet.storm()?, 2_000);
    fleet.settled("short", 2_000)?;
    fleet.settled("long", 2_000)
}

#[test]
fn windows_of_a_minute_and_an_hour_count_what_was_admitted() -> Result<()> {
    let fleet = Fleet::start(&windows((33, "1m"), (2_000, "1h")))?;
    let admitted = fleet.storm()?;
    // The storm may meet the end of a minute; the next one then admits as many again.
    fleet.settled("short", admitted)?;
    fleet.settled("long", admitted)?;
    let minutes = fleet.counters("short")?;
    assert!(admitted >= 33 && minutes.iter().all(|counted| *counted <= 33), "{admitted} in {minutes:?}");
    Ok(())
}
