//! Millions of made-up identities: what they cost proxy, store and Redis, and what honest users see meanwhile.
//!
//! Each identity asks once, in turn for a quota that one request spends and for a lease: so the filter's tables of spent
//! counters and of leases fill and overflow. Before, one identity asks as often, to compare with.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use quotagate_support::envoy::{Envoy, EnvoyOptions};
use quotagate_support::http::{Client, Request};
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use serde_json::{Value, json};

use crate::footprint::Footprint;

/// Threads of the crowd, and connections of each, on all of which one request is under way.
const THREADS: u64 = 4;
const CONNECTIONS: usize = 64;
/// How often an honest user asks.
const BEAT: Duration = Duration::from_millis(20);
/// How long honest users are alone at first.
const ALONE: Duration = Duration::from_secs(3);
/// Units a window of the one who asks for more all the time.
pub const VICTIM_QUOTA: u64 = 5;
/// Rows of the table.
const ROWS: u64 = 10;

/// What was seen up to a moment.
#[derive(Debug, Clone)]
pub struct Row {
    /// Who asked besides honest users.
    pub whose: String,
    /// Requests of them a second, since the row before.
    pub rate: f64,
    /// Memory and descriptors.
    pub footprint: Footprint,
    /// Bytes of Redis (`used_memory`).
    pub redis_bytes: u64,
    /// Counters in Redis.
    pub counters: u64,
    /// What honest users saw since the row before.
    pub honest: Honest,
}

/// What honest users saw.
#[derive(Debug, Clone, Default)]
pub struct Honest {
    /// How long answers took.
    pub took: Vec<Duration>,
    /// Requests that were not answered by their quota.
    pub failed: u64,
}

/// All of it.
#[derive(Debug)]
pub struct Crowd {
    /// The first two are of the time before: of honest users alone, and beside one identity as busy as the crowd.
    pub rows: Vec<Row>,
    /// Requests of the crowd that got neither 200 nor 429 nor 503.
    pub other: u64,
    /// Requests of the crowd that were not counted in time: 503.
    pub unavailable: u64,
    /// The most units that [`VICTIM_QUOTA`] let through in one window.
    pub victim: u64,
    /// How often the filter was started anew.
    pub reloads: u64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        write!(
            f,
            "| {} | {:.0}/s | {:.0} MiB | {:.1} MiB | {:.0} MiB, {} | {} | {:.1}, {:.1} ms | {} |",
            self.whose,
            self.rate,
            mib(self.footprint.envoys_kib * 1024),
            mib(self.footprint.stores_kib * 1024),
            mib(self.redis_bytes),
            self.counters,
            self.footprint.descriptors,
            ms(self.honest.quantile(0.5)),
            ms(self.honest.quantile(0.99)),
            self.honest.failed,
        )
    }
}

/// The head of the table.
pub const HEAD: &str = "| besides honest users | requests | Envoy | store | Redis, counters | descriptors | honest users' p50, p99 | failed |
| --- | --- | --- | --- | --- | --- | --- | --- |";

