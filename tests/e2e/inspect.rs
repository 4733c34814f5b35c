//! Reads the state of the running programs: counters in Redis, calls of a store, statistics of
//! Envoy.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use quotagate_support::envoy::{Envoy, Form};
use quotagate_support::http;
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::wait;

/// Refunds of units that no request used take a moment.
const SETTLED: Duration = Duration::from_secs(10);

/// The counters of a policy: the text between the braces of each key, and the units. The windows of
/// one partition are added up.
pub fn counters(redis: &Redis, policy: &str) -> Result<BTreeMap<String, u64>> {
    let mut counters = BTreeMap::new();
    for (partition, _, units) in windows(redis, policy)? {
        *counters.entry(partition).or_default() += units;
    }
    Ok(counters)
}

/// The counters of a policy one by one: partition, number of the window, units.
pub fn windows(redis: &Redis, policy: &str) -> Result<Vec<(String, u64, u64)>> {
    let keys = redis.cli(&["KEYS", &format!("qg:shop:{policy}:*")])?.lines();
    let of = |key: &str| {
        let (_, rest) = key.split_once(":{").context("no partition")?;
        let (partition, number) = rest.rsplit_once("}:").context("no window")?;
        Ok((partition.to_owned(), number.parse()?, redis.cli(&["GET", key])?.lines().parse()?))
    };
    keys.lines().filter(|key| !key.is_empty() && !key.ends_with(":quota")).map(of).collect()
}

/// Waits until the counters of a policy hold this many units in total.
pub fn settled(redis: &Redis, policy: &str, units: u64) -> Result<()> {
    let mut last = 0;
    wait::until_true(&format!("{policy} to count {units}"), SETTLED, || {
        last = counters(redis, policy)?.values().sum();
        Ok(last == units)
    })
    .with_context(|| format!("it counts {last}"))
}

/// The number of calls that a store answered with this status.
pub fn calls(store: &StoreProcess, status: u16) -> Result<u64> {
    let page = http::get(store.admin_port(), "/metrics")?.text();
    let name = format!("quotagate_store_calls_total{{status=\"{status}\"}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&name));
    Ok(value.unwrap_or("0").trim().parse()?)
}

/// The sum of the statistics whose names match this regular expression. At least one must match.
pub fn stat(envoy: &Envoy, filter: &str) -> Result<u64> {
    let stats = envoy.stats(filter)?;
    let values = stats.lines().filter_map(|line| line.rsplit_once(": "));
    let values =
        values.map(|(_, value)| Ok(value.trim().parse()?)).collect::<Result<Vec<u64>>>()?;
    anyhow::ensure!(!values.is_empty(), "no statistic matches {filter}");
    Ok(values.iter().sum())
}

/// How often Envoy found the Wasm filter dead and restarted it or was about to. In the native form:
/// how many panics the module has caught.
pub fn restarts(envoy: &Envoy) -> Result<u64> {
    match Form::of_run()? {
        Form::Wasm => stat(envoy, "^wasm.quotagate.vm_reload"),
        Form::Native => Ok(envoy.metric("quotagate_panics", &[])?.unwrap_or_default()),
    }
}

/// Now, in seconds since 1970.
pub fn now() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())
}
