//! Configurations that come and go under load leave nothing behind, and drain cleanly.

use std::time::Duration;
use std::{env, fs, thread};

use anyhow::{Context, Result};
use quotagate_support::envoy::{self, Envoy, EnvoyOptions, Form, ListenerFile};
use quotagate_support::http::{self, Client, Request};
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::{DELAY_HEADER, Upstream};
use quotagate_support::wait;
use serde_json::json;

use crate::around_the_filter::{discovers, publish};
use crate::load::Load;
use crate::rig::{document, per_caller};

/// How many updates there are, if the variable does not say.
const UPDATES: u64 = 100;
/// The time between two updates by ECDS.
const PACE: Duration = Duration::from_millis(50);
/// How many updates there are while the store runs, and how many while it is stopped.
const STORE_STOPS: u64 = 20;
/// The variable for more of them.
const VARIABLE: &str = "QUOTAGATE_UPDATES";
/// Most memory that Envoy may gain after the first fifth of the updates.
const GROWTH_KIB: u64 = 12 * 1024;

/// What an Envoy occupies.
#[derive(Debug)]
pub(crate) struct Footprint {
    pub(crate) resident_kib: u64,
    threads: u64,
    connections: usize,
}

impl Footprint {
    pub(crate) fn of(envoy: &Envoy, redis: &Redis) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{}/status", envoy.pid()))?;
        let number = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let line = line.with_context(|| format!("no {name}"))?;
            Ok(line.trim().trim_end_matches(" kB").parse()?)
        };
        let clients = redis.cli(&["CLIENT", "LIST"])?.lines();
        let connections = clients.lines().filter(|line| !line.contains("cmd=client")).count();
        Ok(Self { resident_kib: number("VmRSS:")?, threads: number("Threads:")?, connections })
    }
}

#[test]
fn updates_under_load_leave_no_memory_thread_or_connection_behind() -> Result<()> {
    if !Form::Native.is_under_test("what updates of the native module leave behind")? {
        return Ok(());
    }
    let updates = env::var(VARIABLE).map_or(Ok(UPDATES), |count| count.parse())?;
    let redis = Redis::start()?;
    let upstream = Upstream::start()?;
    let file = ListenerFile::new()?;
    let options = |update: u64| {
        let mut policy = per_caller(1_000_000_000 + update);
        policy["precision"] = json!(if update.is_multiple_of(2) { "lease" } else { "exact" });
        let mut document = document(json!([policy]));
        // Each third update opens another store.
        document["store"]["prefix"] = json!(format!("qg{}", update / 3));
        EnvoyOptions::new(upstream.port(), 1).redis(&redis.url()).concurrency(2).document(document)
    };
    file.publish("0", &options(0).config()?)?;
    let envoy = Envoy::start(&options(0).edit(file.edit()))?;
    let load = Load::start(envoy.port(), 4, Duration::from_millis(5));
    let mut footprints = vec![Footprint::of(&envoy, &redis)?];
    for update in 1..=updates {
        let options = options(update);
        file.publish(&update.to_string(), &options.config()?)?;
        let limit = (1_000_000_000 + update).to_string();
        wait::until_true("the update to be served", Duration::from_secs(20), || {
            let response = http::get(envoy.port(), "/")?;
            Ok(response.header("x-ratelimit-limit") == Some(&*limit))
        })?;
        if update.is_multiple_of((updates / 10).max(1)) {
            let footprint = Footprint::of(&envoy, &redis)?;
            eprintln!("{update} updates: {footprint:?}");
            footprints.push(footprint);
        }
    }
    let statuses = load.stop()?;
    eprintln!("{statuses:?}");
    assert_eq!(statuses.keys().copied().collect::<Vec<_>>(), [200]);
    let first = &footprints[0];
    wait::until_true("threads and connections to go", Duration::from_secs(90), || {
        let now = Footprint::of(&envoy, &redis)?;
        Ok(now.threads <= first.threads && now.connections <= first.connections)
    })?;
    let last = Footprint::of(&envoy, &redis)?;
    eprintln!("at the end: {last:?}");
    let warm = &footprints[footprints.len() / 5];
    let growth = last.resident_kib.saturating_sub(warm.resident_kib);
    assert!(growth <= GROWTH_KIB, "{growth} KiB more than after a fifth of the updates");
    Ok(())
}

#[test]
fn request_of_a_listener_that_drains_is_served_by_its_configuration() -> Result<()> {
    let redis = Redis::start()?;
    let store = StoreProcess::start(&redis.url(), &[])?;
    let upstream = Upstream::start()?;
    let file = ListenerFile::new()?;
    let options = |quota: u64| {
        let document = document(json!([per_caller(quota)]));
        EnvoyOptions::new(upstream.port(), store.port()).redis(&redis.url()).document(document)
    };
    file.publish("1", &options(5).config()?)?;
    let envoy = Envoy::start(&options(5).edit(file.edit()))?;
    let mut slow = Client::connect(envoy.port())?;
    // The rig's Envoys drain for a second, and then close connections.
    slow.start(&Request::get("/").header(DELAY_HEADER, "800"))?;
    wait::until_true("the request to reach the upstream", Duration::from_secs(10), || {
        Ok(upstream.requests() == 1)
    })?;
    file.publish("2", &options(7).config()?)?;
    wait::until_true("the update to be served", Duration::from_secs(20), || {
        Ok(http::get(envoy.port(), "/")?.header("x-ratelimit-limit") == Some("7"))
    })?;
    let response = slow.finish()?;
    assert_eq!((response.status, response.header("x-ratelimit-limit")), (200, Some("5")));
    Ok(())
}

#[test]
fn updates_by_ecds_while_calls_are_pending_harm_no_request_and_no_proxy() -> Result<()> {
    if !Form::Native.is_under_test("configurations that end on an Envoy worker")? {
        return Ok(());
    }
    let updates = env::var(VARIABLE).map_or(Ok(UPDATES), |count| count.parse())?;
    let redis = Redis::start()?;
    let (mut store, upstream) = (StoreProcess::start(&redis.url(), &[])?, Upstream::start()?);
    let options = EnvoyOptions::new(upstream.port(), store.port()).through_store().concurrency(2);
    let filter = |update: u64| {
        let mut policy = per_caller(1_000_000_000 + update);
        policy["precision"] = json!(if update.is_multiple_of(2) { "lease" } else { "exact" });
        let mut document = document(json!([policy]));
        document["store"]["timeout"] = json!("100ms");
        document["store"]["on_failure"] = json!("allow");
        let mut config = options.clone().document(document).config()?;
        envoy::filter(&mut config).cloned()
    };
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("quotagate.json");
    publish(&file, &filter(0)?)?;
    let mut envoy = Envoy::start(&options.clone().edit(discovers(&file)?))?;
    let load = Load::start(envoy.port(), 16, Duration::ZERO);
    for update in 1..=updates {
        if update.is_multiple_of(2 * STORE_STOPS) {
            store.thaw()?;
        } else if update.is_multiple_of(STORE_STOPS) {
            store.freeze()?;
        }
        publish(&file, &filter(update)?)?;
        thread::sleep(PACE);
        envoy.check().with_context(|| format!("after {update} updates"))?;
    }
    store.thaw()?;
    let statuses = load.stop()?;
    eprintln!("{statuses:?}");
    assert_eq!(statuses.keys().copied().collect::<Vec<_>>(), [200]);
    envoy.check()
}
