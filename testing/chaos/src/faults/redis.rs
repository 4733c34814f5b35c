//! One Redis that dies, hangs, or loses what it holds.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use quotagate_support::redis::Redis;
use quotagate_support::{http, wait};

use crate::fault::{Bounds, Fault, Run, Scene};
use crate::load::Traffic;
use crate::rig::Setup;

/// How long Redis is away, as in the comparison with other systems.
const AWAY: Duration = Duration::from_secs(3);
/// How often scripts are flushed.
const FLUSH: Duration = Duration::from_millis(100);
/// Memory for keys while Redis evicts, the size of the keys that fill it, and their number: four
/// times what fits, so that Redis must evict keys.
const ROOM: u64 = 300_000;
const FILLER: usize = 30_000;
const FILLERS: usize = 40;
/// How soon a store must notice that Redis evicts keys.
const WARNED: Duration = Duration::from_secs(20);

/// 30 requests a second, as in the comparison with other systems.
const THIRTY: Setup =
    Setup { traffic: Traffic { rate: 30, ..Setup::PLAIN.traffic }, ..Setup::PLAIN };

/// The faults of this module.
pub const ALL: &[Fault] = &[
    Fault {
        name: "redis_killed",
        injected: "Redis gets SIGKILL under 30 requests/s, and is back, empty, after 3 s",
        bounds: Bounds {
            quotas: 2,
            forgets: Some("counters are gone with Redis"),
            ..Bounds::STRICT
        },
        only: None,
        run: Run::Under(THIRTY, killed),
    },
    Fault {
        name: "redis_frozen",
        injected: "Redis gets SIGSTOP under 30 requests/s, and SIGCONT after 3 s",
        bounds: Bounds::STRICT,
        only: None,
        run: Run::Under(THIRTY, frozen),
    },
    Fault {
        name: "scripts_flushed",
        injected: "`SCRIPT FLUSH` every 100 ms",
        bounds: Bounds::STRICT,
        only: None,
        run: Run::Under(Setup::PLAIN, scripts_flushed),
    },
    Fault {
        name: "everything_flushed",
        injected: "`FLUSHALL` in the middle of a window",
        bounds: Bounds {
            quotas: 2,
            forgets: Some("a flushed counter is a fresh quota: at most one more in that window"),
            ..Bounds::STRICT
        },
        only: None,
        run: Run::Under(Setup::PLAIN, everything_flushed),
    },
    Fault {
        name: "memory_full",
        injected: "`CONFIG SET maxmemory 1` with `noeviction`: Redis refuses all writes",
        bounds: Bounds::STRICT,
        only: None,
        run: Run::Under(Setup::PLAIN, memory_full),
    },
    Fault {
        name: "counters_evicted",
        injected: "`allkeys-random`, and memory that other keys fill: Redis drops counters",
        bounds: Bounds {
            quotas: 1_000,
            forgets: Some("an evicted counter is a fresh quota, each time"),
            ..Bounds::STRICT
        },
        only: None,
        run: Run::Under(Setup::PLAIN, counters_evicted),
    },
];

fn killed(scene: &mut Scene<'_>) -> Result<()> {
    scene.rig.redis()?.kill()?;
    scene.load.go_on(AWAY);
    scene.rig.redis()?.restart()
}

fn frozen(scene: &mut Scene<'_>) -> Result<()> {
    scene.rig.redis()?.freeze()?;
    scene.load.go_on(AWAY);
    scene.rig.redis()?.thaw()
}

fn scripts_flushed(scene: &mut Scene<'_>) -> Result<()> {
    let until = Instant::now() + scene.plan.during;
    while Instant::now() < until {
        scene.rig.redis()?.cli(&["SCRIPT", "FLUSH"])?;
        scene.load.go_on(FLUSH);
    }
    Ok(())
}

fn everything_flushed(scene: &mut Scene<'_>) -> Result<()> {
    let moment = scene.moment();
    scene.load.go_on(moment);
    scene.rig.redis()?.cli(&["FLUSHALL"]).map(drop)
}

fn memory_full(scene: &mut Scene<'_>) -> Result<()> {
    let redis = scene.rig.redis()?;
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"])?;
    scene.load.go_on(scene.plan.during);
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]).map(drop)
}

fn counters_evicted(scene: &mut Scene<'_>) -> Result<()> {
    let admin = scene.rig.store(0)?.admin_port();
    let redis = scene.rig.redis()?;
    let figure = |redis: &Redis, name: &str| -> Result<u64> {
        let info = redis.cli(&["INFO", "everything"])?.lines();
        let figure = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(figure.with_context(|| format!("INFO has no {name}"))?.trim().parse()?)
    };
    let before = figure(redis, "evicted_keys")?;
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"])?;
    wait::until_true("the store to warn of evictions", WARNED, || {
        Ok(http::get(admin, "/readyz")?.text().contains("allkeys-random"))
    })?;
    let most = figure(redis, "used_memory")? + ROOM;
    redis.cli(&["CONFIG", "SET", "maxmemory", &most.to_string()])?;
    let filler = "x".repeat(FILLER);
    for i in 0..FILLERS {
        redis.cli(&["SET", &format!("filler:{i}"), &filler])?;
        scene.load.go_on(FLUSH);
    }
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"])?;
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"])?;
    let evicted = figure(redis, "evicted_keys")? - before;
    ensure!(evicted > 0, "Redis evicted nothing");
    scene.notes.push(format!("{evicted} keys evicted, `/readyz` warned"));
    Ok(())
}
