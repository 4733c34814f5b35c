//! Millions of made-up identities: what they cost proxy, store and Redis, and what honest users see
//! meanwhile.
//!
//! Each identity sends one request, for a quota of one or for a lease, so the filter's tables of
//! spent counters and of leases fill and overflow. Before the crowd, a single identity sends as
//! many requests, for comparison.
//!
//! `asking` sends the requests, `verdict` judges.

mod asking;
mod verdict;

use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quotagate_support::envoy::{Envoy, EnvoyOptions};
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use serde_json::{Value, json};

pub use self::asking::{Answers, Honest};
use self::asking::{Regulars, Who, ask};
use crate::footprint::Footprint;

/// How long honest users are alone at the start.
const ALONE: Duration = Duration::from_secs(3);
/// Units per window of the victim, a user who always asks for more.
pub const VICTIM_QUOTA: u64 = 5;
const VICTIM_WINDOW_S: u64 = 30;
/// Rows of the table about the crowd: one after each equal part of it.
const PARTS: u64 = 10;
/// Identities of the short form: some parts come before the filter's tables are full, some after.
const SHORT: u64 = 100_000;
/// Fewest identities of the long form: enough to notice if only half of them left memory behind.
pub const FEWEST: u64 = 300_000;

/// How large a crowd is, and what is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As a test runs it: one worker, and no window of the crowd ends, so Redis must hold a counter
    /// of each identity. Response times are not judged.
    Short,
    /// So many identities and windows of 30 s, so what Redis holds does not grow with the crowd.
    /// Two workers.
    Long(u64),
}

impl Form {
    const fn identities(self) -> u64 {
        match self {
            Self::Short => SHORT,
            Self::Long(identities) => identities,
        }
    }

    const fn workers(self) -> u32 {
        match self {
            Self::Short => 1,
            Self::Long(_) => 2,
        }
    }

    const fn window(self) -> &'static str {
        match self {
            Self::Short => "366d",
            Self::Long(_) => "30s",
        }
    }

    /// How long a request may wait for the store: a test may run on a busy machine.
    const fn timeout(self) -> &'static str {
        match self {
            Self::Short => "10s",
            Self::Long(_) => "2s",
        }
    }
}

/// The measurements up to a moment.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// Identities of the crowd that have sent their request so far.
    pub identities: u64,
    /// Who sent requests besides honest users.
    pub whose: String,
    /// How long they sent requests since the row before.
    pub took: Duration,
    /// How many requests they sent in that time.
    pub asked: u64,
    /// Memory and descriptors.
    pub footprint: Footprint,
    /// Bytes of Redis (`used_memory`).
    pub redis_bytes: u64,
    /// Counters in Redis.
    pub counters: u64,
    /// What honest users saw since the row before.
    pub honest: Honest,
}

/// The result of a whole run.
#[derive(Debug)]
pub struct Crowd {
    /// How large the crowd was, and what is judged.
    pub form: Form,
    /// The rows. The first two come before the crowd: honest users alone, and beside one identity
    /// as busy as the crowd.
    pub rows: Vec<Row>,
    /// The answers to the crowd and to the single identity before it.
    pub answers: Answers,
    /// The most units that [`VICTIM_QUOTA`] let through in one window.
    pub victim: u64,
    /// How often Envoy restarted the filter.
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
            self.asked as f64 / self.took.as_secs_f64(),
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

fn document(form: Form) -> Value {
    let policy = |name: &str, by: &str, quota: u64, window: &str, precision: &str| {
        json!({
            "name": name, "match": {"path": {"exact": format!("/{name}")}}, "partition_by": [by],
            "quota": quota, "window": window, "precision": precision
        })
    };
    let mut lease = policy("lease", "key", 1_000_000, form.window(), "lease");
    lease
        .as_object_mut()
        .map(|lease| lease.insert("lease".to_owned(), json!({"ahead": "1s", "max": 100})));
    let steady = format!("{VICTIM_WINDOW_S}s");
    json!({
        "domain": "shop",
        "store": {"cluster": "quota_store", "timeout": form.timeout(), "on_failure": "deny"},
        "identities": {"key": [{"header": {"name": "x-key"}}], "user": [{"header": {"name": "x-user"}}]},
        "policies": [
            policy("once", "key", 1, form.window(), "exact"),
            lease,
            policy("honest", "user", 1_000_000_000, &steady, "exact"),
            policy("victim", "user", VICTIM_QUOTA, &steady, "exact")
        ]
    })
}

/// Sends the crowd's requests, and reports each row as soon as it is complete.
///
/// # Errors
/// When a part does not come up, or breaks off.
pub fn run(form: Form, mut tell: impl FnMut(&Row)) -> Result<Crowd> {
    let redis = Redis::start()?;
    let store = StoreProcess::start(&redis.url(), &[])?;
    let upstream = Upstream::start()?;
    let options = EnvoyOptions::new(upstream.port(), store.port()).redis(&redis.url());
    let envoy = Envoy::start(&options.concurrency(form.workers()).document(document(form)))?;
    let measured = |row: Row| -> Result<Row> {
        let info = redis.cli(&["INFO", "memory"])?.lines();
        let used = info
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"))
            .context("no used_memory")?;
        let footprint = Footprint::of(&[envoy.pid()], &[store.pid()]);
        let counters = redis.cli(&["DBSIZE"])?.lines().trim().parse()?;
        Ok(Row { footprint, redis_bytes: used.trim().parse()?, counters, ..row })
    };
    let (mut rows, mut answers) = (Vec::new(), Answers::default());
    let mut keep = |row: Row| {
        tell(&row);
        rows.push(row);
    };
    let regulars = Regulars::start(envoy.port())?;
    sleep(ALONE);
    keep(measured(Row {
        whose: "nobody".to_owned(),
        took: ALONE,
        honest: regulars.seen(),
        ..Row::default()
    })?);
    let part = form.identities().div_ceil(PARTS);
    let mut row = |who: Who| -> Result<Row> {
        let since = Instant::now();
        let new = ask(envoy.port(), who, part)?;
        answers.add(new);
        Ok(Row { took: since.elapsed(), asked: new.all(), ..Row::default() })
    };
    let one = row(Who::One)?;
    keep(measured(Row { whose: "one identity".to_owned(), honest: regulars.seen(), ..one })?);
    let mut identities = 0;
    let mut next = |number: u64| -> Result<Row> {
        let next = row(Who::Part(number))?;
        identities += next.asked;
        Ok(Row { identities, whose: format!("{identities} identities"), ..next })
    };
    for number in 1..PARTS {
        let next = next(number)?;
        keep(measured(Row { honest: regulars.seen(), ..next })?);
    }
    let last = next(PARTS)?;
    // Includes all that honest users saw.
    let (honest, victim) = regulars.home()?;
    keep(measured(Row { honest, ..last })?);
    let stats = envoy.stats("vm_reload_success$")?;
    let reloads =
        stats.lines().filter_map(|line| line.rsplit_once(": ")?.1.trim().parse::<u64>().ok()).sum();
    Ok(Crowd { form, rows, answers, victim, reloads })
}
