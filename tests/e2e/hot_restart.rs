//! Hot restart: a new Envoy takes over the listener from an old one, which drains and leaves.

use std::time::Duration;

use anyhow::Result;
use quotagate_support::envoy::{Envoy, EnvoyOptions};
use quotagate_support::http;
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::{ports, wait};
use serde_json::json;

use crate::load::Load;
use crate::rig::{document, per_caller};

const QUOTA: u64 = 600;

#[test]
fn invariant_1_successor_takes_over_and_together_they_admit_the_quota() -> Result<()> {
    for precision in ["exact", "lease"] {
        let redis = Redis::start()?;
        let store = StoreProcess::start(&redis.url(), &[])?;
        let upstream = Upstream::start()?;
        let mut policy = per_caller(QUOTA);
        policy["precision"] = json!(precision);
        let mut options = EnvoyOptions::new(upstream.port(), store.port())
            .redis(&redis.url())
            .concurrency(2)
            .document(document(json!([policy])));
        options.port = ports::free()?;
        let mut old = Envoy::start(&options)?;
        let load = Load::start(options.port, 4, Duration::from_millis(40));
        let reached = |requests: u64| {
            wait::until_true("requests to reach the upstream", Duration::from_secs(60), || {
                Ok(upstream.requests() >= requests)
            })
        };
        reached(QUOTA / 4)?;
        let new = old.successor(&options)?;
        wait::until_true("the old process to leave", Duration::from_secs(30), || {
            Ok(old.check().is_err())
        })?;
        let before = upstream.requests();
        if precision == "exact" {
            wait::until_true("the quota to be used", Duration::from_secs(60), || {
                Ok(upstream.requests() == QUOTA && http::get(new.port(), "/")?.status == 429)
            })?;
        } else {
            wait::until_true("a refusal", Duration::from_secs(60), || {
                Ok(http::get(new.port(), "/")?.status == 429)
            })?;
        }
        let statuses = load.stop()?;
        eprintln!("{precision}: {statuses:?}, {before} when the old process had left");
        assert!(statuses.keys().all(|status| [200, 429].contains(status)), "{statuses:?}");
        assert!(upstream.requests() <= QUOTA, "{precision}: {}", upstream.requests());
        assert!(upstream.requests() >= QUOTA / 2, "{precision}: {}", upstream.requests());
    }
    Ok(())
}