impl Honest {
    /// The time that so large a part of the answers took at most.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Duration {
        let mut took = self.took.clone();
        took.sort_unstable();
        let place = (took.len() as f64 * part) as usize;
        took.get(place.min(took.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

impl Crowd {
    /// What must not be, and is.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut must = |holds: bool, text: String| {
            if !holds {
                faults.push(text);
            }
        };
        must(self.other == 0, format!("{} answers that are none of the filter's", self.other));
        must(self.victim <= VICTIM_QUOTA, format!("{} admitted of {VICTIM_QUOTA}", self.victim));
        must(self.reloads == 0, format!("the filter was started anew {} times", self.reloads));
        let failed: u64 = self.rows.iter().map(|row| row.honest.failed).sum();
        let asked: u64 = self.rows.iter().map(|row| row.honest.took.len() as u64).sum();
        must(failed * 100 <= asked, format!("{failed} of {asked} requests of honest users failed"));
        // What grows from the crowd's second row on would grow for ever.
        if let [_, _, _, full, .., last] = self.rows.as_slice() {
            let grown = last.footprint.kib().saturating_sub(full.footprint.kib());
            must(grown <= 24 * 1024, format!("{grown} KiB more than when its tables were full"));
        }
        faults
    }
}

fn document() -> Value {
    let policy = |name: &str, by: &str, quota: u64, precision: &str| {
        json!({
            "name": name, "match": {"path": {"exact": format!("/{name}")}}, "partition_by": [by],
            "quota": quota, "window": "30s", "precision": precision
        })
    };
    let mut lease = policy("lease", "key", 1_000_000, "lease");
    lease.as_object_mut().map(|lease| lease.insert("lease".to_owned(), json!({"ahead": "1s", "max": 100})));
    let exact = |name, by, quota| policy(name, by, quota, "exact");
    json!({
        "domain": "shop",
        "store": {"cluster": "quota_store", "timeout": "2s", "on_failure": "deny"},
        "identities": {"key": [{"header": {"name": "x-key"}}], "user": [{"header": {"name": "x-user"}}]},
        "policies": [
            exact("once", "key", 1), lease, exact("honest", "user", 1_000_000_000), exact("victim", "user", VICTIM_QUOTA)
        ]
    })
}

/// What all threads share.
#[derive(Debug, Default)]
struct Shared {
    over: AtomicBool,
    asked: AtomicU64,
    other: AtomicU64,
    unavailable: AtomicU64,
    honest: Mutex<Honest>,
}

/// Lets so many identities ask, and tells every row as it comes.
///
/// # Errors
/// When a part does not come up, or breaks off.
pub fn run(identities: u64, workers: u32, mut tell: impl FnMut(&Row)) -> Result<Crowd> {
    let redis = Redis::start()?;
    let store = StoreProcess::start(&redis.url(), &[])?;
    let upstream = Upstream::start()?;
    let options = EnvoyOptions::new(upstream.port(), store.port()).concurrency(workers).document(document());
    let envoy = Envoy::start(&options)?;
    let shared = Arc::new(Shared::default());
    let honest = spawn(&shared, envoy.port(), honest)?;
    let victim = spawn(&shared, envoy.port(), victim)?;
    let measure = |whose: String, rate: f64| -> Result<Row> {
        let info = redis.cli(&["INFO", "memory"])?.lines();
        let used =
            info.lines().find_map(|line| line.strip_prefix("used_memory:")).context("no used_memory")?;
        let footprint = Footprint::of(&[envoy.pid()], &[store.pid()]);
        let seen = std::mem::take(&mut *shared.honest.lock().unwrap_or_else(PoisonError::into_inner));
        let counters = redis.cli(&["DBSIZE"])?.lines().trim().parse()?;
        Ok(Row { whose, rate, footprint, redis_bytes: used.trim().parse()?, counters, honest: seen })
    };
    let start = |who: Who, requests: u64| -> Result<Vec<Thread>> {
        let each = requests / THREADS;
        (0..THREADS)
            .map(|number| {
                spawn(&shared, envoy.port(), move |shared, port| crowd(shared, port, number, each, who))
            })
            .collect()
    };
    let mut rows = Vec::new();
    let mut keep = |row: Row| {
        tell(&row);
        rows.push(row);
    };
    sleep(ALONE);
    keep(measure("nobody".to_owned(), 0.0)?);
    let (one, since) = (identities / ROWS, Instant::now());
    start(Who::One, one)?.into_iter().try_for_each(|thread| joined(thread).map(drop))?;
    keep(measure("one identity".to_owned(), one as f64 / since.elapsed().as_secs_f64())?);
    let (begun, mut told, mut since) = (shared.asked.load(Relaxed), 0, Instant::now());
    let crowd = start(Who::Everybody, identities)?;
    while !crowd.iter().all(JoinHandle::is_finished) {
        sleep(Duration::from_millis(100));
        let asked = shared.asked.load(Relaxed) - begun;
        if asked >= told + identities / ROWS {
            let rate = (asked - told) as f64 / since.elapsed().as_secs_f64();
            keep(measure(format!("{asked} identities"), rate)?);
            (told, since) = (asked, Instant::now());
        }
    }
    crowd.into_iter().try_for_each(|thread| joined(thread).map(drop))?;
    shared.over.store(true, Relaxed);
    joined(honest)?;
    let victim = joined(victim)?;
    let stats = envoy.stats("vm_reload_success$")?;
    let reloads = stats.lines().filter_map(|line| line.rsplit_once(": ")?.1.trim().parse::<u64>().ok()).sum();
    let (other, unavailable) = (shared.other.load(Relaxed), shared.unavailable.load(Relaxed));
    Ok(Crowd { rows, other, unavailable, victim, reloads })
}

type Thread = JoinHandle<Result<u64>>;

fn spawn(
    shared: &Arc<Shared>,
    port: u16,
    work: impl FnOnce(&Shared, u16) -> Result<u64> + Send + 'static,
) -> Result<Thread> {
    let shared = Arc::clone(shared);
    Ok(thread::Builder::new().spawn(move || work(&shared, port))?)
}

fn joined(thread: Thread) -> Result<u64> {
    thread.join().map_err(|_| anyhow!("a thread has panicked"))?
}

/// Whose requests they are.
#[derive(Debug, Clone, Copy)]
enum Who {
    /// All of one.
    One,
    /// Each of another.
    Everybody,
}

/// One request under way on each connection.
fn crowd(shared: &Shared, port: u16, number: u64, requests: u64, who: Who) -> Result<u64> {
    let mut clients = (0..CONNECTIONS).map(|_| Client::connect(port)).collect::<Result<Vec<_>>>()?;
    let mut next = 0;
    while next < requests {
        for client in &mut clients {
            let request = match who {
                Who::One => Request::get("/honest").header("x-user", "one"),
                Who::Everybody if next.is_multiple_of(2) => Request::get("/once"),
                Who::Everybody => Request::get("/lease"),
            };
            client.start(&request.header("x-key", format!("made-up-{number}-{next}")))?;
            next += 1;
        }
        for client in &mut clients {
            match client.finish()?.status {
                200 | 429 => {}
                503 => drop(shared.unavailable.fetch_add(1, Relaxed)),
                _ => drop(shared.other.fetch_add(1, Relaxed)),
            }
        }
        shared.asked.fetch_add(clients.len() as u64, Relaxed);
    }
    Ok(next)
}

/// Asks at a steady pace as one of four.
fn honest(shared: &Shared, port: u16) -> Result<u64> {
    let (mut client, mut asked) = (Client::connect(port)?, 0);
    while !shared.over.load(Relaxed) {
        let begun = Instant::now();
        let request = Request::get("/honest").header("x-user", format!("honest-{}", asked % 4));
        let status = client.send(&request)?.status;
        let mut seen = shared.honest.lock().unwrap_or_else(PoisonError::into_inner);
        seen.took.push(begun.elapsed());
        seen.failed += u64::from(status != 200);
        drop(seen);
        asked += 1;
        sleep(BEAT.saturating_sub(begun.elapsed()));
    }
    Ok(asked)
}

/// Asks for more than there is all the time; the most that it got in one window.
fn victim(shared: &Shared, port: u16) -> Result<u64> {
    let mut client = Client::connect(port)?;
    let (mut window, mut admitted, mut most) = (0, 0, 0);
    while !shared.over.load(Relaxed) {
        let response = client.send(&Request::get("/victim").header("x-user", "victim"))?;
        if response.status == 200 {
            let ends: u64 = response.header("x-ratelimit-reset").context("no reset")?.parse()?;
            // The header is rounded up, and counts from the receipt of the grant: never before the end.
            if ends / 30 != window {
                (window, admitted) = (ends / 30, 0);
            }
            admitted += 1;
            most = most.max(admitted);
        }
        sleep(BEAT);
    }
    Ok(most)
}
