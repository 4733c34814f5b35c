//! A filter of each version against a store of each, and all of them beside each other.

use std::io::{self, Write as _};

use anyhow::{Context, Result};
use quotagate_support::envoy::{Envoy, EnvoyOptions, Form};
use quotagate_support::http::Client;
use quotagate_support::redis::Redis;
use quotagate_support::upstream::Upstream;

use super::Version;
use super::scenario::{SHARED, document, request, run};

#[test]
fn filter_of_each_version_works_with_a_store_of_each() -> Result<()> {
    let Some(versions) = Version::both()? else { return Ok(()) };
    let form = Form::of_run()?.name();
    for filter in &versions {
        for store in &versions {
            let what = format!("{form}: filter {}, store {}", filter.name, store.name);
            let redis = Redis::start()?;
            let process = store.store(&redis.url())?;
            let upstream = Upstream::start()?;
            let options = EnvoyOptions::new(upstream.port(), process.port()).document(document()?);
            let envoy = Envoy::start(&options.parts(&filter.parts))?;
            run(&mut Client::connect(envoy.port())?, &process).with_context(|| what.clone())?;
            // Not `println`: the harness hides what that writes in a test that passes.
            writeln!(io::stderr(), "{what}: exact")?;
        }
    }
    Ok(())
}

#[test]
fn fleet_of_both_versions_shares_its_counters() -> Result<()> {
    let Some([previous, this]) = Version::both()? else { return Ok(()) };
    let redis = Redis::start()?;
    let stores = [previous.store(&redis.url())?, this.store(&redis.url())?];
    let upstream = Upstream::start()?;
    let start = |filter: &Version, store: usize, counts_in_redis: bool| {
        let options = EnvoyOptions::new(upstream.port(), stores[store].port());
        let options = options.document(document()?).parts(&filter.parts).concurrency(2);
        Envoy::start(&if counts_in_redis { options.redis(&redis.url()) } else { options })
    };
    let mut envoys = vec![
        start(&previous, 0, false)?,
        start(&previous, 1, false)?,
        start(&this, 0, false)?,
        start(&this, 1, false)?,
    ];
    // A module that counts by itself is a store, too.
    if Form::of_run()? == Form::Native {
        envoys.extend([start(&previous, 0, true)?, start(&this, 0, true)?]);
    }
    let mut clients = Vec::new();
    for _ in 0..3 {
        for envoy in &envoys {
            clients.push(Client::connect(envoy.port())?);
        }
    }
    for policy in ["shared", "rolling"] {
        let mut admitted = 0;
        for _ in 0..2 * SHARED / clients.len() as u64 + 2 {
            for client in &mut clients {
                client.start(&request(policy))?;
            }
            for client in &mut clients {
                match client.finish()?.status {
                    200 => admitted += 1,
                    429 => {}
                    other => anyhow::bail!("{policy}: answered {other}"),
                }
            }
        }
        assert_eq!(admitted, SHARED, "{policy}");
        writeln!(
            io::stderr(),
            "{}: {} proxies, two stores, both versions: {policy} admitted {admitted} of {SHARED}",
            Form::of_run()?.name(),
            envoys.len()
        )?;
    }
    Ok(())
}
