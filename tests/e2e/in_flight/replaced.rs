//! Configurations, listeners and processes that are replaced while streams are open.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_support::envoy::{self, Envoy, EnvoyOptions, ListenerFile, edits};
use quotagate_support::http::{self, Client};
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::{ports, wait};
use serde_json::json;

use super::{all_at_once, at_once, echo, open, until_held};
use crate::around_the_filter::{discovers, publish};

/// What is replaced drains for so long, in seconds.
const DRAIN_S: u32 = 40;
/// Slots that nobody says any more are free after 9 s.
const EXPIRED: Duration = Duration::from_secs(10);

/// What proxies need.
struct Backends {
    upstream: Upstream,
    store: StoreProcess,
    redis: Redis,
}

impl Backends {
    fn start() -> Result<Self> {
        let redis = Redis::start()?;
        let store = StoreProcess::start(&redis.url(), &[])?;
        Ok(Self { upstream: Upstream::start()?, store, redis })
    }

    /// A proxy whose configuration differs from others in these response headers.
    fn options(&self, headers: &str) -> EnvoyOptions {
        let options = EnvoyOptions::new(self.upstream.port(), self.store.port());
        let mut document = at_once(2);
        document["response"]["headers"] = json!([headers]);
        let options = options.redis(&self.redis.url()).drain(DRAIN_S).concurrency(2);
        options.document(document).edit(edits::websocket)
    }

    /// Two WebSockets were opened under an old configuration, and this port is served by a new one:
    /// they hold their slots until they are closed.
    fn hold(&self, what: &str, port: u16, mut clients: Vec<Client>) -> Result<()> {
        let status = || Ok::<_, anyhow::Error>(http::get(port, "/")?.status);
        wait::until_true("the new configuration to serve", Duration::from_secs(20), || {
            let refused = http::get(port, "/")?;
            assert_eq!(refused.status, 429);
            Ok(refused.header("x-concurrency-limit") == Some("2"))
        })?;
        thread::sleep(EXPIRED);
        assert_eq!(status()?, 429, "after the slots could have expired");
        echo(&mut clients)?;
        until_held(&self.store, &[2])?;
        drop(clients);
        // Long before they expire: the last message of what was replaced is not cut with it.
        wait::until_true("the slots to be free", Duration::from_secs(5), || Ok(status()? == 200))
            .context(what.to_owned())
    }
}

fn connected(port: u16) -> Result<Vec<Client>> {
    let mut clients = vec![Client::connect(port)?, Client::connect(port)?];
    open(&mut clients)?;
    Ok(clients)
}

#[test]
fn stream_of_a_replaced_listener_filter_or_process_holds_its_slot() -> Result<()> {
    all_at_once(&[listener_is_updated, filter_is_updated, process_is_hot_restarted])
}

fn listener_is_updated() -> Result<()> {
    let backends = Backends::start()?;
    let file = ListenerFile::new()?;
    file.publish("1", &backends.options("ietf").config()?)?;
    let envoy = Envoy::start(&backends.options("ietf").edit(file.edit()))?;
    let clients = connected(envoy.port())?;
    file.publish("2", &backends.options("concurrency").config()?)?;
    backends.hold("listener", envoy.port(), clients)
}

fn filter_is_updated() -> Result<()> {
    let backends = Backends::start()?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("quotagate.json");
    let filter = |headers: &str| {
        let mut config = backends.options(headers).config()?;
        envoy::filter(&mut config).cloned()
    };
    publish(&file, &filter("ietf")?)?;
    let envoy = Envoy::start(&backends.options("ietf").edit(discovers(&file)?))?;
    let clients = connected(envoy.port())?;
    publish(&file, &filter("concurrency")?)?;
    backends.hold("filter", envoy.port(), clients)
}

fn process_is_hot_restarted() -> Result<()> {
    let backends = Backends::start()?;
    let mut options = backends.options("ietf");
    options.port = ports::free()?;
    let mut old = Envoy::start(&options)?;
    let clients = connected(old.port())?;
    let mut newer = backends.options("concurrency");
    newer.port = options.port;
    let new = old.successor(&newer)?;
    old.check()?;
    backends.hold("process", new.port(), clients)?;
    old.check()
}

#[test]
fn slots_of_a_process_that_ends_after_a_hot_restart_are_free_within_ten_seconds() -> Result<()> {
    let backends = Backends::start()?;
    let mut options = backends.options("ietf").drain(1);
    options.port = ports::free()?;
    let mut old = Envoy::start(&options)?;
    let _clients = connected(old.port())?;
    let new = old.successor(&options)?;
    wait::until_true("the old process to end", Duration::from_secs(20), || {
        Ok(old.check().is_err())
    })?;
    wait::until_true("its slots to be free", EXPIRED + Duration::from_secs(1), || {
        Ok(http::get(new.port(), "/")?.status == 200)
    })
}
