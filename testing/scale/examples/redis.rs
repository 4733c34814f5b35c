//! What one Redis carries: the store's own backend with a real Redis, and with a real cluster of
//! three primaries with a replica each. It measures the processor time of Redis, which does not
//! depend on other load of the machine, and its memory.
//!
//! `cargo run --release --package quotagate-scale --example redis`

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use quotagate_protocol::{MAX_WINDOW_S, Reservation};
use quotagate_store::store::{Batch, CheckedReservation, Store};
use quotagate_support::cluster::Cluster;
use quotagate_support::redis::Redis;
use quotagate_support::resp::Reply;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

/// The number of partitions.
const PARTITIONS: u32 = 1_000_000;
/// Calls under way at once.
const CALLS: u64 = 8;
/// How long each line is measured.
const TIME: Duration = Duration::from_secs(5);
/// The primaries of a cluster: its first nodes.
const PRIMARIES: usize = 3;

/// Sends a command to each server that counts, and gives the replies.
type Servers<'a> = &'a dyn Fn(&[&str]) -> Result<Vec<Reply>>;

fn main() -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        println!("| Redis | counters a call | counters/s | us of Redis a counter | counters/s a busy core |");
        println!("| --- | --: | --: | --: | --: |");
        let one = Redis::start()?;
        let ask = |command: &[&str]| Ok(vec![one.cli(command)?]);
        measure("one", &one.url(), &ask).await?;
        let cluster = Cluster::start()?;
        let ask = |command: &[&str]| (0..PRIMARIES).map(|node| cluster.cli(node, command)).collect();
        measure("cluster, its primaries", &cluster.url(), &ask).await
    })
}

async fn measure(name: &str, url: &str, servers: Servers<'_>) -> Result<()> {
    let url = url.parse().with_context(|| format!("{url} names no Redis"))?;
    let store = quotagate_store::open(&url, "qg");
    ready(&*store).await?;
    let (empty, begun) = (sum(servers, "memory", &["used_memory"])?, Work::now(servers)?);
    let all: Vec<_> = (0..PARTITIONS).collect();
    for partitions in all.chunks(500) {
        call(&*store, partitions.iter().copied()).await?;
    }
    let full = sum(servers, "memory", &["used_memory"])?;
    begun.print(name, "500, all new", u64::from(PARTITIONS), servers)?;
    for items in [1, 10, 100] {
        let begun = Work::now(servers)?;
        let mut calls = JoinSet::new();
        for seed in 0..CALLS {
            calls.spawn(call_for(TIME, Arc::clone(&store), items, seed));
        }
        let mut counters = 0;
        while let Some(made) = calls.join_next().await {
            counters += made??;
        }
        begun.print(name, &items.to_string(), counters, servers)?;
    }
    let bytes = (full - empty) / f64::from(PARTITIONS);
    eprintln!("{name}: {bytes:.0} bytes of used_memory a counter, of {PARTITIONS}");
    Ok(())
}

/// Sends calls until the time is over. Returns how many counters took part.
async fn call_for(time: Duration, store: Arc<dyn Store>, items: u64, seed: u64) -> Result<u64> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let (end, mut counters) = (Instant::now() + time, 0);
    while Instant::now() < end {
        call(&*store, (0..items).map(|_| random.random_range(0..PARTITIONS))).await?;
        counters += items;
    }
    Ok(counters)
}

async fn call(store: &dyn Store, partitions: impl Iterator<Item = u32>) -> Result<()> {
    let asks = partitions.map(|partition| {
        CheckedReservation::new(Reservation {
            key: format!("shop:per-caller:{{jwt.sub=u{partition:012}}}").into(),
            window_s: MAX_WINDOW_S,
            quota: 1_000_000,
            want: 1,
            min: 1,
            ..Reservation::default()
        })
    });
    let deadline = Instant::now() + Duration::from_secs(5);
    let batch = Batch {
        deadline,
        refunds: Vec::new(),
        charges: Vec::new(),
        reservations: asks.collect::<Result<_, _>>()?,
    };
    for settled in store.reserve(&batch).await {
        settled?;
    }
    Ok(())
}

/// Waits for the backend's connections.
async fn ready(store: &dyn Store) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    while !store.health().faults.is_empty() {
        if Instant::now() > end {
            bail!("the store is not ready: {}", store.health().faults.join(", "));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// What the servers had done at a moment.
struct Work {
    at: Instant,
    /// Seconds of processor time.
    cpu: f64,
}

impl Work {
    fn now(servers: Servers<'_>) -> Result<Self> {
        Ok(Self {
            at: Instant::now(),
            cpu: sum(servers, "cpu", &["used_cpu_user", "used_cpu_sys"])?,
        })
    }

    /// What they did since, for so many counters.
    fn print(&self, name: &str, call: &str, counters: u64, servers: Servers<'_>) -> Result<()> {
        let Self { at, cpu } = Self::now(servers)?;
        let rate = counters as f64 / (at - self.at).as_secs_f64();
        let micros = (cpu - self.cpu) * 1e6 / counters as f64;
        println!("| {name} | {call} | {rate:.0} | {micros:.1} | {:.0} |", 1e6 / micros);
        Ok(())
    }
}

/// The sum of these fields of a section of `INFO` over all servers.
fn sum(servers: Servers<'_>, section: &str, fields: &[&str]) -> Result<f64> {
    let mut sum = 0.0;
    for reply in servers(&["INFO", section])? {
        let text = reply.lines();
        for field in fields {
            let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            sum += value.with_context(|| format!("INFO without {field}"))?.trim().parse::<f64>()?;
        }
    }
    Ok(sum)
}
